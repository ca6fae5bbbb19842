"""What stands in blocks of README and docs runs: experiments for two rounds, Python as it is.

README's own Python is a doctest, which pytest runs with it (`--doctest-glob`).
"""

import dataclasses
import importlib
import inspect

import pytest
from docs_names import ROOT
from redteam.small import engine_here
from report.run_folders import make_run as make_run
from simulation.small import run, tiny
from test_docs import PAGES, blocks

from secureafl.experiment import from_mapping, read_settings, with_settings
from secureafl.simulation.simulator import Simulation
from secureafl.tasks import FashionMnist

# Beside what the block says.
SMALL = {"rounds": 50, "clients": 5, "training.batch_size": 4}
SMALL |= {"device": "cpu", "kernels": "reference"}
# Whole only where somebody has an hour.
SHORTER = {"budget=200": "budget=1", "rounds=1000": "rounds=20"}
# What a block needs that is not everywhere.
LIBRARIES = {
    "tensorboard": "tracking.TensorBoard",
    "byzfl": "import byzfl",
    "flwr_datasets": "flwr_datasets",
}
# A doctest; no experiment but a grid, or the settings of a server, which `test_docs.py` reads.
OTHERWISE = (">>>", "[axes]", "[deployment]", "[superlink.")
# The file that a page shows parts of.
SHOWN = {
    "add-a-defense.md": "my_defense",
    "add-a-task.md": "my_task",
    "add-an-attack.md": "my_attack",
}


def cases(language):
    return [
        pytest.param(page, block, id=f"{page.name}-{number}")
        for page in PAGES
        for number, (written, block) in enumerate(blocks(page))
        if written == language and not any(words in block for words in OTHERWISE)
    ]


@pytest.fixture(scope="module")
def few_samples():
    """The slice of data that ships with the package, with a test set that takes no time."""
    data = FashionMnist(data_dir="embedded").load()
    return data._replace(test_inputs=data.test_inputs[:20], test_labels=data.test_labels[:20])


@pytest.mark.parametrize(("page", "block"), cases("toml"))
def test_experiment_in_a_block_runs(page, block, tmp_path, few_samples, monkeypatch):
    monkeypatch.setattr(FashionMnist, "load", lambda self: few_samples)
    (tmp_path / "block.toml").write_text(block)
    experiment = from_mapping(with_settings(read_settings(tmp_path / "block.toml"), SMALL))
    assert run(Simulation(experiment), 2)


def brief(**given):
    return dataclasses.replace(tiny(rounds=32), **given)


@pytest.mark.parametrize(("page", "block"), cases("python"))
def test_python_in_a_block_runs(page, block, tmp_path, make_run, monkeypatch):
    for library, sign in LIBRARIES.items():
        if sign in block:
            pytest.importorskip(library)
    make_run("one")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr("secureafl.Experiment", brief)
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: engine_here)
    for long, short in SHORTER.items():
        block = block.replace(long, short)
    module = SHOWN.get(page.name)
    shown = vars(importlib.import_module(module)) if module else {}
    names = dict(shown)
    exec(compile(block, str(page), "exec"), names)
    for name, found in names.items():
        if name.startswith("test_"):
            found()
        elif name in shown and found is not shown[name]:
            assert signatures(found).items() <= signatures(shown[name]).items()


def signatures(cls):
    """The settings and methods of a class, as far as who uses it sees them."""
    fields = {field.name: (field.type, field.default) for field in dataclasses.fields(cls)}
    methods = inspect.getmembers(cls, inspect.isfunction)
    own = {name: inspect.signature(method) for name, method in methods if name[0] != "_"}
    return fields | own
