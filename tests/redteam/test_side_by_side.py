"""Searches that share one queue of runs."""

import itertools

import pytest
from redteam.small import engine_here, found_in, search_here, tiny_plan, write_result
from simulation.small import tiny

from secureafl.core.errors import RunError
from secureafl.library.redteaming import search_all
from secureafl.redteam.side_by_side import SideBySide
from secureafl.settings import short_name
from secureafl.simulation.simulator import Simulation
from secureafl.sweep.cells import Update
from secureafl.sweep.tally import RunProgress

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


def end(searches, name, figure=0.5):
    """Let a run end with this score; None: it fails."""
    if figure is not None:
        write_result(searches.folder / name, searches.cells[name], figure)
    state = "failed" if figure is None else "finished"
    searches.tell(Update(name, RunProgress(), state))


def end_all(searches, score):
    """Let run after run end with the score that `score(experiment)` makes up; returns their names.

    They end in the order in which they came into the queue.
    """
    ended = []
    while len(ended) < len(searches.cells):
        ended.append([*searches.cells][len(ended)])
        end(searches, ended[-1], score(searches.cells[ended[-1]]))
    return ended


def names(searches, search):
    return [name for name in searches.cells if name.startswith(f"{search}/")]


def test_search_that_cannot_go_on_does_not_stop_the_others(tmp_path):
    plans = {tmp_path / "a": tiny_plan(base={"defense": "async_sgd"}), tmp_path / "b": tiny_plan()}
    searches = SideBySide(plans, 100)
    end_all(searches, lambda made: None if short_name(made.defense) == "async_sgd" else 0.5)
    (failure,) = searches.failures
    assert "a: no attack could be run" in failure
    assert found_in(tmp_path / "b")["worst"]["held_out"]["mean"] == 0.5


def test_each_goes_on_as_soon_as_its_own_runs_have_ended(tmp_path):
    searches = SideBySide({tmp_path / k: tiny_plan(search_seed=ord(k)) for k in "ab"}, 100)
    first = {k: names(searches, k) for k in "ab"}
    for name in first["b"]:
        assert names(searches, "b") == first["b"]
        end(searches, name)
    assert len(names(searches, "b")) > len(first["b"])
    assert names(searches, "a") == first["a"]
    assert [title.partition(":")[0] for title in searches.begun()] == ["a", "b", "b"]
    assert searches.begun() == []


def test_the_next_search_is_begun_when_few_runs_wait(tmp_path):
    plans = {tmp_path / k: tiny_plan(search_seed=ord(k)) for k in "abc"}
    searches = SideBySide(plans, 2)
    first = names(searches, "a")
    assert names(searches, "b") == []
    for name in first[:-1]:
        assert names(searches, "b") == []
        searches.tell(Update(name, RunProgress(), "running"))
    assert names(searches, "b")
    assert names(searches, "c") == []
    assert all((tmp_path / k / "search.json").is_file() for k in "abc"), "all folders are taken"


@pytest.mark.parametrize("ahead", [1, 100])
def test_searches_in_a_queue_end_as_each_does_alone(tmp_path, ahead):
    plans = {tmp_path / k: tiny_plan(budget=9 + ord(k) % 2, search_seed=ord(k)) for k in "abc"}

    def score(made):
        return (len(str(made.attack)) * 31 + made.rounds + made.seed) % 97 / 100

    searches = SideBySide(plans, ahead)
    end_all(searches, score)
    for out, plan in plans.items():
        alone = SideBySide({tmp_path / f"{out.name}-alone": plan}, 1)
        end_all(alone, score)
        for name in OUTCOME:
            expected = (tmp_path / f"{out.name}-alone" / name).read_bytes()
            assert (out / name).read_bytes() == expected, name


def test_attacks_that_carry_out_the_defence_are_begun_first(tmp_path):
    searches = SideBySide({tmp_path: tiny_plan(budget=60)}, 1)
    stages, done = [[*searches.cells]], 0
    while done < len(searches.cells):
        end(searches, [*searches.cells][done])
        done += 1
        if done == sum(map(len, stages)):
            stages.append([*searches.cells][done:])
    informed = [[searches.cells[name].attack.knows == "defense" for name in s] for s in stages]
    assert all(those == sorted(those, reverse=True) for those in informed)
    assert any(0 < sum(those) < len(those) for those in informed)


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
    ran = end_all(SideBySide(shares, 100), lambda made: next(figures) / 1000)
    without = ["none-short", "none-seed101", "none-seed102"]
    assert sorted(name.split("/")[2] for name in ran if "none" in name) == sorted(without)
    clean = [found_in(out)["without_attack"] for out in shares]
    assert clean[0] == clean[1]
    for name in without:
        one, other = ((out / "runs" / name / "result.json").read_bytes() for out in shares)
        assert one == other
    assert not list(tmp_path.glob("*/runs/.*"))


def test_run_that_another_search_made_before_is_copied_at_once(tmp_path):
    plans = {tmp_path / str(share): tiny_plan(base={"malicious": share}) for share in (1, 2)}
    searches = SideBySide(plans, 1)
    while not names(searches, 2):
        name = next(n for n in searches.cells if not (tmp_path / n / "result.json").exists())
        end(searches, name)
    assert (tmp_path / "2" / "runs" / "none-short" / "result.json").is_file()
    assert not any("none-short" in name for name in names(searches, 2))


def test_nothing_runs_if_one_of_the_folders_is_in_use(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is in use"):
        SideBySide({tmp_path / "a": tiny_plan(), tmp_path / "b": tiny_plan()}, 1)
    assert not (tmp_path / "a" / "runs").exists()
