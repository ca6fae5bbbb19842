"""The command as a user starts it."""

import itertools
import json
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
from command import Cli

from secureafl.cli.app import main

FIELDS = {
    "schema",
    "finished",
    "date",
    "command",
    "seed",
    "threads",
    "kernels",
    "device",
    "machine",
    "versions",
    "bandwidth",
    "main",
    "rows",
    "skipped",
    "paper",
}
TOO_LARGE = 10**10
SMALL = ("--clients", "4,6", "--buffers", "1,3", "--device", "cpu", "--threads", 1)


class Bench(NamedTuple):
    folder: Path
    out: str
    err: str

    @property
    def figures(self):
        return json.loads((self.folder / "bench.json").read_text())


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A whole benchmark, of small cases and one too large."""
    cli = Cli(tmp_path_factory.mktemp("bench"))
    done = cli("bench", *SMALL, "--sizes", f"100,200,{TOO_LARGE}")
    assert done.returncode == 0, done.stderr
    return Bench(cli.folder / "runs" / "bench", done.stdout, done.stderr)


def is_picture(path):
    return path.read_bytes().startswith(b"\x89PNG\r\n")


def test_bench_leaves_all_that_its_figures_depend_on(small):
    found = small.figures
    assert set(found) == FIELDS
    assert found["finished"] is True
    assert found["threads"] == 1
    assert found["main"] == {"clients": 4, "parameters": 100, "buffer": 3}
    assert found["device"]["type"] == found["bandwidth"]["device"] == "cpu"
    assert found["command"].startswith("secureafl bench --clients 4,6")
    assert {"python", "secureafl", "torch", "numpy"} <= set(found["versions"])
    assert is_picture(small.folder / "bench.png")


def test_bench_says_what_it_does_and_prints_a_table(small):
    assert "secure_afl, 6 clients, 200 parameters, buffer 3" in small.err
    for heading in ("x floor", "faster", "state"):
        assert heading in small.out
    assert "secure_afl" in small.out


def test_every_pair_of_clients_and_sizes_is_measured_and_every_buffer_once(small):
    rows = small.figures["rows"]
    cases = {(r["method"], r["clients"], r["parameters"], r["buffer"]) for r in rows}
    assert len(cases) == len(rows)
    for method, buffer in (("plain", 3), ("secure_afl", 3), ("async_sgd", None)):
        for clients in (4, 6):
            assert {(method, clients, 100, buffer), (method, clients, 200, buffer)} <= cases
    assert {("plain", 4, 100, 1), ("secure_afl", 4, 100, 1)} <= cases
    assert ("secure_afl", 6, 100, 1) not in cases


def test_ratios_are_of_the_times_beside_them(small):
    rows = small.figures["rows"]
    for row in rows:
        assert 0 < row["fastest"] <= row["milliseconds"] <= row["slowest"]
        assert row["peak_bytes"] > row["state_bytes"] >= 0
        if row["times_floor"]:
            expected = row["milliseconds"] / row["floor_milliseconds"]
            assert row["times_floor"] == pytest.approx(expected)
    assert all(row["times_faster_than_plain"] == 1 for row in rows if row["method"] == "plain")


def test_too_large_a_case_is_skipped_and_said_so(small):
    case = "secure_afl, 4 clients, 10,000,000,000 parameters, buffer 3"
    assert f"skipped: {case}: needs 1,280.0 GB" in small.out
    large = [entry for entry in small.figures["skipped"] if entry["parameters"] == TOO_LARGE]
    assert {"plain", "secure_afl", "async_sgd"} <= {entry["method"] for entry in large}
    assert all("GB" in entry["reason"] for entry in large)


def test_quick_measures_the_main_case_and_the_peers_and_leaves_other_files_alone(cli):
    folder = cli.folder / "out"
    folder.mkdir()
    (folder / "bench.json").write_text("old")
    (folder / "thesis.tex").write_text("all of it")
    words = ("--sizes", "100,200", "--quick", "--kernels", "reference", "--out", "out")
    done = cli("bench", *SMALL, *words)
    assert done.returncode == 0, done.stderr
    found = Bench(folder, done.stdout, done.stderr).figures
    assert found["kernels"] == {"asked": "reference", "used": "reference"}
    assert {(row["clients"], row["parameters"]) for row in found["rows"]} == {(4, 100)}
    named = {row["method"] for row in found["rows"]}
    assert {"median_secureafl", "median_numpy", "median_torch", "median_torch_sort"} <= named
    other = {entry["method"]: entry["reason"] for entry in found["skipped"]}
    for flower in ("median_flower", "round_flower"):
        assert flower in named or other[flower] == "flwr is not installed"
    assert is_picture(folder / "bench.png")
    assert {path.name for path in folder.iterdir()} == {"bench.json", "bench.png", "thesis.tex"}
    assert (folder / "thesis.tex").read_text() == "all of it"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_told_to_stop_it_writes_what_was_measured(cli, number):
    # Minutes in all; told to stop when the first two measurements are done.
    words = ("--clients", "4,6,8,10,12", "--sizes", "100,30000,40000,50000", "--device", "cpu")
    with cli.start("bench", *words) as process:
        begun = list(itertools.takewhile(lambda line: "async_sgd" not in line, process.stderr))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, "".join([*begun, err])
    assert "stopped; what was measured is in runs/bench" in err
    assert "Traceback" not in err
    found = Bench(cli.folder / "runs" / "bench", out, err).figures
    assert found["finished"] is False
    assert {"plain", "secure_afl"} <= {row["method"] for row in found["rows"]}
    assert "secure_afl" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--clients", "many"), "--clients = 'many': give whole numbers from 1"),
        (("--sizes", "0"), "--sizes = '0': give whole numbers from 1"),
        (("--buffers", "1,,x"), "--buffers = '1,,x': give whole numbers from 1"),
        (("--threads", "-1"), "--threads = -1: give 0 (automatic)"),
        (("--out", "tiny.toml/bench"), "cannot be written"),
    ],
)
def test_bad_settings_are_refused_with_a_remedy(cli, words, said, monkeypatch, capsys):
    # In this process: a new one for each would take long.
    monkeypatch.chdir(cli.folder)
    monkeypatch.setattr("sys.argv", ["secureafl", "bench", "--device", "cpu", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    printed = capsys.readouterr().err
    assert exit_.value.code in (1, 2)
    assert said in printed
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    assert not (cli.folder / "runs").exists()


def test_nothing_measured_is_an_error_with_its_reason(cli, monkeypatch, capsys):
    monkeypatch.chdir(cli.folder)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # it would outlast this test
    monkeypatch.setattr("secureafl.bench.machine.free_memory", lambda device: 1000)
    monkeypatch.setattr("sys.argv", ["secureafl", "bench", *map(str, SMALL), "--sizes", "100"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: nothing was measured; plain, 4 clients, 100 parameters")
    assert not (cli.folder / "runs" / "bench" / "bench.json").exists()


def test_kernels_of_another_device_are_refused(cli):
    assert "kernels = 'gpu'" in cli.refused("bench", "--device", "cpu", "--kernels", "gpu")


def test_help_has_an_example(cli):
    done = cli("bench", "--help")
    assert done.returncode == 0
    assert "Example: secureafl bench" in done.stdout
