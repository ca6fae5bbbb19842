"""The run folder: the only place a run leaves anything, and all that reports read.

    experiment.toml         every setting
    provenance.json         versions, commit, hardware, seed; one entry per session
    holdings.json           how many samples of each class every client holds, if there are classes
    events.jsonl            append-only, one line per arrival and evaluation
    pace.jsonl              append-only, about one line a second: which round it was when
    checkpoint.safetensors  while the run is unfinished
    model.safetensors       final weights
    result.json             written last: its presence means the run is finished

Other files than these two appear whole or not at all, whenever the process is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from secureafl.core.errors import LockedError, RunError, SecureAflError
from secureafl.core.events import ArrivalEvent, EvaluationEvent, Event, ForgottenEvent

EXPERIMENT, PROVENANCE, EVENTS = "experiment.toml", "provenance.json", "events.jsonl"
HOLDINGS, PACE = "holdings.json", "pace.jsonl"
CHECKPOINT, MODEL, RESULT = "checkpoint.safetensors", "model.safetensors", "result.json"

_LAST_BYTES = 8192  # some dozens of events
_PACE_SECONDS = 1.0  # times are not in the events, whose bits must not depend on them


class Checkpoint(NamedTuple):
    """What a run needs to go on."""

    tensors: dict[str, np.ndarray]
    round: int
    events_bytes: int  # length of events.jsonl at that moment
    seconds: float  # spent so far


class RunFolder:
    """An open run folder; one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open an existing folder; `create` makes one."""
        self.path = path
        if not (path / EXPERIMENT).is_file():
            raise RunError(f"{path}: not a run folder (no {EXPERIMENT})")
        try:
            self._events = (path / EVENTS).open("ab")
            fcntl.flock(self._events, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._events.close()
            raise LockedError(f"{path}: another process is writing this run") from None
        except OSError as error:
            raise _unwritable(path, error) from error
        self._opened, self._since = time.time(), time.monotonic()
        self._rounds, self._paced = 0, -math.inf

    @classmethod
    def create(
        cls,
        path: Path,
        experiment: str,
        provenance: Mapping[str, Any],
        holdings: list[list[int]] | None = None,
    ) -> RunFolder:
        """Make a folder for a new run; what is already there is never touched."""
        refuse_taken(path)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            fresh.mkdir(parents=True)
            (fresh / EXPERIMENT).write_text(experiment, encoding="utf-8")
            (fresh / PROVENANCE).write_text(_json(provenance, indent=1), encoding="utf-8")
            if holdings:
                (fresh / HOLDINGS).write_text(_json({"clients": holdings}), encoding="utf-8")
            (fresh / EVENTS).touch()
            fresh.rename(path)  # so that a half-made folder is never taken for a run
        except (OSError, UnicodeError) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise _unwritable(path, error) from error
        return cls(path)

    @property
    def finished(self) -> bool:
        """Whether the result is there."""
        return (self.path / RESULT).is_file()

    def append(self, events: Iterable[Event]) -> None:
        """Add lines to events.jsonl."""
        events = list(events)
        with _writing(self.path):
            self._events.write(b"".join(_line(event) for event in events))
            if events:
                self._rounds = events[-1].round + isinstance(events[-1], ArrivalEvent)
                self._note_pace(first=True)

    def flush(self) -> None:
        """Let readers see what was appended."""
        with _writing(self.path):
            self._events.flush()
            self._note_pace(first=False)

    def rewind(self, size: int) -> None:
        """Cut events.jsonl back to a checkpoint's length."""
        if (self.path / EVENTS).stat().st_size < size:
            raise RunError(f"{self.path}: {EVENTS} is shorter than its checkpoint; it was altered")
        self._events.truncate(size)

    def save_checkpoint(
        self, tensors: Mapping[str, np.ndarray], round: int, seconds: float
    ) -> None:
        """Replace the checkpoint, atomically."""
        self.flush()
        os.fsync(self._events.fileno())
        size = os.fstat(self._events.fileno()).st_size
        facts = {
            "round": round,
            "events_bytes": size,
            "seconds": seconds,
            "checksum": _checksum(tensors),
        }
        self._save_tensors(CHECKPOINT, tensors, {"secureafl": json.dumps(facts)})

    def load_checkpoint(self) -> Checkpoint | None:
        """The last checkpoint; None before the first."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        remedy = "delete it, and 'secureafl resume' starts the run over"
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                facts = json.loads(file.metadata()["secureafl"])
            tensors = safetensors.numpy.load_file(path)
            intact = _checksum(tensors) == facts["checksum"]
            found = Checkpoint(tensors, facts["round"], facts["events_bytes"], facts["seconds"])
        except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: damaged checkpoint ({error}); {remedy}") from error
        if not intact:
            raise RunError(f"{path}: damaged checkpoint (checksum differs); {remedy}")
        return found

    def save_model(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Write the final weights."""
        self._save_tensors(MODEL, tensors, {})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result and drop the checkpoint."""
        self._replace(RESULT, lambda path: path.write_text(_json(result, indent=1)))
        (self.path / CHECKPOINT).unlink(missing_ok=True)

    def add_session(self, session: Mapping[str, Any]) -> None:
        """Note in the provenance that the run was taken up again."""
        provenance = read_json(self.path / PROVENANCE)
        provenance["sessions"].append(session)
        self._replace(PROVENANCE, lambda path: path.write_text(_json(provenance, indent=1)))

    def close(self) -> None:
        """Release the folder."""
        with _writing(self.path):
            self._events.close()

    def _note_pace(self, first: bool) -> None:
        """Write down how many rounds are done by now: at a session's start, then once a second."""
        began, seconds = self._paced > -math.inf, time.monotonic() - self._since
        if first == began or seconds - self._paced < _PACE_SECONDS:
            return
        self._paced = seconds
        # A session is known by when it opened the folder: no pace spans the pause between two.
        line = _json({"opened": self._opened, "seconds": round(seconds, 3), "rounds": self._rounds})
        with (self.path / PACE).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _save_tensors(
        self, name: str, tensors: Mapping[str, np.ndarray], metadata: dict[str, str]
    ) -> None:
        arrays = {key: np.asarray(value, order="C") for key, value in tensors.items()}
        self._replace(name, lambda p: safetensors.numpy.save_file(arrays, p, metadata=metadata))

    def _replace(self, name: str, write: Callable[[Path], Any]) -> None:
        """Write beside the old file, then put the new one in its place."""
        fresh = self.path / f".{name}"
        with _writing(self.path):
            write(fresh)
            fresh.chmod(0o644)  # safetensors makes its files private
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(self.path / name)


