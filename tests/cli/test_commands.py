import json
import re
import tomllib

import pytest
from typer.testing import CliRunner

import secureafl
from secureafl.cli.app import app


def test_run_leaves_a_whole_folder_and_prints_a_table(cli):
    done = cli("run", "tiny.toml", "--attack", "sign_flip", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "trust_clipping" in done.stdout
    assert "sign_flip" in done.stdout
    assert "round 40/40" in done.stderr
    names = {path.name for path in (cli.folder / "out").iterdir()}
    assert names == {
        "experiment.toml",
        "provenance.json",
        "holdings.json",
        "events.jsonl",
        "pace.jsonl",
        "result.json",
        "model.safetensors",
    }
    events = (cli.folder / "out" / "events.jsonl").read_text().splitlines()
    assert sum(json.loads(line)["event"] == "arrival" for line in events) == 40


def run_for_json(cli, *words):
    code, out, _ = cli.run_here("run", "tiny.toml", *words, "--json")
    assert code == 0
    return json.loads(out)


def test_json_prints_the_result_alone(cli):
    result = run_for_json(cli, "--out", "out")
    stored = json.loads((cli.folder / "out" / "result.json").read_text())
    assert result == {**stored, "folder": "out"}
    assert set(result["metrics"]["ter"]) == {"last", "late_mean", "late_std"}
    assert result["uploads"]["honest"]["received"] == 40
    assert result["uploads"]["malicious"] == {"accepted": 0, "received": 0, "share": None}


def test_quiet_says_nothing(cli):
    assert cli.run_here("run", "tiny.toml", "--quiet") == (0, "", "")


def test_options_override_the_file(cli):
    words = ("--defense", "async_sgd", "--attack", "gaussian", "--rounds", "7", "--clients", "4")
    more = ("--seed", "3", "--set", "attack.std=2", "--set", "training.batch_size=2")
    assert cli.run_here("run", "tiny.toml", *words, *more, "--quiet", "--out", "out")[0] == 0
    written = tomllib.loads((cli.folder / "out" / "experiment.toml").read_text())
    assert (written["rounds"], written["clients"], written["seed"]) == (7, 4, 3)
    assert written["defense"] == {"kind": "async_sgd"}
    assert written["attack"] == {"kind": "gaussian", "std": 2.0}
    assert written["training"]["batch_size"] == 2


def test_default_folders_never_collide(cli):
    for _ in range(2):
        assert cli.run_here("run", "tiny.toml", "--rounds", "3", "--quiet") == (0, "", "")
    names = sorted(path.name for path in (cli.folder / "runs").iterdir())
    assert names == [
        f"reference.tiny_task.TinyTask-trust_clipping-none-seed0{end}" for end in ("", "-2")
    ]


def test_same_seed_gives_the_same_bits_in_any_process_and_another_seed_others(cli):
    words = ("run", "tiny.toml", "--attack", "gaussian", "--quiet", "--seed")
    cli.environment["PYTHONPROFILEIMPORTTIME"] = "1"
    apart = cli(*words, 5, "--out", "a")
    assert apart.returncode == 0
    # Parts of torch's compiler, which a small model's run does not need: two seconds.
    assert not re.search(r"\| +(torch\._dynamo|sympy)$", apart.stderr, re.MULTILINE)
    for name, seed in (("b", "5"), ("c", "6")):
        assert cli.run_here(*words, seed, "--out", name) == (0, "", "")
    for file in ("model.safetensors", "events.jsonl"):
        a, b, c = ((cli.folder / name / file).read_bytes() for name in "abc")
        assert a == b
        assert a != c


def test_resuming_a_finished_run_shows_its_result(cli):
    assert cli.run_here("run", "tiny.toml", "--quiet", "--out", "out")[0] == 0
    code, out, _ = cli.run_here("resume", "out", "--json")
    assert code == 0
    assert json.loads(out)["rounds"] == 40


def test_finished_run_says_so(cli, make_run):
    code, out, err = cli.run_here("resume", str(make_run("one")))
    assert code == 0
    assert err.endswith("one: finished already\n")
    assert "gaussian" in out


def test_version_is_printed(cli):
    assert cli.run_here("--version") == (0, f"secureafl {secureafl.__version__}\n", "")


@pytest.mark.parametrize("name", ["quick", "experiments/quick.toml"])
def test_experiment_that_ships_is_found_in_any_folder(cli, name):
    words = ("--rounds", "2", "--clients", "4", "--set", "evaluation.late=1", "--out", "out")
    assert cli.run_here("run", name, *words, "--quiet") == (0, "", "")
    written = tomllib.loads((cli.folder / "out" / "experiment.toml").read_text())
    assert (written["seed"], written["attack"]["kind"]) == (1, "gaussian")


def test_own_file_comes_before_one_that_ships(cli):
    (cli.folder / "experiments").mkdir()
    (cli.folder / "experiments" / "quick.toml").write_text("rounds = 0\n")
    assert "rounds = 0" in cli.refused("run", "experiments/quick.toml")


@pytest.mark.parametrize(("malicious", "told"), [(3, ""), (4, "4 of 6 clients are malicious")])
def test_majority_of_malicious_clients_is_told(cli, malicious, told):
    words = ("run", "tiny.toml", "--rounds", "3", "--attack", "gaussian", "--out", "out")
    code, _, err = cli.run_here(*words, "--set", f"malicious={malicious}")
    assert code == 0
    assert ("are malicious" in err) == bool(told)
    assert told in err


def test_attack_of_nobody_and_a_model_that_never_moved_are_told(cli):
    waits = ("--defense", "fed_buff", "--set", "defense.buffer_size=9", "--set", "malicious=0.01")
    words = ("run", "tiny.toml", "--rounds", "3", "--attack", "gaussian", *waits)
    code, _, err = cli.run_here(*words, "--out", "out")
    assert code == 0
    assert "note: malicious = 0.01 of 6 clients is nobody, so nothing is attacked" in err
    assert "note: the model is as it began: 3 of 3 uploads were accepted, and fed_buff made" in err
    assert cli.run_here(*words, "--out", "quiet", "--quiet") == (0, "", "")


@pytest.mark.slow
def test_report_of_a_folder_of_runs_is_one_page(cli):
    for defense in ("async_sgd", "secure_afl"):
        words = ("--defense", defense, "--attack", "gaussian", "--quiet")
        cli("run", "tiny.toml", *words, "--out", f"runs/{defense}")
    done = cli("report", "runs", "--out", "page")
    assert done.returncode == 0, done.stderr
    page = (cli.folder / done.stdout.strip()).read_text()
    assert "async_sgd" in page
    assert "secure_afl" in page


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("defenses", "secure_afl"),
        ("attacks", "scaling"),
        ("aggregators", "trimmed_mean"),
        ("estimators", "history_mean"),
        ("tasks", "fashion_mnist"),
        ("partitions", "label_groups"),
        ("arrivals", "event_driven"),
    ],
)
def test_list_names_what_there_is(what, name):
    done = CliRunner().invoke(app, ["list", what])  # in this process: that is much faster
    assert done.exit_code == 0
    assert name in done.output


