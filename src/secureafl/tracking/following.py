"""Callbacks are told of runs from their folders, wherever these are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from secureafl.core.errors import ConfigError, RunError
from secureafl.core.events import Event
from secureafl.runs.events import parse
from secureafl.runs.layout import EVENTS, RESULT, is_run, read_json
from secureafl.runs.tail import Tail
from secureafl.tracking.callback import Callback

if TYPE_CHECKING:
    from secureafl.experiment import Experiment

_METHODS = ("on_start", "on_event", "on_end")


def require_callbacks(given: Any) -> Sequence[Callback]:
    """The callbacks, if that is what they are."""
    if not isinstance(given, list | tuple):
        raise ConfigError(f"callbacks = {given!r}: give a list, such as [{_name(given)}]")
    for callback in given:
        if isinstance(callback, type):
            raise ConfigError(f"callbacks: {callback.__name__} is a class; give {_name(callback)}")
        if not all(callable(getattr(callback, method, None)) for method in _METHODS):
            raise ConfigError(f"callbacks: {_name(callback)} is no secureafl.Callback; derive it")
    return given


def _name(callback: Any) -> str:
    return f"{(callback if isinstance(callback, type) else type(callback)).__name__}()"


class Following:
    """Tells callbacks what is new in run folders; those that were finished before are left out.

    A callback that fails is told no more, which `warn` is told once; the runs do not notice.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        runs: Mapping[Path, Experiment],
        warn: Callable[[str], object],
    ) -> None:
        self._callbacks, self._warn = [*callbacks], warn
        self._left = {path: run for path, run in runs.items() if not (path / RESULT).is_file()}
        self._open: dict[Path, _Events] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for path in [*self._open]:
            self.look(path)
        for path in self._open:  # neither finished now
            self._tell("on_end", path, None)

    def look(self, path: Path) -> None:
        """Tell what has happened in a run since the last look."""
        if not self._callbacks or path not in self._left or not is_run(path):
            return
        finished = (path / RESULT).is_file()  # asked first: then every event is there to be read
        if path not in self._open:
            self._open[path] = _Events(path)
            self._tell("on_start", path, self._left[path])
        try:
            for event in self._open[path].new():
                self._tell("on_event", path, event)
            result = read_json(path / RESULT) if finished else None
        except RunError as error:
            self._warn(f"warning: callbacks are told no more of {path.name}: {error}")
            finished, result = True, None
        if finished:
            del self._open[path], self._left[path]
            self._tell("on_end", path, result)

    def _tell(self, method: str, *values: Any) -> None:
        for callback in [*self._callbacks]:
            try:
                getattr(callback, method)(*values)
            except Exception as error:  # whatever a library of somebody else's raises
                self._callbacks.remove(callback)
                why = " ".join(f"{type(error).__name__}: {error}".split())
                name = type(callback).__name__
                self._warn(f"warning: {name} failed and is told no more of this: {why}")


class _Events:
    """The events of a growing run, each once."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path / EVENTS)
        self._place = self._told = 0

    def new(self) -> Iterator[Event]:
        more = True
        while more:
            lines, again, more, _ = self._tail.read()
            # A run that was cut back to its checkpoint does the same rounds once more.
            self._place = 0 if again else self._place
            for event in parse(lines).events:
                self._place += 1
                if self._place > self._told:
                    self._told = self._place
                    yield event
