import gzip
from pathlib import Path

import pytest

from secureafl.cli.app import main
from secureafl.tasks.fashion_mnist import EMBEDDED


def test_missing_file_is_named(cli):
    assert "nowhere.toml: no such file" in cli.refused("run", "nowhere.toml")


def test_folder_instead_of_a_file_is_refused(cli):
    assert ".: a folder; give a TOML file" in cli.refused("run", ".")
    (cli.folder / "made").mkdir()
    (cli.folder / "made" / "experiment.toml").write_text("")
    assert "go on with 'secureafl resume made'" in cli.refused("run", "made")


def test_bad_toml_is_refused_with_its_line(cli):
    (cli.folder / "bad.toml").write_text("rounds = \n")
    assert "line 1" in cli.refused("run", "bad.toml")


@pytest.mark.parametrize("command", ["run", "compare", "serve"])
def test_grid_instead_of_an_experiment_is_told_its_command(cli, command):
    (cli.folder / "grid.toml").write_text("title = 'two'\n[axes]\nseed = [0, 1]\n")
    assert "secureafl sweep grid.toml" in cli.refused(command, "grid.toml")


@pytest.mark.parametrize(
    "words", ["run no", "sweep no", "resume no", "report no", "results --runs no", "dashboard no"]
)
def test_path_that_leads_nowhere_is_wrong_input_for_every_command(cli, words):
    assert cli.run_here(*words.split())[0] == 2


