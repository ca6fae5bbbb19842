"""Sharing one GPU between several processes.

Without help they take turns there, and a simulated round is too small to fill a GPU. NVIDIA's MPS
daemon lets their kernels run side by side; where it is installed, a sweep starts one of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_CONTROL = "nvidia-cuda-mps-control"
_PATIENCE = 10  # seconds, for the daemon to end
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def shared_gpu() -> Iterator[bool]:
    """Start NVIDIA's MPS if it is there; yield whether processes started inside share the GPU."""
    control = shutil.which(_CONTROL)
    if os.environ.get(_PIPES) or control is None:
        yield bool(os.environ.get(_PIPES))  # somebody runs a daemon already, or nobody can
        return
    folder = Path(tempfile.mkdtemp(prefix="secureafl-mps-"))
    os.environ |= {_PIPES: str(folder), _LOGS: str(folder)}
    daemon = subprocess.Popen(
        [control, "-f"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,
        start_new_session=True,  # Ctrl-C is for the sweep, whose workers still need it
    )
    try:
        yield daemon.poll() is None
    finally:
        _quit(control, daemon)
        del os.environ[_PIPES], os.environ[_LOGS]
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _quit(control: str, daemon: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        subprocess.run([control], input=b"quit\n", capture_output=True, timeout=_PATIENCE)
    try:
        daemon.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
