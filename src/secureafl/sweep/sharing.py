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
from collections.abc import Iterator
from pathlib import Path

_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_CONTROL = "nvidia-cuda-mps-control"


@contextlib.contextmanager
def shared_gpu() -> Iterator[bool]:
    """Start NVIDIA's MPS if it is there; yield whether processes started inside share the GPU."""
    control = shutil.which(_CONTROL)
    if os.environ.get(_PIPES) or control is None:
        yield bool(os.environ.get(_PIPES))  # somebody runs a daemon already, or nobody can
        return
    folder = _own_folder()
    with (folder / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)  # waits while a daemon from before is being ended
        keeper = Path(__file__).with_name("mps_keeper.py")
        subprocess.run(
            [sys.executable, str(keeper), control, str(folder)],
            env=os.environ | {_PIPES: str(folder), _LOGS: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            start_new_session=True,  # Ctrl-C is for the sweep, whose workers still need it
        )
        os.environ |= {_PIPES: str(folder), _LOGS: str(folder)}
        try:
            yield True
        finally:
            del os.environ[_PIPES], os.environ[_LOGS]


def _own_folder() -> Path:
    """A folder with the same name for all sweeps of this user, and of no use to others."""
    folder = Path(tempfile.gettempdir(), f"secureafl-mps-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if safe else Path(tempfile.mkdtemp(prefix="secureafl-mps-"))
