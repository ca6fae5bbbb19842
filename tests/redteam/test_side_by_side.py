"""Searches that advance together, in one sweep for each stage."""

import itertools

import pytest
from redteam.small import engine_here, found_in, made_up, search_here, tiny_plan
from simulation.small import tiny

from secureafl.core.errors import RunError
from secureafl.library.redteaming import search_all
from secureafl.redteam.search import all_stages
from secureafl.settings import short_name
from secureafl.simulation.simulator import Simulation

OUTCOME = ("redteam.json", "trials.json", "worst.toml")


@pytest.mark.slow
def test_searches_side_by_side_end_as_each_does_alone_even_when_stopped(tmp_path, monkeypatch):
    """The second has fewer stages; the first start is stopped among their second ones."""
    plans = {tmp_path / "a": tiny_plan(), tmp_path / "b": tiny_plan(budget=2, against="asr")}
    started = []

    def stopped(cells, out, *rest, **more):
        started.append(list(cells))
        updates = engine_here(cells, out, *rest, **more)
        yield from itertools.islice(updates, 3) if len(started) == 2 else updates
        if len(started) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: stopped)
    with pytest.raises(KeyboardInterrupt):
        search_all(plans, "local", 0, 60.0, quiet=True)
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("?/runs/*/result.json")}
    assert {path.parts[-4] for path in done} == {"a", "b"}
    search_all(plans, "local", 0, 60.0, quiet=True)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert {name.split("/")[0] for name in started[0]} == {"a", "b"}, "in one sweep"
    for search, plan in plans.items():
        alone = tmp_path / f"{search.name}-alone"
        search_here(plan, alone)
        for name in OUTCOME:
            assert (search / name).read_bytes() == (alone / name).read_bytes(), name


def test_search_that_cannot_go_on_does_not_stop_the_others(tmp_path):
    plans = {tmp_path / "a": tiny_plan(base={"defense": "async_sgd"}), tmp_path / "b": tiny_plan()}

    def fails(number, experiment):
        return None if short_name(experiment.defense) == "async_sgd" else 0.5

    with pytest.raises(RunError, match="a: no attack could be run"):
        list(made_up(all_stages(plans), fails))
    assert found_in(tmp_path / "b")["worst"]["held_out"]["mean"] == 0.5


def test_attacks_that_carry_out_the_defence_are_begun_first(tmp_path):
    plans = {tmp_path / str(k): tiny_plan(budget=60, base={"malicious": k}) for k in (1, 2)}
    places = []
    for stage in made_up(all_stages(plans), lambda number, experiment: 0.5):
        informed = [cell.attack.knows == "defense" for cell in stage.cells.values()]
        assert informed == sorted(informed, reverse=True)
        places += [k for k, cell in enumerate(informed) if cell]
    assert {0, 1} <= set(places), "of both searches"


def test_share_of_malicious_clients_changes_nothing_without_an_attack():
    fast = {"kind": "uniform", "malicious_pace": 3.0}
    made = [tiny(attack="none", malicious=k, rounds=40, arrivals=fast) for k in (0, 2)]
    runs = [Simulation(experiment) for experiment in made]
    for run in runs:
        list(run.turns())
    assert (runs[0].weights == runs[1].weights).all()


def test_searches_side_by_side_share_the_runs_without_an_attack(tmp_path):
    shares = {tmp_path / str(share): tiny_plan(base={"malicious": share}) for share in (1, 2)}
    figures = itertools.count(1)
    seen = list(made_up(all_stages(shares), lambda n, e: next(figures) / 1000))
    ran = [name for stage in seen for name in stage.cells if "none" in name]
    names = ["none-short", "none-seed101", "none-seed102"]
    assert sorted(ran) == sorted(f"1/runs/{name}" for name in names)
    clean = [found_in(out)["without_attack"] for out in shares]
    assert clean[0] == clean[1]
    for name in names:
        one, other = ((out / "runs" / name / "result.json").read_bytes() for out in shares)
        assert one == other
    assert not list(tmp_path.glob("*/runs/.*"))


def test_nothing_runs_if_one_of_the_folders_is_in_use(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is in use"):
        next(all_stages({tmp_path / "a": tiny_plan(), tmp_path / "b": tiny_plan()}))
    assert not (tmp_path / "a" / "runs").exists()
