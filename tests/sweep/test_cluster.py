"""Engines for clusters: on a real Ray cluster of two nodes, and with submitit's local executor."""

import functools
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from sweep.small_grid import DYING, contents, run_here, tiny_grid

from secureafl.core.errors import ConfigError
from secureafl.experiment import to_mapping
from secureafl.sweep import cluster, ray, slurm
from secureafl.sweep.cells import Task, unfinished
from secureafl.sweep.engines import run_sweep


class DoneHere:
    """A job that was done when it was handed in."""

    def __init__(self, group):
        self._updates = cluster.run_group(group, 60.0, Path.cwd())

    def done(self):
        return True

    def updates(self):
        return self._updates


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(cluster, "_LOOK_SECONDS", 0.01)


def test_jobs_that_are_refused_or_lost_fail_and_the_others_go_on(quick, tmp_path):
    class Lost(DoneHere):
        def updates(self):
            raise ConnectionError("node\nis down")

    def submit(group):
        if group[0].cell == "seed1":
            raise OSError("the queue is full")
        return (Lost if group[0].cell == "seed2" else DoneHere)(group)

    _, tasks = unfinished(tiny_grid(seed=list(range(4))).cells(), tmp_path)
    updates = {u.cell: u for u in cluster.run_jobs([[task] for task in tasks], 2, submit)}
    assert {cell: update.state for cell, update in updates.items()} == {
        "seed0": "finished",
        "seed1": "failed",
        "seed2": "failed",
        "seed3": "finished",
    }
    assert updates["seed1"].message == "OSError: the queue is full"
    assert updates["seed2"].message == "ConnectionError: node is down"


def test_progress_of_a_job_is_read_off_its_run_folder(quick, tmp_path):
    cancelled = []

    class Endless(DoneHere):
        def done(self):
            return False

        def cancel(self):
            cancelled.append(self)

    _, tasks = unfinished(tiny_grid(seed=[0]).cells(), tmp_path)
    updates = cluster.run_jobs([tasks], 1, Endless)
    update = next(updates)
    assert (update.cell, update.state, update.progress.round) == ("seed0", "running", 40)
    assert 0 <= update.progress.metrics["ter"] <= 1
    updates.close()
    assert len(cancelled) == 1


def test_cells_that_want_a_gpu_share_jobs_unless_they_are_to_be_apart(tmp_path):
    (mapping,) = map(to_mapping, tiny_grid().cells().values())
    tasks = [
        Task(str(n), {**mapping, "device": "cuda" if n < 10 else "cpu"}, tmp_path)
        for n in range(12)
    ]
    assert [len(group) for group in cluster.make_groups(tasks, False)] == [8, 2, 1, 1]
    assert [len(group) for group in cluster.make_groups(tasks, True)] == [1] * 12


@pytest.mark.parametrize(
    ("engine", "load", "package"),
    [(ray, ray._import_ray, "ray"), (slurm, slurm._import_submitit, "submitit")],
)
def test_missing_package_is_named_with_its_extra(engine, load, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    load.cache_clear()
    name = engine.__name__.rpartition(".")[2]
    with pytest.raises(ConfigError, match=rf'pip install "secureafl\[{name}\]"'):
        list(engine.run_cells(tiny_grid().cells(), tmp_path, 1, 60.0))


@pytest.fixture
def ray_cluster(monkeypatch):
    pytest.importorskip("ray")
    ray._import_ray.cache_clear()
    package = ray._import_ray()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield ray.run_cells
    package.shutdown()
    made.shutdown()


@pytest.fixture
def local_executor():
    pytest.importorskip("submitit")
    slurm._import_submitit.cache_clear()
    return functools.partial(slurm.run_cells, cluster="local")


@pytest.fixture(params=["ray_cluster", "local_executor"])
def engine(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dying.py").write_text(DYING)
    folders = [str(tmp_path), *filter(os.path.isdir, sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    return request.getfixturevalue(request.param)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # what the packages warn of is not ours
def test_sweep_on_a_cluster_has_the_bits_of_one_here(engine, tmp_path):
    """With a cell whose process dies once, and one whose process always does."""
    kinds = ["async_sgd", "secure_afl", "dying:Dying", {"kind": "dying:Dying", "often": 99}]
    cells = tiny_grid(defense=kinds).cells()
    ends = {u.cell: u for u in run_sweep(engine, cells, Path("all"), 2)}
    lost = ends.pop("dying.Dying+often99")
    assert lost.state == "failed"
    assert lost.message
    assert {update.state for update in ends.values()} == {"finished"}
    good = {name: cells[name] for name in ends}
    run_here(good, tmp_path / "whole")
    for name in good:
        assert contents(tmp_path / "all", name) == contents(tmp_path / "whole", name)
    again = list(engine(good, Path("all"), 2, 60.0))
    assert [update.state for update in again] == ["finished"] * 3


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_sweep_on_a_cluster_saves_checkpoints_when_it_is_stopped(engine, tmp_path):
    cells = tiny_grid(rounds=[50_000], seed=[0, 1]).cells()
    updates = engine(cells, Path("all"), 2, 600.0)
    begun = set()
    while len(begun) < 2:
        begun.add(next(updates).cell)
    updates.close()
    deadline = time.monotonic() + 30
    while len(list(Path("all").glob("*/checkpoint.safetensors"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_job_whose_time_is_up_is_queued_again_and_goes_on(local_executor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(os.path.isdir, sys.path)))
    cells = tiny_grid(rounds=[3000]).cells()
    updates = local_executor(cells, Path("all"), 1, 0.05)
    next(updates)
    (job,) = {int(p.name.split("_")[0]) for p in Path("all/.slurm").glob("*_submitted.pkl")}
    children = Path(f"/proc/{job}/task/{job}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGUSR2)  # what Slurm sends before the limit
    assert list(updates)[-1].state == "finished"
    run_here(cells, tmp_path / "whole")
    assert contents(tmp_path / "all", "rounds3000") == contents(tmp_path / "whole", "rounds3000")
    assert (tmp_path / "all/rounds3000/provenance.json").read_text().count("from_round") == 2
