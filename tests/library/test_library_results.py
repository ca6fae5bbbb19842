"""Results to hold, and running from Python."""

import dataclasses
import importlib
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.spawn import get_preparation_data

import numpy as np
import pytest
from simulation.small import tiny

import secureafl
from secureafl.core.errors import ConfigError, NoRunError, RunError
from secureafl.experiment import from_mapping, to_mapping
from secureafl.library import results
from secureafl.library.notes import notes_before
from secureafl.runs.events import read_events
from secureafl.simulation.run import open_run
from secureafl.sweep.cells import Update
from secureafl.sweep.local import _without_main
from secureafl.sweep.tally import RunProgress
from secureafl.toml import write_toml

SETTINGS = {**to_mapping(tiny(rounds=24)), "threads": 1, "evaluation": {"every": 8, "late": 2}}
TWO_ROUNDS = {**SETTINGS, "rounds": 2, "defense": "async_sgd"}  # which steps from the first one on


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    settings = {**SETTINGS, "attack": "sign_flip", "defense": "kardam"}
    return secureafl.run(settings, tmp_path_factory.mktemp("runs") / "mine")


def test_result_has_what_the_run_left(result):
    assert result.name == "mine"
    assert result.history["round"].tolist() == [0, 8, 16, 23, 24]
    assert result.history["ter"].iloc[-1] == result.metrics["ter"]
    assert result.summary["metrics"]["ter"]["last"] == result.metrics["ter"]
    assert len(result.uploads) == 24
    assert result.uploads["malicious"].sum() == result.summary["uploads"]["malicious"]["received"]
    assert "lipschitz" in result.uploads
    assert "scores" not in result.uploads
    assert len([*result.events()]) == 24 + 5
    assert "kardam" in repr(result)
    assert "sign_flip" in repr(result)


def test_figure_shows_the_main_metric_over_rounds(result, tmp_path):
    figure = result.plot()
    (axis,) = figure.axes
    assert axis.get_ylabel() == "TER"
    assert axis.lines[0].get_xdata().tolist() == [0, 8, 16, 23, 24]
    figure.savefig(tmp_path / "ter.svg")
    with pytest.raises(ConfigError, match="metric = 'loss': choose one of ter"):
        result.plot("loss")


def test_notebooks_get_a_table_and_a_picture(result):
    page = result._repr_html_()
    assert "<td>kardam</td>" in page
    assert result.plot()._repr_png_().startswith(b"\x89PNG")  # also without pyplot
    assert "data:image/png;base64," in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("package", "use", "said"),
    [
        ("pandas", lambda result: result.history, "'secureafl[store]'"),
        ("pandas", lambda result: results.RunResults([result.path]).table, "'secureafl[store]'"),
        ("matplotlib", lambda result: result.plot(), "pip install matplotlib"),
    ],
)
def test_without_an_optional_package_the_remedy_is_named(monkeypatch, result, package, use, said):
    def absent(name, *more):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *more)

    real = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", absent)
    fresh = secureafl.RunResult(result.path)
    with pytest.raises(ConfigError, match=package) as caught:
        use(fresh)
    assert said in str(caught.value)
    assert "<table>" in fresh._repr_html_()


def test_run_that_is_finished_is_not_run_again_and_another_is_refused(result):
    settings = {**SETTINGS, "attack": "sign_flip", "defense": "kardam"}
    before = (result.path / "result.json").stat().st_mtime_ns
    again = secureafl.run(secureafl.from_mapping(settings), result.path)
    assert (again.path / "result.json").stat().st_mtime_ns == before
    with pytest.raises(RunError, match="other settings"):
        secureafl.run({**settings, "seed": 5}, result.path)


def test_run_goes_to_a_new_folder_below_runs_unless_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [secureafl.run(TWO_ROUNDS).path.as_posix() for _ in range(2)]
    assert names[1] == f"{names[0]}-2"
    assert names[0].startswith("runs/reference.tiny_task.TinyTask-")


def test_progress_is_told_with_the_memory_it_takes(tmp_path, capsys):
    secureafl.run(TWO_ROUNDS, tmp_path / "run", progress=True)
    err = capsys.readouterr().err
    assert "memory: about" in err
    assert "round 2/2" in err


def test_run_in_a_thread_of_its_own_works(tmp_path):
    found = []
    thread = threading.Thread(
        target=lambda: found.append(secureafl.run(TWO_ROUNDS, tmp_path / "run"))
    )
    thread.start()
    thread.join()
    assert found[0].summary["rounds"] == 2


