"""The docs' notebooks run, and hold what comes out when they do."""

import re
import subprocess
import sys

import nbformat
from docs_names import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def masked(text):
    return re.sub(r" *[\d.%#]+", " 0", text)


def told(path):
    """What each cell printed, but for numbers, which depend on the machine, and what it showed."""
    notebook = nbformat.read(path, as_version=4)
    return [
        (cell.source, masked(output.get("text", "")), sorted(output.get("data", [])))
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]


def test_notebooks_run_and_hold_what_comes_out_of_them(tmp_path):
    assert [path.stem for path in NOTEBOOKS] == ["own-data", "results"]
    command = [sys.executable, ROOT / "scripts" / "run_notebooks.py", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for path in NOTEBOOKS:
        assert told(tmp_path / path.name) == told(path), "python scripts/run_notebooks.py"
        assert any("image/png" in shown for *_, shown in told(path))
    own, results = ((tmp_path / path.name).read_text() for path in NOTEBOOKS)
    assert int(re.search(r"(\d+)% of 397 test images", own)[1]) > 80
    accepted = re.findall(r"client \d  (honest|malicious) +(\d+)% accepted", results)
    assert len(accepted) == 10
    assert all((int(share) > 50) == (who == "honest") for who, share in accepted)
