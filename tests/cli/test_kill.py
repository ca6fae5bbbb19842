"""Real kills of real processes."""

import json
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from command import Cli

SETTINGS = ("--rounds", 4000, "--attack", "gaussian", "--set", "evaluation.every=1000")


def _wait_for_growth(path, process):
    """Until the run has begun to write; a kill before that would test only the start-up."""
    size = path.stat().st_size if path.exists() else 0
    while process.poll() is None and (not path.exists() or path.stat().st_size == size):
        time.sleep(0.01)


@pytest.mark.parametrize("number", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_random_moments_change_nothing(cli, number):
    rounds = 1500 if number < 10 else 4000
    words = ("tiny.toml", *SETTINGS, "--quiet", "--checkpoint-seconds", 0.05, "--rounds", rounds)
    assert cli("run", *words, "--out", "whole").returncode == 0
    rng = random.Random(7)
    kills, command = 0, ("run", *words, "--out", "killed")
    while kills < number:
        process = cli.start(*command)
        if kills % 4:
            _wait_for_growth(cli.folder / "killed" / "events.jsonl", process)
            time.sleep(rng.uniform(0, 0.3))
        else:
            time.sleep(rng.uniform(0, 3))  # at any moment of the start-up as well
        alive = process.poll() is None
        process.kill()
        _, errors = process.communicate()
        assert alive, f"it ended before it was killed often enough: {errors}"
        kills += 1
        if (cli.folder / "killed").exists():
            command = ("resume", "killed", "--quiet", "--checkpoint-seconds", 0.05)
    assert cli(*command).returncode == 0
    for name in ("model.safetensors", "events.jsonl", "experiment.toml"):
        whole, killed = ((cli.folder / run / name).read_bytes() for run in ("whole", "killed"))
        assert whole == killed, name
    results = [
        json.loads((cli.folder / run / "result.json").read_text()) for run in ("whole", "killed")
    ]
    for result in results:
        for timed in ("seconds", "rounds_per_second", "peak_memory_bytes", "checksums_with_times"):
            del result[timed]
    assert results[0] == results[1]
    leftover = {path.name for path in (cli.folder / "killed").iterdir()}
    assert "checkpoint.safetensors" not in leftover


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_a_run_saves_a_checkpoint_and_says_how_to_go_on(cli, number):
    process = cli.start("run", "tiny.toml", *SETTINGS, "--checkpoint-seconds", 0, "--out", "out")
    _wait_for_growth(cli.folder / "out" / "events.jsonl", process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "secureafl resume out" in errors
    assert (cli.folder / "out" / "checkpoint.safetensors").exists()


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed after its first checkpoint."""
    cli = Cli(tmp_path_factory.mktemp("killed"))
    words = ("--rounds", 1500, "--attack", "gaussian", "--checkpoint-seconds", 0.05)
    process = cli.start("run", "tiny.toml", *words, "--out", "out")
    while process.poll() is None and not (cli.folder / "out/checkpoint.safetensors").exists():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    return cli.folder / "out"


@pytest.fixture
def stopped(cli, killed):
    return Path(shutil.copytree(killed, cli.folder / "out"))


def _cut(raw):
    return raw[: len(raw) // 2]


def _flip(raw):
    return raw[:-100] + bytes([raw[-100] ^ 1]) + raw[-99:]


def _empty(raw):
    return b""


def _noise(raw):
    return b"\xff" * len(raw)


@pytest.mark.parametrize(
    "damage", [_cut, _flip, *(pytest.param(d, marks=pytest.mark.slow) for d in (_empty, _noise))]
)
def test_damaged_checkpoint_is_refused_and_nothing_lost(cli, stopped, damage):
    checkpoint = stopped / "checkpoint.safetensors"
    checkpoint.write_bytes(damage(checkpoint.read_bytes()))
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    assert "damaged checkpoint" in cli.refused("resume", "out")
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


@pytest.mark.slow
def test_without_its_checkpoint_a_run_starts_over(cli, stopped):
    (stopped / "checkpoint.safetensors").unlink()
    assert cli("resume", "out", "--quiet").returncode == 0
    sessions = json.loads((stopped / "provenance.json").read_text())["sessions"]
    assert [session["from_round"] for session in sessions] == [0, 0]


def test_checkpoint_of_another_experiment_is_refused(cli, stopped):
    shutil.copy(stopped / "experiment.toml", cli.folder / "other.toml")
    text = (stopped / "experiment.toml").read_text()
    (stopped / "experiment.toml").write_text(
        text.replace('kind = "trust_clipping"', 'kind = "secure_afl"')
    )
    assert "error: " in cli.refused("resume", "out")


def test_two_processes_cannot_write_one_run(cli):
    process = cli.start("run", "tiny.toml", *SETTINGS, "--checkpoint-seconds", 0.05, "--out", "out")
    try:
        _wait_for_growth(cli.folder / "out" / "events.jsonl", process)
        assert "another process is writing this run" in cli.refused("resume", "out")
    finally:
        process.kill()
        process.communicate()


def test_other_data_than_at_the_start_is_refused(cli, stopped):
    text = (stopped / "experiment.toml").read_text()
    (stopped / "experiment.toml").write_text(text.replace("train = 90", "train = 96"))
    assert "was begun on other data" in cli.refused("resume", "out")
