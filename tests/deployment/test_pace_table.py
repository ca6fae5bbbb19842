"""The table of one fast malicious member is made of the results that are kept."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_table_in_the_docs_is_what_the_script_prints():
    words = ["scripts/pace_effect.py", "table", "docs/results/raw/pace.csv"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 16
    assert done.stdout in (ROOT / "docs/deployment.md").read_text()
