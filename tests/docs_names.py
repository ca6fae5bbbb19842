"""What names in code there are, for the test that the docs use no others."""

import ast
import dataclasses
import functools
import importlib
import re
import tomllib
from pathlib import Path

import click
import torch
import typer

from secureafl.aggregators import AGGREGATORS
from secureafl.arrivals import ARRIVALS
from secureafl.attacks import ATTACKS
from secureafl.cli.app import app
from secureafl.defenses import DEFENSES
from secureafl.deployment.options import Options
from secureafl.estimators import ESTIMATORS
from secureafl.experiment import Experiment
from secureafl.optimizers import OPTIMIZERS
from secureafl.partitions import PARTITIONS
from secureafl.presentation.style import MEANINGS
from secureafl.tasks import TASKS

ROOT = Path(__file__).parents[1]
KINDS = {
    "aggregator": AGGREGATORS,
    "arrivals": ARRIVALS,
    "attack": ATTACKS,
    "defense": DEFENSES,
    "estimator": ESTIMATORS,
    "inner": AGGREGATORS,
    "partition": PARTITIONS,
    "server_optimizer": OPTIMIZERS,
    "task": TASKS,
}


@functools.cache
def commands():
    """The options of every command, by its words: `keys make`."""
    found = {"": {"--help", "--version"}}

    def walk(command, words):
        if isinstance(command, click.Group):
            for name, below in command.commands.items():
                walk(below, [*words, name])
        found[" ".join(words)] = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}

    walk(typer.main.get_command(app), [])
    return found


@functools.cache
def make_targets():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@functools.cache
def extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


@functools.cache
def words():
    """Identifiers and words of short texts in the code, of experiment files, commands, columns."""
    found = {*extras(), *columns(), *(word for name in commands() for word in name.split())}
    for folder in ("src", "examples", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                found |= _words_of(node)
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"def (test_\w+)", path.read_text()))
    for path in (ROOT / "experiments").rglob("*.toml"):
        found |= {path.stem, *re.findall(r"[A-Za-z_]\w*", path.read_text())}
    return found


def columns():
    """Names that are put together: of columns in `secureafl results`, of Prometheus' counters."""
    yield from (name.replace(".", "_") for name in settings())
    for metric in MEANINGS:
        yield from (f"{metric}_{which}" for which in ("late_mean", "late_std", "last"))
    yield from ("honest_accepted", "malicious_accepted")
    yield from (f"{name}_total" for name in re.findall(r'"(secureafl_\w+)"', package_text()))


def _words_of(node):
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.arg | ast.keyword):
        return {node.arg}
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.alias):
        return set(node.name.split("."))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return set(re.findall(r"\w+", node.value)) if len(node.value) < 100 else set()
    return set()


@functools.cache
def settings():
    """Every setting under its dotted name: `training.privacy.clip`, `defense.alpha`."""
    found = set(_fields(Experiment, "")) | set(_fields(Options, "deployment."))
    for part, table in KINDS.items():
        for cls in table.values():
            found |= set(_fields(cls, f"{part}."))
    return found


def _fields(cls, prefix):
    for field in dataclasses.fields(cls):
        yield f"{prefix}{field.name}"
        made = field.default_factory
        inner = made if isinstance(made, type) and field.name not in KINDS else None
        if inner and dataclasses.is_dataclass(inner):
            yield from _fields(inner, f"{prefix}{field.name}.")


def is_code_object(dotted):
    """Whether a dotted name leads to something, from a module, a class or an argument."""
    first, *rest = dotted.split(".")
    owners = [*classes().get(first, []), *arguments().get(first, [])]
    if any(_reached(cls, rest) for cls in owners) or _resolved(f"secureafl.{dotted}"):
        return True
    if first in words() and _reached(torch.Tensor, rest):  # `weights.new_zeros`
        return True
    foreign = {"nn": "torch.nn", "torch": "torch", "numpy": "numpy", "secureafl": "secureafl"}
    return first in foreign and _resolved(".".join([foreign[first], *rest]))


@functools.cache
def classes():
    """The classes of the package, by name; several may share one."""
    found = {}
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        for name in names:
            module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
            found.setdefault(name, []).append(getattr(_imported(module), name))
    return found


@functools.cache
def arguments():
    """The classes that arguments of this name have in the package: `arrival` is an Arrival."""
    found = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.arg) and node.annotation is not None:
                for word in re.findall(r"\w+", ast.unparse(node.annotation)):
                    found.setdefault(node.arg, set()).update(classes().get(word, []))
    return found


def _resolved(dotted):
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        module = _imported(".".join(parts[:length]))
        if module is not None:
            return _reached(module, parts[length:])
    return False


@functools.cache
def _imported(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _reached(thing, names):
    for name in names:
        fields = getattr(thing, "__annotations__", {})
        if not hasattr(thing, name):
            return name in fields and name == names[-1]
        thing = getattr(thing, name)
    return True


@functools.cache
def files():
    """Files and folders of the repository, as paths from its root."""
    kept = ("src", "tests", "docs", "scripts", "examples", "experiments")
    paths = [path for folder in kept for path in (ROOT / folder).rglob("*")]
    paths = [*paths, *(path for path in ROOT.iterdir() if path.is_file())]
    return {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}


@functools.cache
def package_text():
    """The code of the package, for names of files that it writes."""
    suffixes = (".py", ".html", ".md", ".toml")
    paths = (path for path in (ROOT / "src").rglob("*") if path.suffix in suffixes)
    return "\n".join(path.read_text() for path in paths)