def test_verbose_list_tells_needs_settings_and_citation(cli):
    code, out, _ = cli.run_here("list", "defenses", "--verbose")
    assert code == 0
    block = out[out.index("basgd") : out.index("catalyst")]
    words = " ".join(block.split())
    assert "needs the number of malicious clients, buffering" in words
    assert "settings malicious_share = 0.2 num_buffers = 0 rule = 'median'" in words
    assert 'from Yang, Li, "BASGD' in words


def test_verbose_list_tells_what_an_attack_knows_and_its_presets(cli):
    code, out, _ = cli.run_here("list", "attacks", "--verbose")
    assert code == 0
    words = " ".join(out[out.index("scaling  ") :].split())
    assert "knows its own client's data and model backdoor yes settings target_class = 0" in words
    assert "presets @paper: the settings above @stealth: factor = 1.0" in words
    assert 'from Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to backdoor' in words


@pytest.mark.slow
def test_preset_names_the_folder_the_result_and_the_table(cli):
    words = ("--defenses", "async_sgd", "--attacks", "scaling,scaling@stealth", "--workers", "1")
    done = cli("compare", "tiny.toml", *words, "--out", "both")
    assert done.returncode == 0, done.stderr
    folders = [cli.folder / "both" / f"async_sgd-{name}" for name in ("scaling", "scaling@stealth")]
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    assert [result["attack"] for result in results] == ["scaling", "scaling@stealth"]
    assert "scaling@stealth" in done.stdout
    page = (cli.folder / "both" / "report" / "index.html").read_text()
    assert "scaling@stealth" in page


def test_only_poisoned_uploads_count_as_malicious(cli):
    words = ("--attack", "gaussian", "--set", "malicious=3", "--set", "attack_from=20")
    result, everybody = run_for_json(cli, *words), run_for_json(cli, *words[:4])
    received = [r["uploads"]["malicious"]["received"] for r in (result, everybody)]
    assert 0 < received[0] < received[1]
    assert len(result["malicious_clients"]) == 3
    assert sum(result["uploads"][group]["received"] for group in ("honest", "malicious")) == 40


def test_uploads_and_steps_are_both_in_the_result(cli):
    words = ("--defense", "fed_buff", "--set", "defense.buffer_size=7")
    result = run_for_json(cli, *words)
    assert result["rounds"] == result["uploads"]["honest"]["received"] == 40
    assert result["steps"] == 5


@pytest.mark.parametrize(
    "command", ["run", "resume", "compare", "report", "table", "dashboard", "list"]
)
def test_help_shows_an_example(cli, command):
    code, out, _ = cli.run_here(command, "--help")
    assert code == 0
    assert f"Example: secureafl {command}" in out


def test_help_starts_without_torch(cli):
    cli.environment["PYTHONPROFILEIMPORTTIME"] = "1"
    assert "| torch" not in cli("--help").stderr
