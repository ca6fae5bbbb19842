"""Checks the shapes in signatures while tests run.

`Float[Tensor, "n d"]` is read by people and by the type checker; the package itself runs without
jaxtyping. Here each function is wrapped as its module is imported: arguments and result must fit
their annotations, a letter must mean one size throughout a call, and the fields of named tuples
(`Arrival`, `Decision`, a plug-in's `State`) count too. So that the suite hardly slows down, of the
calls of a function in a test the first few and every 256th of the rest are looked at, and shapes
that passed once are not held against the annotations again.
"""

import ast
import functools
import inspect
import re
import sys
import typing
from importlib.machinery import PathFinder, SourceFileLoader
from types import FunctionType

import numpy as np
from beartype import BeartypeConf
from beartype.door import is_bearable
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor

_CHECKED = re.compile(
    r"secureafl\.(core|linalg|kernels|aggregators|estimators|optimizers|defenses|attacks|runtime)\."
)
_SHAPED = re.compile(r"\[(Tensor|np\.ndarray),|\b(State|Notes|Arrival|Decision)\b")
_FIRST, _EVERY = 4, 256  # calls in a test
_calls: dict[FunctionType, int] = {}
_CONF = BeartypeConf(is_pep484_tower=True)  # a whole number passes for a float


class ShapeError(TypeError):
    """An argument or a result does not fit its annotation."""


def install() -> None:
    """Check every module of the package's inner layers that is imported from now on."""
    sys.meta_path.insert(0, _Finder)


def begin_test() -> None:
    """Look at the first calls of every function again."""
    _calls.clear()


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if _CHECKED.match(name) else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        classes = [c for c in vars(module).values() if isinstance(c, type)]
        for owner in [module, *(c for c in classes if c.__module__ == module.__name__)]:
            for name, value in list(vars(owner).items()):
                own = isinstance(value, FunctionType) and value.__module__ == module.__name__
                if own and not getattr(owner, "_is_protocol", False) and _mentions_shapes(value):
                    setattr(owner, name, checked(value))


def _mentions_shapes(function):
    return any(_SHAPED.search(str(hint)) for hint in function.__annotations__.values())


def checked(function):
    """The function, with its arguments and its result held against their annotations."""
    passed = set()

    @functools.wraps(function)
    def call(*args, **kwargs):
        found = function(*args, **kwargs)
        number = _calls[function] = _calls.get(function, 0) + 1
        if number > _FIRST and number % _EVERY:
            return found
        form = _form((*args, *kwargs, *kwargs.values(), found))
        if form not in passed:
            _verify(function, args, kwargs, found)
            passed.add(form)
        return found

    return call


def _form(value):
    """All of a value that its annotation can speak of, hashable."""
    kind = type(value)
    if kind is Tensor or kind is np.ndarray:
        return value.shape, value.dtype
    if issubclass(kind, tuple):
        return kind, *[_form(part) for part in value]
    return kind


def _verify(function, args, kwargs, found):
    hints = _hints(function)
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    with jaxtyped("context"):
        for name, value in given.items():
            _fit(value, hints.get(name, typing.Any), f"{function.__qualname__}: {name}")
        _fit(found, hints.get("return", typing.Any), f"{function.__qualname__}: its result")


def _fit(value, hint, where):
    parts = typing.get_args(hint)
    if hasattr(value, "_fields") and hint in type(value).__mro__:
        hints = _hints(type(value))
        for name, part in zip(value._fields, value, strict=True):
            _fit(part, hints.get(name, typing.Any), f"{where}.{name}")
    elif typing.get_origin(hint) is tuple and len(parts) == len(value):
        for number, (part, own) in enumerate(zip(value, parts, strict=True)):
            _fit(part, own, f"{where}[{number}]")
    elif _has_shape(hint) and not is_bearable(value, hint, conf=_CONF):
        raise ShapeError(f"{where} is {_described(value)}, not {_described(hint)}")


def _has_shape(hint):
    """Whether it speaks of arrays; all else is for the type checker."""
    own = isinstance(hint, type) and issubclass(hint, AbstractArray)
    return own or any(map(_has_shape, typing.get_args(hint)))


def _described(value):
    if isinstance(value, Tensor | np.ndarray):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return getattr(value, "__name__", repr(value))


@functools.cache
def _hints(thing):
    """Annotations of a function or a named tuple."""
    return typing.get_type_hints(thing, _scope(thing.__module__))


@functools.cache
def _scope(name):
    """The names of a module, with those that only type checkers import."""
    module = sys.modules[name]
    scope = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__file__, "exec"), scope)
    return scope