def test_binary_file_is_refused(cli):
    (cli.folder / "bad.toml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in cli.refused("run", "bad.toml")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("defense.alpah=0.7", "unknown setting 'defense.alpah'; did you mean 'alpha'?"),
        ("roundz=3", "unknown setting 'roundz'; did you mean 'rounds'?"),
        ("defense=secure_alf", "unknown defense 'secure_alf'; did you mean 'secure_afl'?"),
        ("defense.alpha=1.7", "defense.alpha = 1.7: give a share above 0, at most 1"),
        ("defense.alpha=true", "defense.alpha = True: give a number"),
        ("defense.alpha=nan", "defense.alpha = nan: give a number"),
        ("defense.estimator.buffer_size=0", "defense.estimator.buffer_size = 0: give 1 or more"),
        ("defense.rejected=burn", "choose one of 'keep', 'forget', 'reference'"),
        ("rounds=many", "rounds = 'many': give a whole number"),
        ("rounds=0", "rounds = 0: give 1 or more"),
        ("rounds=2.5", "rounds = 2.5: give a whole number"),
        ("seed=-1", "seed = -1: give 0 or more"),
        ("malicious=7", "malicious = 7: give at most the number of clients, 6"),
        ("malicious=1.5", "malicious = 1.5: give a share from 0 to 1"),
        ("malicious=-1", "malicious = -1"),
        ("clients=91", "only 90 training samples; give that many or fewer"),
        ("task=no_such_module:Task", "No module named 'no_such_module'"),
        ("defense=reference.tiny_task:TinyTask", "it lacks init, step"),
        ("defense=json:JSONDecoder", "make it a frozen dataclass"),
        ("rounds.deep=3", "'rounds' is a plain value, not a table"),
        ("task=3", "task = 3: give a name"),
        ("training=3", "training = 3: give a table of settings"),
        ("training.learning_rate=-0.1", "learning_rate = -0.1: give a rate above 0"),
        ("attack.target_class=3", "target_class = 3: there are 3 classes"),
        ("attack.trigger_side=7", "trigger_side = 7: the images are 6 x 6"),
        ("nonsense", "--set nonsense: give KEY=VALUE"),
    ],
)
def test_bad_setting_is_refused_with_its_name_value_and_remedy(
    cli, given, said, monkeypatch, capsys
):
    # In this process: a new one for each would take minutes.
    words = ["run", "tiny.toml", "--defense", "secure_afl", "--attack", "scaling"]
    words += ["--set", given, "--out", "out"]
    monkeypatch.chdir(cli.folder)
    monkeypatch.setattr("sys.argv", ["secureafl", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    printed = capsys.readouterr()
    assert exit_.value.code == 2
    assert said in printed.err
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert not (cli.folder / "out").exists()


def test_no_gpu_is_said_where_there_is_none(cli):
    import torch

    if torch.cuda.is_available():
        assert cli("run", "tiny.toml", "--device", "cuda").returncode == 0
    else:
        assert "torch sees no GPU" in cli.refused("run", "tiny.toml", "--device", "cuda")


def test_unwritable_place_is_refused(cli):
    # Root may write anywhere, but nobody can make a folder below a file or in /proc.
    (cli.folder / "file").write_text("mine")
    for place in ("file/run", "/proc/run"):
        assert "cannot be written" in cli.refused("run", "tiny.toml", "--out", place)
    assert (cli.folder / "file").read_text() == "mine"


def test_existing_folder_is_refused_and_left_alone(cli):
    (cli.folder / "out").mkdir()
    (cli.folder / "out" / "thesis.tex").write_text("all of it")
    assert "already there" in cli.refused("run", "tiny.toml", "--out", "out")
    assert [path.name for path in (cli.folder / "out").iterdir()] == ["thesis.tex"]
    assert (cli.folder / "out" / "thesis.tex").read_text() == "all of it"


def test_second_run_into_the_same_folder_is_refused(cli):
    assert cli.run_here("run", "tiny.toml", "--out", "out", "--quiet") == (0, "", "")
    before = {path.name: path.read_bytes() for path in (cli.folder / "out").iterdir()}
    assert "already there" in cli.refused("run", "tiny.toml", "--out", "out")
    assert {path.name: path.read_bytes() for path in (cli.folder / "out").iterdir()} == before


def _damage_header(path: Path) -> None:
    path.write_bytes(gzip.compress(b"\0\0\x08\x03" + b"\xff" * 40))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def _flip_a_byte(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", [_damage_header, _cut, _flip_a_byte, Path.unlink])
def test_damaged_data_file_is_named(cli, damage):
    copy = cli.folder / "data"
    copy.mkdir()
    for path in EMBEDDED.glob("*.gz"):
        (copy / path.name).write_bytes(path.read_bytes())
    damage(copy / "train-images-idx3-ubyte.gz")
    words = ("run", "--data-dir", "data", "--rounds", 5, "--clients", 3, "--out", "out")
    assert "train-images-idx3-ubyte" in cli.refused(*words)
    assert not (cli.folder / "out").exists()


def test_resuming_what_is_no_run_is_refused(cli):
    assert "no such folder" in cli.refused("resume", "nowhere")
    (cli.folder / "empty").mkdir()
    assert "not a run folder" in cli.refused("resume", "empty")


def test_reporting_on_what_is_no_run_is_refused(cli):
    assert "no such folder" in cli.refused("report", "nowhere")
    (cli.folder / "empty").mkdir()
    assert "no run folder in it" in cli.refused("report", "empty")


# What people get wrong, and what they are told: the remedy, or where the mistake is.
MISTAKES = {
    "rn": "No such command 'rn'. Did you mean 'run'? (see 'secureafl --help')",
    "list dragons": "'dragons' is not one of 'defenses', 'attacks'",
    "list": "Missing argument 'WHAT'. Choose from: defenses, attacks",
    "join": "Missing option '--server' (see 'secureafl join --help')",
    "run --roundz 3": "Did you mean one of: '--out', '--rounds'?",
    "run --rounds ten": "'--rounds': 'ten' is not a valid integer (see 'secureafl run --help')",
    "run tiny.toml --malicious 0.2": "'--malicious'; use --set malicious=VALUE (see",
    "compare tiny.toml --local-steps 3": "use --set training.local_steps=VALUE",
    "run tiny.toml --set rounds 5": "argument (5); give settings as --set KEY=VALUE",
    "run quikc": "no such file, and no experiment that ships; did you mean 'quick'?",
    "run experiments/quikc.toml": "did you mean 'quick'?",
    "run tiny.toml --attack sign-flip": "unknown attack 'sign-flip'; did you mean 'sign_flip'?",
    "run tiny.toml --task mnist": "unknown task 'mnist'; known: fashion_mnist, cifar10",
    "run tiny.toml --set learning_rate=1": "did you mean 'training.learning_rate'?",
    "run tiny.toml --set factor=1": "did you mean 'attack.factor'?",
    "run tiny.toml --set training.lr=1": "known: batch_size, learning_rate",
    "run tiny.toml --set malicious=20%": "malicious = '20%': give a number",
    "run tiny.toml --device gpu": "choose auto, cpu, cuda, or one GPU of several, such as cuda:1",
    "run tiny.toml --task nowhere:Task": "no nowhere.py in {folder}, where the command runs, nor",
    "run tiny.toml --defense own.py:Mine": "name it without .py, 'own:Mine'",
    "run tiny.toml --defense own:Mime": "'own' has no attribute 'Mime'; did you mean 'Mine'?",
    "run tiny.toml --defense own:Mine": "it lacks init, step",
    "run tiny.toml --defense own:Loose": "make it a frozen dataclass, its fields are settings",
    "run tiny.toml --defense raising:X": "ZeroDivisionError: division by zero (raising.py, line 2)",
    "run tiny.toml --defense unfinished:X": "'(' was never closed (unfinished.py, line 1)",
    "compare tiny.toml --defenses kardan": "unknown defense 'kardan'; did you mean 'kardam'?",
    "sweep grid.toml --seeds 4-0": "seeds '4-0': give them as 0-4 or 0,1,2",
    "sweep grid.toml --engine dask": "'dask' is not one of 'local', 'ray', 'slurm'",
    "sweep tiny.toml": "one experiment, no grid; run it with 'secureafl run tiny.toml'",
    "run grid.toml": "a grid of experiments; run it with 'secureafl sweep grid.toml'",
    "resume tiny.toml": "not a run folder (no experiment.toml); give a folder that 'secureafl run'",
    "export tiny.toml model.pt": "give a folder that 'secureafl run' has made",
    "clients nowhere": "nowhere: no such folder; give a folder that",
    "report nowhere": "no such folder; give a run folder, or a folder of them",
    "reproduce mian": "cannot reproduce 'mian'; did you mean 'main'?",
    "bench --clients x": "give whole numbers from 1 to 1,000,000 with commas between",
    "theory --clients 2": "2 is not in the range x>=5",
    "serve tiny.toml --address here": "give HOST:PORT, such as 127.0.0.1:8000",
    "join --server here --insecure": "give HOST:PORT, such as 127.0.0.1:8000",
    "serve tiny.toml --address 0.0.0.0:80": "give --certificates (see 'secureafl keys ca')",
}
OWN = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Mine:
    size: int = 1


class Loose:
    pass
"""


@pytest.mark.parametrize(("words", "said"), MISTAKES.items(), ids=MISTAKES)
def test_mistake_ends_in_one_line_with_its_remedy(cli, words, said, monkeypatch):
    monkeypatch.syspath_prepend(cli.folder)
    (cli.folder / "grid.toml").write_text("[axes]\nseed = [0, 1]\n")
    (cli.folder / "own.py").write_text(OWN)
    (cli.folder / "raising.py").write_text("size = 0\n1 / size\n")
    (cli.folder / "unfinished.py").write_text("f(\n")
    before = {path.name for path in cli.folder.iterdir()}
    code, out, err = cli.run_here(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said.format(folder=cli.folder) in err
    assert {path.name for path in cli.folder.iterdir()} - {"__pycache__"} == before
