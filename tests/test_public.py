"""What users see is what the docs say."""

import ast
import doctest
import inspect
import operator
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import secureafl
from secureafl.aggregators import AGGREGATORS
from secureafl.attacks import ATTACKS
from secureafl.cli.reproduce import _write_page
from secureafl.defenses import DEFENSES
from secureafl.reproduce.plan import Request

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


@pytest.mark.parametrize(
    ("script", "page"), [("first_run_page.py", "first-run"), ("defences_page.py", "defences")]
)
def test_page_of_results_comes_from_them(script, page):
    command = [sys.executable, ROOT / "scripts" / script, ROOT / "docs/results" / page]
    made = subprocess.run(command, capture_output=True, check=True)
    assert made.stdout == (ROOT / f"docs/results/{page}.md").read_bytes()


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """Raw results, unpacked: main, attacks, robustness, tasks."""
    folder = tmp_path_factory.mktemp("cells")
    for name in ("fashion-mnist/main", "attacks", "robustness", "tasks"):
        with tarfile.open(ROOT / f"docs/results/{name}.tar.gz") as packed:
            packed.extractall(folder, filter="data")
    return folder


def made_by(script, *words):
    """What a script prints."""
    command = [sys.executable, ROOT / "scripts" / script, *words]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def test_tables_of_robustness_come_from_their_cells(cells):
    text = (ROOT / "docs/robustness.md").read_text()
    across = ("--across", "async_sgd,secure_afl,secure_afl_hardened")
    rows = made_by("seeds_table.py", cells / "main", *across).splitlines()
    for grid in ("share", "delay", "skew", "ablation"):
        rows += made_by("seeds_table.py", cells / "robustness" / grid, "--names").splitlines()
    others = ("min_max@std", "min_max@sign", "alie@strong", "min_sum", "inner_product")
    found = made_by("seeds_table.py", cells / "attacks", *across).splitlines()
    rows += [row for row in found if row.strip("| ").split(" | ")[0] in others]
    assert len(rows) > 40
    assert [row for row in rows if row not in text] == []


def test_page_of_tasks_comes_from_its_cells(cells):
    made = made_by("tasks_page.py", cells / "tasks")
    assert made == (ROOT / "docs/results/tasks.md").read_text()


def test_page_of_attacks_comes_from_its_cells(cells, tmp_path):
    for folder in ("main", "attacks"):
        shutil.copytree(cells / folder, tmp_path / "all", dirs_exist_ok=True)
    made = made_by("attacks_page.py", tmp_path / "all")
    assert made == (ROOT / "docs/results/attacks.md").read_text()


@pytest.mark.parametrize("name", ["main", "variants", "alpha", "estimation-error"])
def test_the_paper_s_tables_come_from_their_cells(name, tmp_path):
    folder = ROOT / "docs/results/fashion-mnist"
    with tarfile.open(folder / f"{name}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    request = Request(name, seeds="0-2", device="cuda", data_dir="data/fashion-mnist")
    _write_page(request, tmp_path / name, quiet=True)
    for suffix in ("md", "html"):
        made = (tmp_path / name / f"report/index.{suffix}").read_text()
        assert made == (folder / f"{name}.{suffix}").read_text()


def test_page_of_defences_has_all_of_them():
    text = (ROOT / "docs/results/defences.md").read_text()
    for attack in ("none", "sign_flip", "gaussian", "scaling"):
        others = DEFENSES.keys() - {"secure_afl_hardened"}  # docs/robustness.md is about that
        assert all(f"| {defense} | {attack} |" in text for defense in others)


def test_links_of_the_docs_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("path", sorted(ROOT.glob("experiments/**/*.toml")), ids=os.path.basename)
def test_experiment_files_are_valid(path):
    from secureafl import read_experiment
    from secureafl.sweep.grid import read_grid
    from secureafl.toml import read_toml

    found = (
        read_grid(path).cells().values() if "axes" in read_toml(path) else [read_experiment(path)]
    )
    assert all(experiment.rounds > 0 for experiment in found)
