"""The page of a search, and the command that makes both."""

import json
import sys

import pytest
from redteam.small import engine_here, search_here, tiny_plan

from secureafl.cli.redteam import _bases, _parse_shares
from secureafl.core.errors import RunError
from secureafl.experiment import write_experiment
from secureafl.report.redteam import headline, read_outcome, write_redteam
from secureafl.settings import short_name

REGRESSION = "reference.tiny_task:TinyRegression"


def read(folder):
    return read_outcome(folder / "redteam.json", folder / "trials.json")


@pytest.fixture(scope="module", params=["error", "asr"])
def searched(request, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    search_here(tiny_plan(budget=2, against=request.param), out)
    return out


def test_page_names_the_worst_attack_and_all_held_out_figures(searched):
    outcome = read(searched)
    page = write_redteam(outcome, searched, searched / "report").read_text()
    text = (searched / "report" / "index.md").read_text()
    for told in (page, text):
        assert headline(outcome) in told
        assert outcome["worst"]["attack"]["kind"] in told
        assert "seed 102" in told
        assert "Which parts mattered" in told
    figure = outcome["worst"]["held_out"]["mean"]
    assert f"{outcome['metric'].upper()} {figure:.3f}" in headline(outcome)
    assert f"{outcome['without_attack']['mean']:.3f}" in headline(outcome)
    assert f"{outcome['worst']['error']['seeds']['102']:.3f}" in text


def test_copies_that_were_not_finished_do_not_stop_the_page(searched):
    for name in (".none-short.4711", "notes"):
        (searched / "runs" / name).mkdir(exist_ok=True)
    for name in ("experiment.toml", "result.json"):  # without its provenance
        (searched / "runs" / ".none-short.4711" / name).write_text("{}")
    assert write_redteam(read(searched), searched, searched / "report").is_file()


def test_page_has_the_curve_and_the_map_of_trust(searched):
    outcome = read(searched)
    write_redteam(outcome, searched, searched / "report")
    names = {path.name for path in (searched / "report").glob("*.svg")}
    assert "budget.svg" in names
    assert any(name.startswith("trust-") for name in names)


def test_score_that_diverged_is_told_in_words(searched):
    outcome = read(searched)
    outcome["worst"]["held_out"]["mean"] = outcome["trials"][0]["short"] = "diverged"
    page = write_redteam(outcome, searched, searched / "diverged")
    assert "diverged" in headline(outcome)
    assert headline(outcome) in page.read_text()


def test_file_that_is_no_outcome_is_refused(tmp_path):
    (tmp_path / "redteam.json").write_text(json.dumps({"trials": []}))
    with pytest.raises(RunError, match=r"redteam\.json: is not of a search; it lacks 'worst'"):
        read(tmp_path)


@pytest.fixture
def file(cli):
    (cli.folder / "small.toml").write_text(write_experiment(tiny_plan().base))
    return cli


def test_command_searches_and_makes_the_page(file, monkeypatch):
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: engine_here)
    words = ("kardam", "small.toml", "--budget", 2, "--seeds", "101", "--out", "found")
    code, out, err = file.run_here("redteam", *words)
    assert code == 0, err
    assert "kardam, malicious 2: worst TER" in out
    assert "short runs, attacks 1 to 2 of 2" in err
    assert {path.name for path in (file.folder / "found").iterdir()} == {
        "search.json", "redteam.json", "trials.json", "worst.toml", "runs", "report",
    }  # fmt: skip
    again = file.run_here("redteam", *words)
    assert (again[0], again[1]) == (0, out)


def test_command_searches_for_several_defences_side_by_side(file, monkeypatch):
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: engine_here)
    words = ("kardam,async_sgd", "small.toml", "--malicious", "0.25", "--budget", 1)
    code, out, err = file.run_here("redteam", *words, "--seeds", "101", "--out", "found")
    assert code == 0, err
    task = "reference.tiny_task.TinyTask"
    names = [f"redteam-{task}-{defense}-0.25-error" for defense in ("kardam", "async_sgd")]
    assert sorted(path.name for path in (file.folder / "found").iterdir()) == sorted(names)
    for name in names:
        assert f"{name}: short runs, attacks 1 to 1 of 1" in err
        assert f"{name}/report/index.html" in out
    assert "kardam, malicious 0.25: worst TER" in out


def test_command_searches_for_errors_and_backdoors_side_by_side(file, monkeypatch):
    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: engine_here)
    words = ("--against", "error,asr", "--budget", 1, "--seeds", "101", "--out", "found")
    code, out, err = file.run_here("redteam", "kardam", "small.toml", *words)
    assert code == 0, err
    goals = {path.name.rpartition("-")[2] for path in (file.folder / "found").iterdir()}
    assert goals == {"error", "asr"}
    assert "worst TER" in out
    assert "worst ASR" in out


