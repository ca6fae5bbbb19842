"""What users see is what the docs say."""

import ast
import doctest
import inspect
import operator
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import secureafl
from secureafl.aggregators import AGGREGATORS
from secureafl.attacks import ATTACKS
from secureafl.defenses import DEFENSES

ROOT = Path(__file__).parents[1]


FOLDERS = {name for name in secureafl.__all__ if inspect.ismodule(getattr(secureafl, name))}
PUBLIC = [
    *(f"secureafl.{name}" for name in sorted({*secureafl.__all__} - FOLDERS)),
    *(f"secureafl.testing.{name}" for name in secureafl.testing.__all__),
]


def test_exported_names_exist_and_unknown_ones_are_refused():
    for name in secureafl.__all__:
        assert getattr(secureafl, name).__name__.removeprefix("secureafl.") == name
    assert set(secureafl.__all__) < set(dir(secureafl))
    with pytest.raises(AttributeError, match="has no attribute 'Defence'"):
        secureafl.Defence  # noqa: B018


def test_type_checkers_are_told_of_the_same_names():
    tree = ast.parse(Path(secureafl.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.asname for line in block.body for alias in line.names}
    assert told == set(secureafl.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_has_examples_that_hold(name):
    thing = operator.attrgetter(name.removeprefix("secureafl."))(secureafl)
    given = {"secureafl": secureafl, "torch": torch}
    examples = doctest.DocTestParser().get_doctest(thing.__doc__, given, name, None, 0)
    assert examples.examples, "every public name shows how it is used"
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=said.append)
    assert not said, "".join(said)


def test_every_public_name_has_its_place_in_the_reference():
    pages = (page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    named = re.findall(r"^\.\. auto\w+:: (\S+)$", "\n".join(pages), re.MULTILINE)
    assert sorted(named) == [f"secureafl.{name}" for name in secureafl.__all__]


def test_importing_the_package_does_not_import_torch():
    code = "import secureafl, sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_everything_public_works_without_the_tools_for_types():
    code = (
        "import sys; sys.modules |= {'jaxtyping': None, 'beartype': None}; import secureafl;"
        "[getattr(secureafl, name) for name in secureafl.__all__];"
        "secureafl.testing.check_defense(secureafl.defenses.AsyncSgd())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def run_in_examples(cli, *words):
    environment = {**cli.environment, "PYTHONPATH": ""}
    words = ["run", *words, "--rounds", "30", "--clients", "5", "--json", "--quiet"]
    words += ["--set", "evaluation.every=30", "--set", "evaluation.late=1"]
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


def test_examples_load_from_outside_the_package_with_settings_and_a_preset(cli):
    words = ["--defense", "my_defense:NormBound", "--set", "defense.factor=3"]
    result = run_in_examples(cli, *words, "--attack", "my_attack:Against@stealth")
    assert '"defense": "my_defense:NormBound"' in result
    assert '"attack": "my_attack:Against@stealth"' in result


@pytest.mark.slow
def test_example_defence_refuses_a_loud_attack(cli):
    words = ["--defense", "my_defense:NormBound", "--set", "defense.factor=3"]
    assert '"norm"' in run_in_examples(cli, *words, "--attack", "gaussian")


EXAMPLES = ("my_defense.py", "my_attack.py", "my_task.py")
PAGES = ("add-a-defense.md", "add-an-attack.md", "add-a-task.md")


def imported(code):
    """Modules of this package that are imported from."""
    found = re.findall(r"^\s*(?:from|import) (secureafl[\w.]*)", code, re.MULTILINE)
    return {*found}


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_imports_from_nowhere_but_the_package_itself(example):
    assert imported((ROOT / "examples" / example).read_text()) == {"secureafl"}


@pytest.mark.parametrize("page", PAGES)
def test_page_for_plug_ins_names_what_is_public(page):
    text = (ROOT / "docs" / page).read_text()
    assert imported(text) <= {"secureafl", "secureafl.testing"}
    named = re.findall(r"\bsecureafl\.(\w+(?:\.\w+)*)", text)
    assert named
    for name in named:
        operator.attrgetter(name)(secureafl)


def test_examples_keep_the_contract(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from my_attack import Against
    from my_defense import NormBound
    from my_task import Spirals

    secureafl.testing.check_defense(NormBound())
    secureafl.testing.check_attack(Against())
    secureafl.testing.check_task(Spirals())


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
