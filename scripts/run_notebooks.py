"""Run the docs' notebooks and keep what comes out in them: `python scripts/run_notebooks.py`.

Into a folder given as the argument go copies with new outputs, and the docs' own stay as they are.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def main() -> None:
    """Run all of them in one process, one after the other: most of the time goes into imports."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOKS
    kernel = KernelManager(kernel_name="python3")
    # What it says about its own transport is no output of a notebook.
    kernel.start_kernel(stderr=subprocess.DEVNULL)
    try:
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            nbformat.write(executed(path, kernel), folder / path.name)
            print(folder / path.name)
    finally:
        kernel.shutdown_kernel(now=True)


def executed(path: Path, kernel: KernelManager) -> Any:
    """A notebook with new outputs, run among nothing but its own names."""
    notebook: Any = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    NotebookClient(notebook, km=kernel, timeout=120).execute(cleanup_kc=False)
    del notebook.cells[0]
    notebook.metadata.language_info = {"name": "python"}  # whatever its version
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.execution_count = None
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
    return notebook


if __name__ == "__main__":
    main()
