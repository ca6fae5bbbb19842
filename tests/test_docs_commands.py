"""Commands in blocks of README and docs run: short, and among the slow tests as they stand.

Those of a page run in one folder, so that later ones find what earlier ones have left there.
Scripts by which the docs' figures are made run too, short.
"""

import itertools
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import torch
from command import Cli
from docs_names import ROOT
from redteam.small import engine_here
from report.run_folders import make_run as make_run
from test_docs import PAGES, blocks
from test_docs_run import few_samples as few_samples

from secureafl.dashboard.server import Dashboard
from secureafl.sweep.grid import Grid
from secureafl.tasks import FashionMnist

# What makes a command short, after what it says: the last of two options holds.
RUN = "--rounds 2 --device cpu --set evaluation.late=1"
SHORT = {
    "run": RUN,
    "compare": RUN,
    "sweep": RUN,
    "redteam": f"{RUN} --rounds 8 --clients 5 --budget 1 --seeds 101",
    "reproduce": "--rounds 2 --device cpu",
    "theory": "--rounds 100 --clients 5 --seeds 0",
    "bench": "--clients 3 --sizes 9 --buffers 1 --device cpu --quick",
    "dashboard": "--port 0",
}
# Take seconds however short they are; each has tests of its own.
HEAVY = {"redteam", "reproduce", "theory", "bench"}
# What no test of this file runs, and why.
ELSEWHERE = {
    r"(serve|join|keys) ": "tests/deployment starts servers and clients",
    r"table docs/": "tests/reproduce makes the pages of results again",
    r"report runs/flower-example": "of a run with Flower's own commands",
    r".*norm_bound": "a defence of the reader's",
    r".*--download|.*--task (cifar|udacity|tiny)|.*sageflow_": "data of others",
}
# What one command may take; all of a page, twice that.
HALF_AN_HOUR = 1800
# What does not end within half an hour on two cores, or on a GPU where it asks for one; or never.
LONG = {
    r"redteam ": "hundreds of runs",
    r"reproduce (main|stated) --seeds|.*experiments/paper": "20,000 rounds",
    r"run .*--attack \S+ --seed": "20,000 rounds, the worst that was found against a defence",
    r"(reproduce (main|variants|alpha)|sweep) .*--device cuda": "grids of 20,000 rounds",
    r"bench$": "every case there is",
    r"dashboard ": "until it is stopped",
}
# What makes a script short; and those that other tests run, or none, and why.
SCRIPTS = {
    "optimizer_effect": "--rounds 4 --seeds 0 --defenses async_sgd",
    "privacy_effect": "--rounds 6 --noise 2",
    "time_rounds": "--device cpu --rounds 4 --data-dir embedded",
    "time_small_rounds": "--rounds 200",
}
SCRIPTS_ELSEWHERE = {
    "run_notebooks": "tests/test_notebooks.py",
    "pace_effect": "tests/deployment/test_pace_table.py",
    "compare_checkouts": "of two checkouts, each with every defence in four settings",
    "screenshots": "half an hour; tests/browser looks at the same pages",
}


def written(page):
    """The commands of a page in order: the folder they run in, and the words."""
    for language, block in blocks(page):
        folder = "."
        for line in block.replace("\\\n", " ").splitlines() if language in ("", "sh") else ():
            words = shlex.split(line, comments=True) if re.match(r"(cd|secureafl) ", line) else [""]
            folder = words[1] if words[0] == "cd" else folder
            if words[0] == "secureafl":
                yield folder, words[1:]


def matches(words, patterns):
    return any(re.match(pattern, " ".join(words)) for pattern in patterns)


def pages():
    """Each page with the commands that no page before it has."""
    seen = []
    for page in PAGES:
        new = [(f, w) for f, w in written(page) if not matches(w, ELSEWHERE) and (f, w) not in seen]
        seen += new
        yield page, new


def cases(wanted):
    chosen = ((page, [(f, w) for f, w in lines if wanted(w)]) for page, lines in pages())
    return [pytest.param(lines, id=str(page.relative_to(ROOT))) for page, lines in chosen if lines]


@pytest.fixture
def clone(tmp_path):
    """A folder with what a clone has beside the package."""
    for name in ("experiments", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def brief(few_samples, monkeypatch):
    """Few samples, grids of two cells, everything in this process, and nothing that waits."""
    whole = Grid.cells

    def cells(self, changes=None):
        return dict(itertools.islice(whole(self, changes).items(), 2))

    monkeypatch.setattr(Grid, "cells", cells)
    monkeypatch.setattr(FashionMnist, "load", lambda self: few_samples)
    monkeypatch.setattr(Dashboard, "serve_forever", lambda self: None)
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: engine_here)


def run_short(clone, lines):
    for folder, words in lines:
        code, out, err = Cli(clone / folder).run_here(*words, *SHORT.get(words[0], "").split())
        assert code == 0, (words, err)
        assert out, words


def unlike(lines):
    """One of those that differ in numbers and the defence alone."""
    found = {}
    for folder, words in lines:
        about = re.sub(r"(?<=--defense )\S+|\d[\d.]*", "0", " ".join(words))
        found.setdefault((folder, about), (folder, words))
    return [*found.values()]


@pytest.mark.parametrize("chosen", [unlike, pytest.param(list, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lines", cases(lambda words: words[0] not in HEAVY))
def test_commands_run_short(clone, lines, chosen, brief, make_run, monkeypatch):
    # Drawing each run takes longer than all of them; `tests/report` sees to that.
    monkeypatch.setattr("secureafl.report.page._DRAWN", 0)
    if not any("runs/first" in words for _, words in lines if words[0] == "compare"):
        make_run("first")  # as a page before has left it
    run_short(clone, chosen(lines))


@pytest.mark.slow
@pytest.mark.parametrize("lines", cases(lambda words: words[0] in HEAVY))
def test_heavy_commands_run_short(clone, lines, brief):
    run_short(clone, lines)


@pytest.mark.slow
@pytest.mark.timeout(2 * HALF_AN_HOUR)
@pytest.mark.parametrize("lines", cases(lambda words: not matches(words, LONG)))
def test_commands_run_as_they_stand(clone, lines):
    for folder, words in lines:
        if "cuda" in words and not torch.cuda.is_available():
            continue
        with Cli(clone / folder).start(*words) as process:
            try:
                out, err = process.communicate(timeout=HALF_AN_HOUR)
            finally:
                process.kill()  # or leaving this block would wait for it
        assert process.returncode == 0, (words, err)
        assert out, words


def test_every_exception_is_needed():
    every = [words for page in PAGES for _, words in written(page)]
    for pattern in (*ELSEWHERE, *LONG):
        assert any(matches(words, [pattern]) for words in every), pattern


@pytest.mark.slow
@pytest.mark.timeout(HALF_AN_HOUR)
@pytest.mark.parametrize(("name", "words"), SCRIPTS.items(), ids=SCRIPTS)
def test_scripts_of_the_docs_run_short(name, words):
    command = [sys.executable, f"scripts/{name}.py", *words.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_script_that_the_docs_name_is_run_somewhere():
    found = (re.findall(r"python\s+scripts/(\w+)\.py", page.read_text()) for page in PAGES)
    assert {name for names in found for name in names} == {*SCRIPTS, *SCRIPTS_ELSEWHERE}
