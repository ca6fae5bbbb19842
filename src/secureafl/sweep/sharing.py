"""Sharing one GPU between several processes.

Without help they take turns there, and a simulated round is too small to fill a GPU. NVIDIA's MPS
daemon lets their kernels run side by side; where it is installed, a sweep starts one. All sweeps of
a user have the same one: processes of two daemons would take turns again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_CONTROL = "nvidia-cuda-mps-control"
_PATIENCE = 30  # seconds, for a daemon from before to be ended


@contextlib.contextmanager
def shared_gpu() -> Iterator[bool]:
    """Start NVIDIA's MPS if it is there; yield whether processes started inside share the GPU."""
    with contextlib.ExitStack() as held:
        yield _share(held)


def _share(held: contextlib.ExitStack) -> bool:
    control, given = shutil.which(_CONTROL), os.environ.get(_PIPES)
    try:
        # Ours may be given by a sweep that began this process, and ends before it.
        if control is None or (given and Path(given) != _usual_folder()):
            return bool(given)  # nobody can start a daemon, or somebody runs one already
        folder = _own_folder()
        users = held.enter_context((folder / "users").open("a"))
        shared = _joined(users) and _kept(control, folder)
    except OSError:  # a full disk, say: a sweep can do without
        return False
    if shared:
        held.enter_context(_environment({_PIPES: str(folder), _LOGS: str(folder)}))
    return shared


def _joined(users: IO[str]) -> bool:
    """Become a user; wait while a daemon from before is being ended, unless that hangs."""
    give_up = time.monotonic() + _PATIENCE
    while time.monotonic() < give_up:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
        time.sleep(0.1)
    return False


def _kept(control: str, folder: Path) -> bool:
    """Whether a daemon runs there as long as it has users."""
    # The daemon would count the GPUs anew from the first that it may see, and other sweeps have
    # others: each chooses its own from all.
    inherited = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    keeper = str(Path(__file__).with_name("mps_keeper.py"))
    remove = [] if folder == _usual_folder() else ["--remove"]
    started = subprocess.run(
        [sys.executable, keeper, control, str(folder), *remove],
        env=inherited | {_PIPES: str(folder), _LOGS: str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        start_new_session=True,  # Ctrl-C is for the sweep, whose workers still need it
    )
    return started.returncode == 0


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ |= values
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _usual_folder() -> Path:
    """Of the same name for all sweeps of this user."""
    return Path(tempfile.gettempdir(), f"secureafl-mps-{os.getuid()}")


def _own_folder() -> Path:
    """The usual folder, or one of this sweep's own where others could write to that."""
    folder = _usual_folder()
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if safe else Path(tempfile.mkdtemp(prefix="secureafl-mps-"))
