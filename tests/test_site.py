"""The site of the docs tells what is wrong with a page; `make lint` builds all of it."""

import subprocess
import sys

from docs_names import ROOT

PAGE = """# A page

[a](nowhere.md) [b](start.md#nowhere) [c](../examples/nowhere.py) [d](#nowhere)
![e](images/nowhere.png) [f](../SECURITY.md#nowhere)

[g](start.md#install) [h](../examples/my_task.py) [i](../examples/) [j](../SECURITY.md)
[k](../examples/flower/README.md)

<!-- a menu -->
```{toctree}
start
security
```
"""


def build(docs, out):
    """Build the pages in a folder as `make lint` does; what was said, and the exit status."""
    words = ["--quiet", "--fail-on-warning", "--keep-going", "--fresh-env"]
    words += ["--conf-dir", ROOT / "docs" / "sphinx", docs, out]
    command = [sys.executable, "-m", "sphinx", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr, done.returncode


def test_what_leads_nowhere_ends_the_build_and_everything_else_leads_somewhere(tmp_path):
    docs, out = tmp_path / "docs", tmp_path / "site"
    docs.mkdir()
    (docs / "index.md").write_text(PAGE)
    (docs / "start.md").write_text("# Start\n\n## Install\n")
    (docs / "security.md").write_text("# Security\n")
    (docs / "lost.md").write_text("# A page in no menu\n")
    told, status = build(docs, out)
    assert status == 1
    for word in (
        "Unknown source document 'nowhere'", "doc 'start': 'nowhere'", "'../examples/nowhere.py'",
        "target not found: 'nowhere'", "images/nowhere.png", "doc 'security': 'nowhere'", "lost.md",
    ):  # fmt: skip
        assert word in told
    assert len(told.strip().splitlines()) == 7
    page = (out / "index.html").read_text()
    web = "https://github.com/secureafl/secureafl"
    for target in (
        "start.html#install", f"{web}/blob/main/examples/my_task.py", f"{web}/tree/main/examples",
        "security.html", f"{web}/blob/main/examples/flower/README.md",
    ):  # fmt: skip
        assert f'href="{target}"' in page
