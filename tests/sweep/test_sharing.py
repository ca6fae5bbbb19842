"""A daemon that lets processes share a GPU; a script stands in for NVIDIA's."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from secureafl.sweep.sharing import shared_gpu

DAEMON = """#!{python}
import os, pathlib, sys, time
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if "-f" in sys.argv:
    pathlib.Path({noted!r}).write_text(str(os.getpid()))
    while not (pipes / "quit").exists():
        time.sleep(0.01)
elif sys.stdin.read().strip() == "quit":
    (pipes / "quit").touch()
"""


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """Where the daemon leaves its number."""
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    script = tmp_path / "bin" / "nvidia-cuda-mps-control"
    script.parent.mkdir()
    noted = tmp_path / "pid"
    script.write_text(DAEMON.format(python=sys.executable, noted=str(noted)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return noted


def pid_in(noted):
    for _ in range(500):
        if noted.exists() and noted.read_text():
            return int(noted.read_text())
        time.sleep(0.01)
    raise AssertionError("no daemon was started")


def runs(pid):
    for _ in range(500):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            if stat.rsplit(")", 1)[1].split()[0] == "Z":
                return False
        except FileNotFoundError:
            return False
        time.sleep(0.01)
    return True


def test_a_daemon_of_its_own_starts_and_ends_with_the_sweep(noted):
    with shared_gpu() as shared:
        assert shared
        pid, folder = pid_in(noted), Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        assert folder.is_dir()
    assert not runs(pid)
    assert not folder.exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_somebody_elses_daemon_is_used_and_left_alone(noted, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    with shared_gpu() as shared:
        assert shared
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "/elsewhere"
    assert not noted.exists()


def test_without_the_daemon_nothing_is_shared(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with shared_gpu() as shared:
        assert not shared


def test_the_daemon_ends_when_the_sweep_is_killed(noted):
    code = "import time\nfrom secureafl.sweep.sharing import shared_gpu\n"
    code += "with shared_gpu(): time.sleep(60)"
    sweep = subprocess.Popen([sys.executable, "-c", code])
    pid = pid_in(noted)
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    assert not runs(pid)
