"""A run has one `serve`, which ends what an earlier one left, and its ServerApp leaves with it."""

import os
import stat
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from simulation.small import tiny

from secureafl.core.errors import LockedError
from secureafl.deployment import liveness
from secureafl.deployment.liveness import ATTEMPT, STOP, hold_run, is_served, should_stop
from secureafl.deployment.options import Options
from secureafl.deployment.processes import free_port
from secureafl.deployment.serve import Address, Service
from secureafl.runs.folder import RunFolder


def service(out):
    return Service(tiny(), Options(), out, Address("127.0.0.1", free_port(), None))


def process(code, **env):
    """A process of Python that has written a line."""
    made = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
    )
    assert made.stdout.readline()
    return made


def test_server_app_that_outlived_its_serve_is_ended_at_the_start(tmp_path):
    service(tmp_path / "run").stop()
    code = (
        "from pathlib import Path; from secureafl.runs.folder import RunFolder; import time; "
        f"held = RunFolder(Path({str(tmp_path / 'run')!r}), True); print('holds', flush=True); "
        "time.sleep(60)"
    )
    with process(code, FLWR_HOME=str(tmp_path / "run" / "server" / "flower")) as app:
        service(tmp_path / "run").stop()
        assert app.wait(5) < 0


def test_server_app_that_is_just_ending_is_waited_for(tmp_path):
    # While its memory is given back it has no environment to be found by, and holds the folder.
    service(tmp_path / "run").stop()
    held = RunFolder(tmp_path / "run", deployed=True)
    threading.Timer(0.5, held.close).start()
    service(tmp_path / "run").stop()


def test_database_that_others_could_read_is_closed_to_them(tmp_path):
    service(tmp_path / "run").stop()
    database = tmp_path / "run" / "server" / "superlink.db"
    database.touch(0o644)
    service(tmp_path / "run").stop()
    assert stat.S_IMODE(database.stat().st_mode) == 0o600


def test_two_serve_do_not_work_on_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr(liveness, "_PATIENCE", 0.1)
    first = service(tmp_path / "run")
    with pytest.raises(LockedError, match="another 'secureafl serve'"):
        service(tmp_path / "run")
    first.stop()
    service(tmp_path / "run").stop()


@pytest.fixture
def run(tmp_path):
    (tmp_path / "server").mkdir()
    return tmp_path


def test_server_app_stops_when_its_serve_is_gone_or_asks_for_it(run):
    assert not should_stop(run, "")  # started by Flower alone
    with closing(hold_run(run)):
        assert is_served(run)
        assert not should_stop(run, "1")
        (run / STOP).touch()
        assert should_stop(run, "1")
        (run / STOP).unlink()
        (run / ATTEMPT).write_text("2")
        assert should_stop(run, "1"), "another took its place"
        assert not should_stop(run, "2")
    assert not is_served(run)
    assert should_stop(run, "1")


def test_server_app_that_hangs_ends_some_time_after_its_serve(run):
    code = (
        "from pathlib import Path; from secureafl.deployment.liveness import watch; import time; "
        f"watch(Path({str(run)!r}), '1', 0.4); print('here', flush=True); time.sleep(60)"
    )
    lock = hold_run(run)
    with process(code) as app:
        with pytest.raises(subprocess.TimeoutExpired):
            app.wait(1.0)
        lock.close()
        assert app.wait(10) == 1
