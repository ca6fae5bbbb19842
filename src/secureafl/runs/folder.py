"""The writer of a run folder, whose files `layout` describes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from secureafl.core.errors import LockedError, RunError, SecureAflError
from secureafl.core.events import ArrivalEvent, Event
from secureafl.runs.checksums import EventsChecksum, make_checksums
from secureafl.runs.events import encode
from secureafl.runs.layout import (
    CHECKPOINT,
    EVENTS,
    EXPERIMENT,
    HOLDINGS,
    MODEL,
    PACE,
    PROVENANCE,
    RESULT,
    SERVER,
    is_deployed,
    read_json,
    require_run,
    to_json,
)

_START_OVER = f"delete {CHECKPOINT}, and 'secureafl resume' starts the run over"
_PACE_SECONDS = 1.0  # times are not in the events, whose bits must not depend on them


class Checkpoint(NamedTuple):
    """What a run needs to go on."""

    tensors: dict[str, np.ndarray]
    round: int
    events_bytes: int  # length of events.jsonl at that moment
    seconds: float  # spent so far
    events_checksum: int | None = None  # None in those of older versions


class RunFolder:
    """An open run folder; one process at a time."""

    def __init__(self, path: Path, deployed: bool = False) -> None:
        """Open an existing folder of a simulation, or of a deployment; `create` makes one."""
        self.path = path
        require_run(path)
        require_kind(path, deployed)
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
        self._events_checksum = EventsChecksum(path)

    @classmethod
    def create(
        cls,
        path: Path,
        experiment: str,
        provenance: Mapping[str, Any],
        holdings: list[list[int]] | None = None,
        deployed: bool = False,
    ) -> RunFolder:
        """Make a folder for a new run; what is already there is never touched."""
        refuse_taken(path)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            fresh.mkdir(parents=True)
            (fresh / EXPERIMENT).write_text(experiment, encoding="utf-8")
            (fresh / PROVENANCE).write_text(to_json(provenance, indent=1), encoding="utf-8")
            if holdings:
                (fresh / HOLDINGS).write_text(to_json({"clients": holdings}), encoding="utf-8")
            if deployed:
                (fresh / SERVER).mkdir()
            (fresh / EVENTS).touch()
            fresh.rename(path)  # so that a half-made folder is never taken for a run
        except (OSError, UnicodeError) as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise _unwritable(path, error) from error
        return cls(path, deployed)

    @property
    def finished(self) -> bool:
        """Whether the result is there."""
        return (self.path / RESULT).is_file()

    def append(self, events: Iterable[Event]) -> None:
        """Add lines to events.jsonl."""
        events = list(events)
        with _writing(self.path):
            self._events.write(b"".join(encode(event) for event in events))
            if events:
                self._rounds = events[-1].round + isinstance(events[-1], ArrivalEvent)
                self._note_pace(first=True)

    def flush(self) -> None:
        """Let readers see what was appended."""
        with _writing(self.path):
            self._events.flush()
            self._note_pace(first=False)

    def require_events(self, checkpoint: Checkpoint) -> None:
        """Raise unless the events before a checkpoint are those it was made with."""
        path, size, noted = self.path / EVENTS, checkpoint.events_bytes, checkpoint.events_checksum
        what = "shorter than its checkpoint" if path.stat().st_size < size else ""
        if not what and noted is not None and EventsChecksum(self.path).advance(size) != noted:
            what = "not what its checkpoint was made with"
        if what:
            raise RunError(f"{path}: {what}; it was altered: restore it, or {_START_OVER}")

    def rewind(self, size: int) -> None:
        """Cut events.jsonl back to a checkpoint's length."""
        self._events.truncate(size)

    def checksum_events(self, size: int) -> int:
        """Checksum of events.jsonl up to a length, which grows from call to call."""
        return self._events_checksum.advance(size)

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
            "events_checksum": self.checksum_events(size),
            "seconds": seconds,
            "checksum": _checksum(tensors),
        }
        # That of a deployment holds clients' updates.
        mode = 0o600 if is_deployed(self.path) else 0o644
        self._save_tensors(CHECKPOINT, tensors, {"secureafl": json.dumps(facts)}, mode)

    def load_checkpoint(self, name: str = CHECKPOINT) -> Checkpoint | None:
        """The last checkpoint, or one under another name; None if there is none."""
        path = self.path / name
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                facts = json.loads(file.metadata()["secureafl"])
            tensors = safetensors.numpy.load_file(path)
            intact = _checksum(tensors) == facts["checksum"]
            place = (facts["round"], facts["events_bytes"], facts["seconds"])
            found = Checkpoint(tensors, *place, facts.get("events_checksum"))
        except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: damaged checkpoint ({error}); {_START_OVER}") from error
        if not intact:
            raise RunError(f"{path}: damaged checkpoint (checksum differs); {_START_OVER}")
        return found

    def save_model(self, tensors: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
        """Write the final model: its tensors by name, and what else it takes to use them."""
        self._save_tensors(MODEL, tensors, {"secureafl": to_json(facts)})

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, with checksums of what it belongs to, and drop the checkpoint."""
        self.flush()
        made = {**result, **make_checksums(self.path, result)}
        self._replace(RESULT, lambda path: path.write_text(to_json(made, indent=1)))
        (self.path / CHECKPOINT).unlink(missing_ok=True)

    def replace_experiment(self, experiment: str) -> None:
        """Write the settings anew."""
        self._replace(EXPERIMENT, lambda path: path.write_text(experiment, encoding="utf-8"))

    def add_session(self, session: Mapping[str, Any]) -> None:
        """Add to the provenance that the run was resumed."""
        provenance = read_json(self.path / PROVENANCE)
        provenance["sessions"].append(session)
        self._replace(PROVENANCE, lambda path: path.write_text(to_json(provenance, indent=1)))

    def close(self) -> None:
        """Release the folder."""
        with _writing(self.path):
            self._events.close()

    def _note_pace(self, first: bool) -> None:
        """Write how many rounds are done by now: at a session's start, then once a second."""
        began, seconds = self._paced > -math.inf, time.monotonic() - self._since
        if first == began or seconds - self._paced < _PACE_SECONDS:
            return
        self._paced = seconds
        # A session is known by when it opened the folder: no pace spans the pause between two.
        line = to_json(
            {"opened": self._opened, "seconds": round(seconds, 3), "rounds": self._rounds}
        )
        with (self.path / PACE).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _save_tensors(
        self,
        name: str,
        tensors: Mapping[str, np.ndarray],
        metadata: dict[str, str],
        mode: int = 0o644,
    ) -> None:
        arrays = {key: np.asarray(value, order="C") for key, value in tensors.items()}

        def write(path: Path) -> None:
            safetensors.numpy.save_file(arrays, path, metadata=metadata)

        self._replace(name, write, mode)

    def _replace(self, name: str, write: Callable[[Path], Any], mode: int = 0o644) -> None:
        """Write beside the old file, then put the new one in its place, with its permissions."""
        fresh = self.path / f".{name}"
        with _writing(self.path):
            try:
                write(fresh)
                fresh.chmod(mode)
                with fresh.open("rb") as file:
                    os.fsync(file.fileno())
                fresh.replace(self.path / name)
            except BaseException:
                fresh.unlink(missing_ok=True)  # half a file would fill the disk further
                raise


def require_kind(path: Path, deployed: bool) -> None:
    """Raise unless a run is a deployment's, or a simulation's: neither can go on as the other."""
    if is_deployed(path) and not deployed:
        raise RunError(f"{path}: holds a deployment, not a simulation; see 'secureafl serve'")
    if deployed and not is_deployed(path):
        raise RunError(f"{path}: holds a simulation, not a deployment; choose another folder")


def refuse_taken(path: Path) -> None:
    """Raise unless a new run may be put here."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        remedy = f"choose another folder (out), or go on with 'secureafl resume {path}'"
        raise RunError(f"{path}: already there; {remedy}")


def require_writable(path: Path) -> None:
    """Raise unless files can be put into the folder, or it can be made; nothing is left there."""
    try:
        there = next(place for place in (path, *path.parents) if place.exists())
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise _unwritable(path, error) from error


def _checksum(tensors: Mapping[str, np.ndarray]) -> int:
    checksum = 0
    for name in sorted(tensors):
        data = np.asarray(tensors[name], order="C").reshape(-1).view(np.uint8).data
        checksum = zlib.crc32(data, zlib.crc32(name.encode(), checksum))
    return checksum


def _unwritable(path: Path, error: OSError | UnicodeError) -> SecureAflError:
    why = error.strerror if isinstance(error, OSError) else error
    return RunError(f"{path}: cannot be written ({why}); choose another folder (out)")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn a full disk or a lost permission into an error of one line."""
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"{path}: cannot be written ({why})") from error
