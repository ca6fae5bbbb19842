"""A grid of cells that take moments, run in this process, and ways to look at what came out."""

import json
import tomllib
from pathlib import Path

from secureafl.sweep.cells import unfinished
from secureafl.sweep.cluster import run_group
from secureafl.sweep.grid import Grid

GRID = """
[base]
rounds = {rounds}
clients = 6
device = "cpu"
threads = 1
task = "reference.tiny_task:TinyTask"
training = {{ batch_size = 4 }}
evaluation = {{ every = 1000 }}

[axes]
defense = ["async_sgd", {{ kind = "secure_afl", alpha = 0.7 }}]
attack = ["gaussian", "sign_flip"]
seed = [0]
"""
FILES = ("model.safetensors", "events.jsonl", "experiment.toml")
TIMES = ("seconds", "rounds_per_second", "peak_memory_bytes", "checksums_with_times")

DYING = """
import os
from dataclasses import dataclass
from pathlib import Path
from secureafl.defenses.async_sgd import AsyncSgd

@dataclass(frozen=True)
class Dying:
    often: int = 1

    def init(self, num_clients, weights):
        return ()

    def step(self, state, arrival, server):
        deaths = len(list(Path.cwd().glob("death*")))
        if deaths < self.often:
            Path(f"death{deaths}").touch()
            os._exit(3)
        return AsyncSgd().step(state, arrival, server)
"""


def tiny_grid(**axes):
    """The base above with axes of one's own."""
    return Grid("tiny", tomllib.loads(GRID.format(rounds=40))["base"], axes)


def run_here(cells, out):
    """All cells by turns in this process, undisturbed."""
    _, tasks = unfinished(cells, out)
    updates = run_group(tasks, 60.0, Path.cwd())
    assert {update.state for update in updates} == {"finished"}, updates


def contents(out, name):
    """All that a cell's run folder says, but for how long it took."""
    result = json.loads((out / name / "result.json").read_text())
    figures = {key: value for key, value in result.items() if key not in TIMES}
    return figures, *((out / name / file).read_bytes() for file in FILES)
