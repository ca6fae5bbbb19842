"""A daemon that lets processes share a GPU; a script stands in for NVIDIA's."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from secureafl.sweep import sharing
from secureafl.sweep.sharing import shared_gpu

DAEMON = """#!{python}
import os, pathlib, sys, time
pipes = pathlib.Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
if "-f" in sys.argv:
    (pipes / "quit").unlink(missing_ok=True)
    with open({noted!r}, "a") as noted:
        print(os.getpid(), file=noted)
    pathlib.Path({noted!r} + "-sees").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    while not (pipes / "quit").exists():
        time.sleep(0.01)
elif sys.stdin.read().strip() == "quit":
    (pipes / "quit").touch()
"""
SWEEP = "import time\nfrom secureafl.sweep.sharing import shared_gpu\n"
SWEEP += "with shared_gpu(): print('in', flush=True); time.sleep(60)"


@pytest.fixture
def noted(tmp_path, monkeypatch):
    """Where daemons leave their numbers."""
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    script = tmp_path / "bin" / "nvidia-cuda-mps-control"
    script.parent.mkdir()
    noted = tmp_path / "pid"
    script.write_text(DAEMON.format(python=sys.executable, noted=str(noted)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return noted


def pids_in(noted, count=1):
    for _ in range(1000):
        if noted.exists() and noted.read_text().count("\n") >= count:
            return [int(line) for line in noted.read_text().split()]
        time.sleep(0.01)
    raise AssertionError("no daemon was started")


def ended(pid):
    """Whether it ends soon."""
    for _ in range(1000):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            if stat.rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):  # or while it is read
            return True
        time.sleep(0.01)
    return False


def gone(paths):
    """Whether these are removed soon."""
    paths = list(paths)
    for _ in range(1000):
        if not any(path.exists() for path in paths):
            return True
        time.sleep(0.01)
    return False


def test_a_daemon_of_its_own_starts_and_ends_with_the_sweep(noted):
    with shared_gpu() as shared:
        assert shared
        pids = pids_in(noted)
        assert Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).stat().st_mode & 0o077 == 0
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert ended(pids[0])
    with shared_gpu():
        first, second = pids_in(noted, 2)
    assert first != second
    assert ended(second)


def test_sweeps_side_by_side_have_the_same_daemon_and_the_last_one_ends_it(noted):
    sweep = subprocess.Popen([sys.executable, "-c", SWEEP])
    (pid,) = pids_in(noted)
    with shared_gpu():
        time.sleep(0.5)  # its keeper finds that there is nothing to do
        sweep.kill()
        sweep.wait()
        time.sleep(0.5)
        os.kill(pid, 0)
    assert ended(pid)
    assert pids_in(noted) == [pid]


def test_the_daemon_ends_when_the_sweep_is_killed(noted):
    sweep = subprocess.Popen([sys.executable, "-c", SWEEP])
    (pid,) = pids_in(noted)
    sweep.kill()
    sweep.wait()
    assert ended(pid)


def test_a_daemon_that_died_is_replaced_for_the_next_sweep(noted):
    with shared_gpu():
        (first,) = pids_in(noted)
        os.kill(first, signal.SIGKILL)
        assert ended(first)
        with shared_gpu() as shared:
            assert shared
            second = pids_in(noted, 2)[1]
            os.kill(second, 0)
    assert ended(second)


def test_a_daemon_that_cannot_start_shares_nothing(noted, tmp_path):
    (tmp_path / "bin" / "nvidia-cuda-mps-control").write_text("#!/bin/sh\nexit 1\n")
    for _ in range(2):
        with shared_gpu() as shared:
            assert not shared
            assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_without_a_folder_for_the_daemon_a_sweep_does_without(noted, tmp_path):
    (tmp_path / f"secureafl-mps-{os.getuid()}" / "users").mkdir(parents=True)
    (tmp_path / f"secureafl-mps-{os.getuid()}").chmod(0o700)
    with shared_gpu() as shared:
        assert not shared
    assert not noted.exists()


def test_a_daemon_whose_end_hangs_holds_nobody_up_for_long(noted, tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_PATIENCE", 0.3)
    with shared_gpu():
        pass
    with (tmp_path / f"secureafl-mps-{os.getuid()}" / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        with shared_gpu() as shared:
            assert not shared


def test_the_daemon_shows_all_gpus_and_each_sweep_chooses(noted, monkeypatch):
    """It would number those that it may see anew, and a sweep on the second would find none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with shared_gpu():
        pids_in(noted)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert Path(f"{noted}-sees").read_text() == "all"


def test_a_sweep_begun_by_a_sweep_outlives_it(noted):
    outer = contextlib.ExitStack()
    outer.enter_context(shared_gpu())
    (pid,) = pids_in(noted)
    inner = subprocess.Popen([sys.executable, "-c", SWEEP], stdout=subprocess.PIPE)
    assert inner.stdout.readline()
    outer.close()
    time.sleep(0.5)
    os.kill(pid, 0)
    inner.kill()
    inner.communicate()
    assert ended(pid)


def test_the_users_own_folder_for_logs_is_given_back(noted, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", "/mine")
    with shared_gpu():
        assert os.environ["CUDA_MPS_LOG_DIRECTORY"] != "/mine"
    assert os.environ["CUDA_MPS_LOG_DIRECTORY"] == "/mine"


def test_a_folder_that_others_can_write_to_is_not_used(noted, tmp_path):
    others = tmp_path / f"secureafl-mps-{os.getuid()}"
    others.mkdir(mode=0o777)
    others.chmod(0o777)
    with shared_gpu():
        assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] != str(others)
        (pid,) = pids_in(noted)
    assert ended(pid)
    assert not list(others.iterdir())
    assert gone(tmp_path.glob("secureafl-mps-?*[!0-9]*"))


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