def refuse_taken(path: Path) -> None:
    """Raise unless a new run may be put here."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(
            f"{path}: already there; choose another --out, or go on with 'secureafl resume {path}'"
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a run folder."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise RunError(f"{path}: holds no JSON object")
    return found


def read_events(path: Path) -> Iterator[Event]:
    """Events of a run; an unfinished last line (the process was killed) is passed over."""
    try:
        with (path / EVENTS).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):
                    yield _event(line, path, number)
    except OSError as error:
        raise RunError(f"{path}: {EVENTS} cannot be read ({error.strerror})") from error


def last_events(path: Path) -> list[Event]:
    """The last few events of a run that another process may be writing; none if there is no run."""
    try:
        with (path / EVENTS).open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")
    except OSError:
        return []
    return [_event(line, path, 0) for line in lines[1 if start else 0 : -1]]


def summarise(events: Iterable[Event], late_rounds: Iterable[int]) -> dict[str, Any]:
    """Final and late-mean metrics, and who was accepted, from a run's events."""
    late_rounds = set(late_rounds)
    evaluations: list[EvaluationEvent] = []
    uploads = {"honest": [0, 0], "malicious": [0, 0]}
    reasons: dict[str, int] = {}
    steps = forgotten = 0
    for event in events:
        if isinstance(event, EvaluationEvent):
            evaluations.append(event)
            continue
        if isinstance(event, ForgottenEvent):
            forgotten += 1
            continue
        group = uploads["malicious" if event.malicious else "honest"]
        group[0] += event.accepted
        group[1] += 1
        steps += event.stepped
        if event.reason:
            reasons[event.reason] = reasons.get(event.reason, 0) + 1
    late = [e for e in evaluations if e.round in late_rounds]
    return {
        "metrics": {
            name: _late_figures([e.metrics[name] for e in late])
            for name in (late[-1].metrics if late else {})
        },
        "uploads": {
            name: {"accepted": yes, "received": all_, "share": yes / all_ if all_ else None}
            for name, (yes, all_) in uploads.items()
        },
        "refused": reasons,
        "steps": steps,
        "forgotten": forgotten,
    }


def _late_figures(values: list[float | None]) -> dict[str, float | None]:
    finite = [value for value in values if value is not None]
    if len(finite) < len(values):
        return {"last": values[-1], "late_mean": None, "late_std": None}
    mean = math.fsum(finite) / len(finite)
    spread = math.hypot(*(v - mean for v in finite)) / math.sqrt(len(finite))
    return {"last": finite[-1], "late_mean": mean, "late_std": spread}


_KINDS: dict[str, type[Event]] = {
    "arrival": ArrivalEvent,
    "evaluation": EvaluationEvent,
    "forgotten": ForgottenEvent,
}
_NAMES = {cls: name for name, cls in _KINDS.items()}


def _line(event: Event) -> bytes:
    return (_json({"event": _NAMES[type(event)], **event._asdict()}) + "\n").encode()


def _event(line: bytes, path: Path, number: int) -> Event:
    try:
        fields = json.loads(line)
        return _KINDS[fields.pop("event")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path / EVENTS}, line {number}: damaged ({error})") from error


def _json(value: Any, indent: int | None = None) -> str:
    # NaN is not JSON; the writers of events and results use None instead.
    return json.dumps(value, indent=indent, allow_nan=False)


def _checksum(tensors: Mapping[str, np.ndarray]) -> int:
    checksum = 0
    for name in sorted(tensors):
        data = np.asarray(tensors[name], order="C").reshape(-1).view(np.uint8).data
        checksum = zlib.crc32(data, zlib.crc32(name.encode(), checksum))
    return checksum


def _unwritable(path: Path, error: OSError | UnicodeError) -> SecureAflError:
    why = error.strerror if isinstance(error, OSError) else error
    return RunError(f"{path}: cannot be written ({why}); choose another --out")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns a full disk or a lost permission into one clear line."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from error
