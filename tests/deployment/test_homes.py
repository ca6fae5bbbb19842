"""A `join` that is killed leaves nothing behind, and a node takes its client apps along."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing

import pytest

from secureafl.deployment import homes
from secureafl.deployment.homes import FLOWER, make_home
from secureafl.deployment.join import ClientService
from secureafl.deployment.processes import is_alive


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def sleeper(home):
    """A process that takes no notice of SIGTERM, as Flower's may when they wait for their node."""
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    made = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(60)"],
        env={**os.environ, "FLWR_HOME": str(home)},
        stdout=subprocess.PIPE,
    )
    made.stdout.readline()
    return made


def test_next_join_removes_what_a_killed_one_left(temporary):
    home, lock = make_home()
    lock.close()  # as the kernel does
    (home / "worker.log").write_text("x")
    with sleeper(home / FLOWER) as app:
        other, held = make_home()
        assert app.wait(5) < 0
    assert sorted(temporary.iterdir()) == [other]
    with closing(make_home()[1]):
        assert other.is_dir(), "it is held"
    held.close()


def test_folder_that_is_just_being_made_or_is_none_of_ours_stays(temporary):
    young, alien = temporary / f"{homes._PREFIX}young", temporary / "secureafl-join.txt"
    young.mkdir()
    alien.touch()
    (temporary / f"{homes._PREFIX}link").symlink_to(temporary)
    make_home()[1].close()
    assert young.is_dir()
    assert alien.exists()
    assert (temporary / f"{homes._PREFIX}link").is_symlink()
    os.utime(young, (0, 0))
    make_home()[1].close()
    assert not young.exists()
    homes.clear_home(temporary)
    assert temporary.is_dir()


def test_client_apps_end_with_their_node(monkeypatch):
    service = ClientService("127.0.0.1:1", {}, None, None, False)
    node = [sys.executable, "-c", "pass"]
    monkeypatch.setattr(service, "_supernode", lambda: node)
    monkeypatch.setattr(service, "_worker", Running())
    service.turn()
    service._node.wait()
    with sleeper(service._home / FLOWER) as app:
        service.turn()
        assert app.wait(5) < 0
    assert service.starts == 1, "the node itself has to wait"
    service.stop()


def test_server_is_told_of_a_node_that_was_killed_until_it_knows(monkeypatch):
    service = ClientService("127.0.0.1:1", {}, None, None, False)
    refused, killed, told, knows = "sys.exit(1)", "os.kill(os.getpid(), 9)", [], [False, True]
    ends = [refused, killed, refused, refused, refused]

    def end_session():
        told.append(service.starts)
        return knows[len(told) - 1]

    def node():
        return [sys.executable, "-c", f"import os, sys; {ends[service.starts]}"]

    monkeypatch.setattr(service, "_supernode", node)
    monkeypatch.setattr(service, "_worker", Running())
    monkeypatch.setattr(service.status, "end_session", end_session)
    for _ in ends:
        service.turn()
        service._node.wait()
        service._began -= 60.0
    assert told == [2, 3], "not of one that was refused, and no more once it knows"
    service.stop()


def test_node_that_has_lost_its_superexec_is_started_again(monkeypatch):
    service = ClientService("127.0.0.1:1", {}, None, None, False)
    monkeypatch.setattr(service, "_supernode", lambda: ["sleep", "60"])
    monkeypatch.setattr(service, "_worker", Running())
    service.turn()
    first = service._node
    # One process: a shell's child has the shell's words until it becomes another program.
    words = [sys.executable, "-c", "import time; time.sleep(60)", "flower-superexec"]
    env = {**os.environ, "FLWR_HOME": str(service._home / FLOWER)}
    with subprocess.Popen(words, env=env) as executor:
        service._began -= 100.0
        service.turn()
        assert service._node is first
        executor.kill()
    service._looked -= 100.0
    service.turn()
    assert service._node is not first
    assert first.returncode is not None
    service.stop()


class Running:
    def poll(self):
        return None

    def terminate(self): ...

    def wait(self, _): ...


WORKER = """
import sys; sys.path[:0] = {path!r}
import time
from pathlib import Path
from secureafl.deployment import worker
worker.options_from = lambda _: None
worker.serve = lambda *_: (Path({home!r}, "ready").touch(), time.sleep(60))
worker.main(Path({home!r}, "worker.sock"), "{{}}")
"""
JOIN = """
import os, sys; sys.path[:0] = {path!r}
import time
from pathlib import Path
from secureafl.deployment.processes import start
print(start([sys.executable, "-c", {code!r}], Path({home!r}, "log"), os.environ).pid, flush=True)
time.sleep(60)
"""


def test_worker_of_a_killed_join_ends_what_is_left_and_removes_the_folder(temporary):
    home, lock = make_home()
    worker = WORKER.format(path=sys.path, home=str(home))
    code = JOIN.format(path=sys.path, code=worker, home=str(home))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as join:
        number = int(join.stdout.readline())
        wait_until((home / "ready").exists)
        with sleeper(home / FLOWER) as app:
            join.send_signal(signal.SIGKILL)
            assert app.wait(20) < 0
    wait_until(lambda: not home.exists() and not is_alive(number))
    assert list(temporary.iterdir()) == []
    lock.close()


def wait_until(holds):
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)
