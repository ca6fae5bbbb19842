"""`secureafl compare`, with real worker processes."""

import fcntl
import json
import os
import signal
import time
from pathlib import Path

import pytest

from secureafl.experiment import read_experiment

FILES = ("model.safetensors", "events.jsonl", "experiment.toml")


def test_compare_runs_all_cells_and_makes_a_page(cli):
    words = ("--defenses", "async_sgd,secure_afl", "--attacks", "none,gaussian", "--out", "all")
    done = cli("compare", "tiny.toml", *words)
    assert done.returncode == 0, done.stderr
    assert (cli.folder / "all/report/index.html").is_file()
    assert "all/report/index.html" in done.stdout
    for cell in ("async_sgd-none", "secure_afl-none", "async_sgd-gaussian", "secure_afl-gaussian"):
        result = json.loads((cli.folder / "all" / cell / "result.json").read_text())
        assert "-".join([result["defense"], result["attack"]]) == cell


@pytest.mark.slow
def test_cells_have_the_bits_of_single_runs(cli):
    cli("compare", "tiny.toml", "--defenses", "async_sgd,secure_afl", "--quiet", "--out", "all")
    cli("run", "tiny.toml", "--defense", "secure_afl", "--quiet", "--out", "alone")
    for file in FILES:
        cell, alone = (cli.folder / where / file for where in ("all/secure_afl", "alone"))
        assert cell.read_bytes() == alone.read_bytes()


@pytest.mark.slow
def test_one_failing_cell_does_not_stop_the_others(cli):
    (cli.folder / "failing.py").write_text(
        "from dataclasses import dataclass\n"
        "from secureafl.defenses.async_sgd import AsyncSgd\n"
        "@dataclass(frozen=True)\n"
        "class Failing:\n"
        "    def init(self, num_clients, weights):\n"
        "        return ()\n"
        "    def step(self, state, arrival, server):\n"
        "        raise ValueError('out of luck')\n"
    )
    words = ("--defenses", "failing:Failing,async_sgd", "--out", "all")
    done = cli("compare", "tiny.toml", *words)
    assert done.returncode == 1
    assert "failing.Failing failed: ValueError: out of luck" in done.stderr
    assert (cli.folder / "all/async_sgd/result.json").is_file()
    assert not (cli.folder / "all/failing.Failing/result.json").exists()


LONG = ("compare", "tiny.toml", "--defenses", "async_sgd,secure_afl", "--attacks", "gaussian")
SETTINGS = ("--rounds", 1500, "--quiet", "--checkpoint-seconds", 0.05, "--out", "all")


def _wait_for_checkpoints(cli, process):
    cells = [cli.folder / "all" / f"{name}-gaussian" for name in ("async_sgd", "secure_afl")]
    while process.poll() is None and not all(
        (cell / "checkpoint.safetensors").exists() or (cell / "result.json").exists()
        for cell in cells
    ):
        time.sleep(0.02)
    assert process.poll() is None


def _gone(folder):
    """Wait until no process writes there: a new one may take the lock."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with (folder / "events.jsonl").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
            else:
                return True
    return False


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGKILL,
    ],
)
@pytest.mark.slow
def test_stopped_comparison_goes_on_and_ends_with_the_same_bits(cli, number):
    process = cli.start(*LONG, *SETTINGS)
    _wait_for_checkpoints(cli, process)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "the same command with --out all goes on" in errors
    for name in ("async_sgd", "secure_afl"):
        assert _gone(cli.folder / f"all/{name}-gaussian"), "a worker outlived its parent"
    assert cli(*LONG, *SETTINGS).returncode == 0
    words = ("--defense", "secure_afl", "--attack", "gaussian", "--rounds", 1500, "--quiet")
    cli("run", "tiny.toml", *words, "--out", "alone")
    for file in FILES:
        cell, alone = (cli.folder / where / file for where in ("all/secure_afl-gaussian", "alone"))
        assert cell.read_bytes() == alone.read_bytes()


@pytest.mark.slow
def test_cell_whose_worker_was_killed_is_run_again(cli):
    process = cli.start(*LONG, *SETTINGS)
    _wait_for_checkpoints(cli, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [c for c in children if "spawn_main" in Path(f"/proc/{c}/cmdline").read_text()]
    os.kill(int(workers[-1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "failed and is tried again later: its process ended with code -9" in errors
    assert len(list((cli.folder / "all").glob("*/result.json"))) == 2


@pytest.mark.slow
def test_another_number_of_workers_goes_on_with_the_same_cells(cli):
    """Threads are not derived from the number of workers: settings and bits do not depend on it."""
    text = (cli.folder / "tiny.toml").read_text()
    (cli.folder / "tiny.toml").write_text(text.replace("threads = 1\n", ""))
    words = ("compare", "tiny.toml", "--attacks", "gaussian", "--quiet", "--out", "all")
    first = cli(*words, "--defenses", "async_sgd", "--workers", 1)
    assert first.returncode == 0, first.stderr
    kept = (cli.folder / "all/async_sgd-gaussian/result.json").stat().st_mtime_ns
    done = cli(*words, "--defenses", "async_sgd,secure_afl", "--workers", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert (cli.folder / "all/async_sgd-gaussian/result.json").stat().st_mtime_ns == kept
    stored = [read_experiment(path) for path in (cli.folder / "all").glob("*/experiment.toml")]
    assert [experiment.threads for experiment in stored] == [1, 1]


@pytest.mark.slow
def test_folder_with_other_settings_is_refused(cli):
    cli("compare", "tiny.toml", "--defenses", "async_sgd", "--quiet", "--out", "all")
    words = ("--defenses", "async_sgd", "--seed", 9, "--out", "all")
    done = cli("compare", "tiny.toml", *words)
    assert done.returncode == 1
    assert "holds a run with other settings" in done.stderr