def test_interrupted_run_goes_on_with_the_same_call(tmp_path, monkeypatch):
    whole = secureafl.run(SETTINGS, tmp_path / "whole")
    advance = secureafl.simulation.simulator.Simulation._evaluate

    def interrupted(self):
        if self.round == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self)

    monkeypatch.setattr(secureafl.simulation.simulator.Simulation, "_evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt, match="goes on"):
        secureafl.run(SETTINGS, tmp_path / "run")
    with pytest.raises(RunError, match="unfinished"):
        secureafl.RunResult(tmp_path / "run")
    monkeypatch.undo()
    found = secureafl.run(SETTINGS, tmp_path / "run")
    assert [*read_events(found.path)] == [*read_events(whole.path)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "give an Experiment, a mapping of settings, or the path of a TOML file"),
        ("no/such.toml", "no such file"),
        ("quikc", "no experiment that ships; did you mean 'quick'"),
        ({"rounds": 0}, "rounds = 0"),
    ],
)
def test_what_is_no_experiment_is_refused_in_one_line(given, said, tmp_path):
    with pytest.raises(ConfigError, match=said) as caught:
        secureafl.run(given, tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: secureafl.Experiment(rounds="ten"), "rounds = 'ten': give a whole number"),
        (lambda: secureafl.Experiment(malicious="20%"), "malicious = '20%': give a number"),
        (lambda: secureafl.Training(learning_rate=None), "learning_rate = None: give a number"),
        (
            lambda: secureafl.compare(SETTINGS, "async_sgd,kardam"),
            "defenses = 'async_sgd,kardam': give a list, such as ['async_sgd', 'kardam']",
        ),
        (lambda: secureafl.compare(SETTINGS, seeds=3), "seeds = 3: give a list, such as [3]"),
        (lambda: secureafl.run_grid(SETTINGS, {"seed": 1}), "axes.seed = 1: give a list"),
        (
            lambda: secureafl.run_grid(SETTINGS, ["seed"]),
            "axes = ['seed']: give a mapping, such as",
        ),
        (
            lambda: secureafl.run_grid(SETTINGS, {"seed": [0]}, "no/out", engine="dask"),
            "engine = 'dask': choose one of 'local', 'ray', 'slurm'",
        ),
        (
            lambda: secureafl.run_grid(SETTINGS, {"seed": [0]}, "no/out", workers=-1),
            "workers = -1: give 0 (as many as fit) or a number",
        ),
        (
            lambda: secureafl.run_grid(SETTINGS, {"seed": [0]}, "no/out", workers="2"),
            "workers = '2': give 0",
        ),
        (
            lambda: secureafl.run(SETTINGS, "no/out", checkpoint_seconds="60"),
            "checkpoint_seconds = '60': give a number",
        ),
        (lambda: secureafl.from_mapping(None), "settings = None: give a table of settings"),
        (lambda: secureafl.from_mapping({3: 4}), "unknown setting '3'"),
        (lambda: next(secureafl.simulate(SETTINGS)), "give an Experiment; from_mapping and"),
    ],
)
def test_value_of_another_type_is_refused_in_one_line(call, said):
    with pytest.raises(ConfigError) as caught:
        call()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_experiment_is_read_from_a_path_in_a_text(tmp_path):
    (tmp_path / "mine.toml").write_text("clients = 7")
    assert secureafl.read_experiment(str(tmp_path / "mine.toml")).clients == 7


def test_seeds_of_numpy_are_those_of_python(tmp_path, monkeypatch):
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: fails_once)
    found = secureafl.compare(TWO_ROUNDS, seeds=np.arange(2, 4), out=tmp_path / "runs")
    assert [run.name for run in found] == ["seed2", "seed3"]
    assert [run.summary["seed"] for run in found] == [2, 3]


def test_numbers_of_numpy_are_numbers_too():
    assert secureafl.Experiment(seed=np.int64(3), malicious=np.float64(0.2)).num_malicious == 0


def test_majority_of_malicious_clients_is_warned_of(tmp_path):
    wrong = {**TWO_ROUNDS, "attack": "gaussian", "malicious": 1.0}
    with pytest.warns(UserWarning, match="clients are malicious; a defence that goes by"):
        secureafl.run(wrong, tmp_path / "run")


def test_share_that_is_nobody_is_told_where_an_attack_is_named(tmp_path):
    small = {**TWO_ROUNDS, "attack": "gaussian", "clients": 6, "malicious": 0.05}
    said = "malicious = 0.05 of 6 clients is nobody, so nothing is attacked; give a larger share"
    with pytest.warns(UserWarning, match=said):
        secureafl.run(small, tmp_path / "run")
    fair = [{**small, "malicious": 0}, {**small, "malicious": 1}, {**small, "attack": "none"}]
    assert notes_before(map(from_mapping, fair)) == []
    majority = {**small, "malicious": 6}
    several = notes_before(map(from_mapping, [*fair, small, small, majority]))
    assert [said in note for note in several] == [False, True]


