"""What is declared is what is imported, and an installed wheel works anywhere."""

import ast
import datetime
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import secureafl

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imported_by(node):
    """The names of modules that a syntax tree imports when it runs, also by `import_module`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        yield from (a.value for a in node.args if isinstance(getattr(a, "value", None), str))
    for child in ast.iter_child_nodes(node):
        if not is_type_checking(child):
            yield from imported_by(child)


def requirements(lines):
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def declared():
    extras = PROJECT["project"]["optional-dependencies"]
    lines = [line for name, lines in extras.items() if name != "all" for line in lines]
    return requirements([*PROJECT["project"]["dependencies"], *lines])


def test_every_package_that_is_imported_is_declared_and_the_other_way_round():
    modules = {
        name.partition(".")[0]
        for path in SOURCE.rglob("*.py")
        for name in imported_by(ast.parse(path.read_text()))
    }
    foreign = modules - sys.stdlib_module_names - {"secureafl"}
    homes = importlib.metadata.packages_distributions()
    # A module whose package is not installed here is looked for under its own name.
    homes.setdefault("mlflow", ["mlflow-skinny"])
    used = {canonicalize_name(homes.get(name, [name])[0]) for name in foreign}
    assert used == set(declared())


def test_extra_all_has_every_other_extra_but_the_clients_of_services():
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == set(extras) - {"all", "mlflow", "wandb"}


def test_constraints_pin_a_version_of_all_that_is_declared():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = requirements(line for line in lines if not line.startswith("#"))
    wanted = declared() | requirements(PROJECT["dependency-groups"]["dev"])
    assert wanted.keys() - pins.keys() == set()
    for name, requirement in wanted.items():
        (pin,) = pins[name].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), str(requirement)


def test_newest_section_of_the_changelog_is_this_version_with_its_date():
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.findall(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", text, re.MULTILINE)
    assert found[0][0] == secureafl.__version__
    dates = [datetime.date.fromisoformat(date) for _, date in found]
    assert dates == sorted(dates, reverse=True)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["date-released"]) == (found[0][0], dates[0])


def test_citation_has_what_its_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == PROJECT["project"]["license"]
    paper = citation["preferred-citation"]
    for work in (citation, paper):
        assert work["title"].startswith("SecureAFL")
        assert work["authors"]
    assert citation["message"]
    assert re.fullmatch(r"10\.\d{4,}/\S+", paper["doi"])
    assert all(person["family-names"] and person["given-names"] for person in paper["authors"])


def build_wheel(folder):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", ROOT]
    subprocess.run([*command, "--wheel-dir", folder], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def fresh_environment(folder, wheel):
    """An environment with the wheel, and the dependencies of this one; nothing is downloaded."""
    venv.create(folder, with_pip=False)
    scheme = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", scheme))
    command = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install"]
    subprocess.run([*command, "--no-deps", "--no-index", wheel], check=True, capture_output=True)
    # .pth files in these folders, such as that of an editable install, are not read.
    folders = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(folders))
    return site


def run_in(folder, *command):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_in_a_fresh_environment_runs_in_another_folder(tmp_path):
    wheel = build_wheel(tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as packed:
        inside = set(packed.namelist())
    files = [path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {str(path.relative_to(SOURCE)) for path in files} <= inside
    shipped = (path.relative_to(ROOT) for path in (ROOT / "experiments").rglob("*.toml"))
    assert {f"secureafl/{path}" for path in shipped} <= inside
    assert {Path(name).suffix for name in inside} >= {".cu", ".css", ".html", ".json", ".gz", ".js"}

    site, elsewhere = fresh_environment(tmp_path / "env", wheel), tmp_path / "elsewhere"
    elsewhere.mkdir()
    binary = tmp_path / "env/bin"
    code = "import secureafl; print(secureafl.__version__, secureafl.__file__)"
    version, where = run_in(elsewhere, binary / "python", "-c", code).split()
    assert version == secureafl.__version__
    assert Path(where).is_relative_to(site)
    command = ["run", "--clients", "5", "--rounds", "20", "--data-dir", "embedded"]
    result = run_in(elsewhere, binary / "secureafl", *command, "--out", "here", "--json", "--quiet")
    assert json.loads(result)["rounds"] == 20
    run_in(elsewhere, binary / "secureafl", "report", "here")
    command = ["run", "quick", "--rounds", "5", "--out", "quick", "--json", "--quiet"]
    assert json.loads(run_in(elsewhere, binary / "secureafl", *command))["attack"] == "gaussian"
    assert "<style>" in (elsewhere / "here/report/index.html").read_text()