@pytest.mark.parametrize("lost", ["every run", "its events"])
def test_search_that_fails_costs_the_others_no_page(file, monkeypatch, lost):
    def spoilt(cells, out, *rest, **more):
        for update in engine_here(cells, out, *rest, **more):
            if "async_sgd" in update.cell and lost == "every run":
                (out / update.cell / "result.json").unlink(missing_ok=True)
            elif "async_sgd" in update.cell:
                (out / update.cell / "events.jsonl").unlink(missing_ok=True)
            yield update

    monkeypatch.setattr("secureafl.library.running.find_engine", lambda name: spoilt)
    words = ("async_sgd,kardam", "small.toml", "--malicious", "0.25", "--budget", 1)
    code, out, err = file.run_here("redteam", *words, "--seeds", "101", "--out", "found")
    assert code == 1
    said = [line for line in err.splitlines() if line.startswith("error:")]
    assert len(said) == 1
    assert ("no attack could be run" if lost == "every run" else "events.jsonl") in said[0]
    assert "kardam, malicious 0.25: worst TER" in out
    assert len([*(file.folder / "found").glob("*kardam*/report/index.html")]) == 1


def test_each_defence_is_searched_with_each_share():
    found = _bases(["kardam", "secure_afl"], [0.2, 0.4], None, {"defense.alpha": 0.7}, True)
    named = [(short_name(base.defense), base.malicious, base.rounds) for base in found]
    shares = [(name, share) for share in (0.2, 0.4) for name in ("kardam", "secure_afl")]
    assert named == [(*one, 800) for one in shares]
    assert found[1].defense.alpha == 0.7


def test_malicious_clients_are_given_as_a_share_or_as_a_number():
    assert _parse_shares("0.2, 3") == [0.2, 3]
    assert [type(share) for share in _parse_shares("1.0,1")] == [float, int]
    assert _parse_shares(None) == [None]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kardan",), "unknown defense 'kardan'; did you mean 'kardam'?"),
        (("kardam", "--budget", 0), "budget = 0: give 1 attack to try, or more"),
        (("kardam", "--malicious", 0.6), "malicious = 0.6: give a share up to one half"),
        (("kardam", "--malicious", 0), "malicious = 0: give a share up to one half"),
        (("kardam", "--malicious", 7), "malicious = 7: give a share up to one half"),
        (("kardam", "--device", "cuda:98"), "device = 'cuda:98': "),
        (("kardam", "--engine", "slurm"), "no Slurm here; start this on its login node"),
        (("kardam", "--checkpoint-seconds", "nan"), "give a number of seconds"),
        (("kardam", "--malicious", "0.2,many"), "malicious '0.2,many': give a share as 0.2"),
        (("kardam,kardam",), "defense 'kardam,kardam': give each name once"),
        (("kardam", "--malicious", "0.25,0.25"), "two searches would have the same name"),
        (("kardam", "--seeds", "0-2"), "seed 0, 1 is used in the search and is not held out"),
        (("kardam", "--seeds", "many"), "seeds 'many': give them as 0-4"),
        (
            ("kardam", "--against", "asr", "--set", f"task={REGRESSION}"),
            "a backdoor needs classes, and this task has none",
        ),
        (
            (
                "kardam",
                "--against",
                "error,asr",
                "--set",
                "task=reference.tiny_task:TinyRegression",
            ),
            "a backdoor needs classes, and this task has none",
        ),
        (("kardam", "--against", "loss"), "against 'loss': choose error or asr, or error,asr"),
        (("kardam", "--against", ""), "against '': choose error or asr"),
        (("kardam", "--against", "asr,asr"), "two searches would have the same name"),
        (("kardam", "--set", "attack_from=20"), "attack_from = 20: give a round from 0 to 7"),
        (("kardam", "--set", "defense.windo=2"), "none of the cells has it"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(file, words, said):
    defense, *rest = words
    message = file.refused("redteam", defense, "small.toml", *rest, "--out", "out")
    assert said in message
    assert not (file.folder / "out").exists()


def test_missing_extra_is_one_line_and_touches_nothing(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    message = file.refused("redteam", "kardam", "small.toml", "--out", "out")
    assert 'redteam needs Optuna; install it with: pip install "secureafl[redteam]"' in message
    assert not (file.folder / "out").exists()


def test_folder_in_use_is_one_line_and_touches_nothing(file):
    message = file.refused("redteam", "kardam", "small.toml", "--out", ".")
    assert "is in use, and not by a search; choose another folder (out)" in message
    assert {path.name for path in file.folder.iterdir()} == {"small.toml", "tiny.toml"}