@pytest.mark.parametrize("clients", [3, 12])
def test_model_that_never_moved_is_told_whenever_the_result_is_taken(tmp_path, clients):
    waits = {**TWO_ROUNDS, "defense": {"kind": "fed_buff", "buffer_size": 9}, "clients": clients}
    said = "the model is as it began: 2 of 2 uploads were accepted, and fed_buff made no step"
    for _ in range(2):
        with pytest.warns(UserWarning, match=said):
            secureafl.run(waits, tmp_path / "run")


def test_model_that_never_moved_is_told_with_its_cell_of_a_grid(tmp_path, monkeypatch):
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: fails_once)
    buffers = {"defense.buffer_size": [1, 9]}
    with pytest.warns(UserWarning, match=r"^buffer_size9: the model is as it began") as told:
        secureafl.run_grid({**TWO_ROUNDS, "defense": "fed_buff"}, buffers, tmp_path / "some")
    assert len(told) == 1


def test_misspelt_name_of_the_package_is_told_with_one_like_it():
    with pytest.raises(AttributeError) as caught:
        _ = secureafl.fitt
    # From these two Python finds what to suggest, where it prints the error.
    assert (caught.value.name, caught.value.obj) == ("fitt", secureafl)


def test_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(NoRunError, match="not a run folder"):
        secureafl.RunResult(tmp_path)


# Without a guard for the main module, as people write scripts at first.
SCRIPT = """
import secureafl
defenses = ["async_sgd", secureafl.defenses.FedBuff(buffer_size=3)]
results = secureafl.compare({settings!r}, defenses, ["gaussian"], out="out", workers=1)
print(results.table.to_string())
print(len(results), *results["async_sgd-gaussian"].metrics)
"""


def test_workers_do_not_run_the_script_of_their_parent(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.setattr(main, "__file__", "script.py", raising=False)
    assert "init_main_from_path" in get_preparation_data("worker")
    with _without_main():
        assert "init_main_from_path" not in get_preparation_data("worker")
    assert main.__file__ == "script.py"


@pytest.mark.slow
def test_script_without_a_guard_compares(tmp_path, cli):
    source = secureafl.__path__[0].removesuffix("secureafl")
    (tmp_path / "script.py").write_text(SCRIPT.format(settings={**SETTINGS, "device": "cpu"}))
    places = os.pathsep.join([source, cli.environment["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**cli.environment, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fed_buff+buffer_size3-gaussian" in done.stdout
    assert done.stdout.endswith("\n2 ter\n")
    assert done.stdout.count("defence") == 1  # the workers did not run the script


def fails_once(cells, out, workers, checkpoint_seconds, apart=False):
    """An engine in this process that cannot run seed 1."""
    for name, experiment in cells.items():
        if experiment.seed == 1:
            yield Update(name, RunProgress(), "failed", "no luck")
            continue
        assert list(open_run(experiment, out / name, 60.0))
        yield Update(name, RunProgress(), "finished")


def test_runs_of_a_grid_are_drawn_together_and_one_that_failed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: fails_once)
    axes = {"defense": ["async_sgd", "kardam"], "attack": ["none", "gaussian"], "seed": [0]}
    found = secureafl.run_grid({**SETTINGS, "rounds": 8}, axes, tmp_path / "some")
    assert found.table["attack"].tolist() == ["no attack", "no attack", "gaussian", "gaussian"]
    assert {len(axis.lines) for axis in found.plot().axes} == {2}
    assert "gaussian" in repr(found)
    with pytest.raises(KeyError, match="async_sgd-none-seed0"):
        found["another"]
    settings = TWO_ROUNDS
    with pytest.raises(RunError, match="seed1: no luck; 1 of 2 runs are finished"):
        secureafl.run_grid(settings, {"seed": [0, 1]}, tmp_path / "seeds")


def test_grid_is_also_read_from_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: fails_once)
    monkeypatch.chdir(tmp_path)
    base = write_toml({**SETTINGS, "rounds": 2, "seed": 0})
    (tmp_path / "base.toml").write_text(base)
    (tmp_path / "mine.toml").write_text(
        '[base]\nfile = "base.toml"\n[axes]\ndefense = ["async_sgd"]\n'
    )
    found = secureafl.run_grid("mine.toml")
    assert [run.path.as_posix() for run in found] == ["runs/mine/async_sgd-seed0"]


@dataclasses.dataclass(frozen=True)
class Own(secureafl.defenses.AsyncSgd):
    __module__ = "__main__"


def test_class_of_the_script_itself_is_refused_for_several_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Own", Own, raising=False)
    with pytest.raises(ConfigError, match=r"Own: .*; put the class into a file of its own"):
        secureafl.compare(SETTINGS, [Own()], out=tmp_path)
