"""What users see is what the docs say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import secureafl
from secureafl.aggregators import AGGREGATORS
from secureafl.attacks import ATTACKS
from secureafl.defenses import DEFENSES

ROOT = Path(__file__).parents[1]


def test_exported_names_exist_and_unknown_ones_are_refused():
    for name in secureafl.__all__:
        assert getattr(secureafl, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Defence'"):
        secureafl.Defence  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    code = "import secureafl, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def run_in_examples(cli, *words):
    environment = {**cli.environment, "PYTHONPATH": ""}
    words = ["run", *words, "--rounds", "30", "--clients", "5", "--json", "--quiet"]
    words += ["--data-dir", "embedded", "--out", str(cli.folder / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "secureafl", *words],
        cwd=ROOT / "examples",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (cli.folder / "out" / "result.json").read_text()


def test_example_defence_loads_from_outside_the_package(cli):
    words = ["--defense", "my_defense:NormBound", "--set", "defense.factor=3"]
    result = run_in_examples(cli, *words, "--attack", "gaussian")
    assert '"defense": "my_defense"' in result
    assert '"norm"' in result, "the loud attack must have been refused"


def test_example_attack_loads_from_outside_the_package_with_its_preset(cli):
    words = ["--attack", "my_attack:Against@stealth", "--defense", "async_sgd"]
    assert '"attack": "my_attack@stealth"' in run_in_examples(cli, *words)


@pytest.mark.parametrize("example", ["my_defense.py", "my_attack.py"])
def test_example_is_as_short_as_promised(example):
    code = (ROOT / "examples" / example).read_text()
    body = code[code.index("@dataclass") :]
    assert len(body.splitlines()) <= 40


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        *(("coverage.md", kind) for kind in DEFENSES),
        *(("attacks.md", kind) for kind in ATTACKS if kind != "none"),
        *(("aggregators.md", kind) for kind in AGGREGATORS),
    ],
)
def test_documentation_names_everything_there_is(page, kind):
    assert f"| `{kind}` |" in (ROOT / "docs" / page).read_text()


@pytest.mark.parametrize("path", sorted(ROOT.glob("experiments/**/*.toml")), ids=os.path.basename)
def test_experiment_files_are_valid(path):
    from secureafl import read_experiment
    from secureafl.sweep.grid import read_grid
    from secureafl.toml import read_toml

    found = (
        read_grid(path).cells().values() if "axes" in read_toml(path) else [read_experiment(path)]
    )
    assert all(experiment.rounds > 0 for experiment in found)
