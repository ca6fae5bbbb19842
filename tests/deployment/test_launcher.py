"""A ServerApp is started again after a kill, and only who says why it fails is given up."""

import os
import subprocess
import sys

import pytest

from secureafl.core.errors import RunError
from secureafl.deployment import launcher as module
from secureafl.deployment.launcher import AppLauncher
from secureafl.deployment.liveness import ATTEMPT, LOG, Liveness, write_liveness
from secureafl.deployment.logs import Log


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now

    def time_ns(self):
        return round(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """One whose Flower takes every order and starts nothing."""
    (tmp_path / "server").mkdir()
    env = {"FLWR_HOME": str(tmp_path / "flower")}
    made = AppLauncher(tmp_path, tmp_path / "x.toml", env, Log(tmp_path / LOG))
    made.asked = []

    def ask(*words):
        made.asked.append(words)
        return {"success": True}

    monkeypatch.setattr(made, "_ask_flower", ask)
    return made


def end(launcher, tmp_path, said=""):
    """The ServerApp has shown itself, and has ended."""
    write_liveness(tmp_path, Liveness(2**22 + 1, launcher.attempt, 0))  # no such process
    if said:
        Log(tmp_path / LOG)("failed", attempt=launcher.attempt, said=said)


def test_server_app_that_fails_again_and_again_is_quoted(launcher, clock, tmp_path):
    Log(tmp_path / LOG)("other")
    for _ in range(5):
        launcher.turn(may_start=True)
        end(launcher, tmp_path, "RunError: no such data")
        clock.now += 1
    with pytest.raises(RunError, match=r"ends at once \(RunError: no such data\)"):
        launcher.turn(may_start=True)
    assert len(launcher.asked) == 5


def test_server_app_that_is_killed_is_started_again_however_often(launcher, clock, tmp_path):
    for number in range(20):
        launcher.turn(may_start=True)
        assert len(launcher.asked) == number + 1
        assert f'attempt="{(tmp_path / ATTEMPT).read_text()}"' in launcher.asked[-1][-1]
        end(launcher, tmp_path)
        clock.now += 1
    assert launcher.restarts == 19
    launcher.turn(may_start=False)
    assert len(launcher.asked) == 20


def asked_after(launcher, clock, seconds):
    """How often Flower was asked, one more turn and so much time later."""
    clock.now += seconds
    launcher.turn(may_start=True)
    return len(launcher.asked)


def test_server_app_that_died_before_it_showed_itself_is_not_waited_for(launcher, clock):
    launcher.turn(may_start=True)
    assert asked_after(launcher, clock, 10) == 1
    assert asked_after(launcher, clock, 6) == 2
    slow = "a slow machine is given more time each time"
    assert asked_after(launcher, clock, 20) == 2, slow
    assert asked_after(launcher, clock, 11) == 3


def test_server_app_that_loads_is_waited_for_two_minutes_and_then_ended(launcher, clock, tmp_path):
    launcher.turn(may_start=True)
    code = "print(1, flush=True); import time; time.sleep(60)"
    words = [sys.executable, "-c", code, "flwr-serverapp"]
    env = {**os.environ, "FLWR_HOME": str(tmp_path / "flower")}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as app:
        app.stdout.readline()
        assert asked_after(launcher, clock, 119) == 1
        assert asked_after(launcher, clock, 2) == 2
        assert app.wait(5) < 0


def test_server_app_at_work_is_left_alone_and_a_round_makes_good(launcher, clock, tmp_path):
    for _ in range(4):
        launcher.turn(may_start=True)
        end(launcher, tmp_path, "RunError: busy")
        clock.now += 1
    launcher.turn(may_start=True)
    write_liveness(tmp_path, Liveness(os.getpid(), launcher.attempt, 1))
    launcher.turn(may_start=True)
    assert len(launcher.asked) == 5
    assert launcher._failures == 0


def test_flower_that_does_not_answer_is_asked_again(tmp_path, monkeypatch):
    (tmp_path / "server").mkdir()
    program = tmp_path / "flwr"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    env = {"FLWR_HOME": str(tmp_path / "flower"), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 1.0)
    made = AppLauncher(tmp_path, tmp_path / "x.toml", env, Log(tmp_path / LOG))
    made.turn(may_start=True)
    first = made.attempt
    program.write_text("""#!/bin/sh\necho 'Loading'; echo '{"success": true}'\n""")
    made.turn(may_start=True)
    assert made.attempt != first
    made.turn(may_start=True)
    assert made.restarts == 1, "now it waits"
