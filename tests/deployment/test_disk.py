"""A disk that fills up is told of at once, everywhere, and the run goes on when there is room."""

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from simulation.small import tiny

from secureafl.core.errors import ConfigError, RunError
from secureafl.deployment import disk
from secureafl.deployment import serve as module
from secureafl.deployment.disk import find_problem, free_bytes, note_problem, shortage
from secureafl.deployment.liveness import ALIVE, LOG, Liveness, Pulse, read_liveness, write_liveness
from secureafl.deployment.metrics import Metrics
from secureafl.deployment.options import Options
from secureafl.deployment.processes import free_port
from secureafl.deployment.serve import Address, Service
from secureafl.runs.folder import RunFolder
from secureafl.runs.layout import PROBLEM
from secureafl.runs.watch import Watch

FULL = "disk full: 3 MB free"


@pytest.fixture
def service(tmp_path, monkeypatch):
    """One that starts no processes."""
    options = Options(metrics_port=free_port())
    made = Service(tiny(), options, tmp_path / "run", Address("127.0.0.1", free_port(), None))
    monkeypatch.setattr(made, "_keep_running", lambda *_: None)
    monkeypatch.setattr(module, "listens", lambda _: True)
    made.submitted = 0

    def submit():
        made.submitted += 1

    monkeypatch.setattr(made._app, "_submit", submit)
    yield made
    (made.out / ALIVE).unlink(missing_ok=True)  # this process is no server app to wait for
    made.stop()


def told(service, event):
    lines = (service.out / LOG).read_text().splitlines() if (service.out / LOG).exists() else []
    return [line["said"] for line in map(json.loads, lines) if line["event"] == event]


def problems(service):
    """What the dashboard shows."""
    watch = Watch(service.out)
    watch.refresh()
    return watch.problems


def test_room_below_the_reserve_is_a_problem_and_so_is_a_folder_that_takes_no_file(tmp_path):
    (tmp_path / "server").mkdir()
    free = free_bytes(tmp_path)
    assert shortage(tmp_path, free // 2) == find_problem(tmp_path, free // 2) == ""
    assert shortage(tmp_path, 2 * free).startswith(f"disk full: {free // 2**20:,} MB free at")
    assert list((tmp_path / "server").iterdir()) == []
    (tmp_path / "server").rmdir()
    assert "cannot be written (No such file" in find_problem(tmp_path, 0)


def test_note_is_written_in_place(tmp_path):
    (tmp_path / "server").mkdir()
    note_problem(tmp_path, "")
    before = (tmp_path / PROBLEM).stat()
    note_problem(tmp_path, "x" * 5000)
    after = (tmp_path / PROBLEM).stat()
    assert (before.st_ino, before.st_blocks) == (after.st_ino, after.st_blocks)


def test_full_disk_is_told_at_once_on_screen_in_log_dashboard_and_health(
    service, monkeypatch, capsys
):
    monkeypatch.setattr(module, "find_problem", lambda *_: FULL)
    for _ in range(3):
        service.turn()
    assert capsys.readouterr().err.splitlines() == [FULL]
    assert told(service, "disk") == [FULL]
    assert problems(service) == [FULL]
    assert service.examine().problems[0] == FULL
    assert service.submitted == 0, "a server app would end at once"
    monkeypatch.setattr(module, "find_problem", lambda *_: "")
    service.turn()
    assert capsys.readouterr().err.splitlines() == [f"{service.out}: can be written again"]
    assert problems(service) == []
    assert service.submitted == 1


def test_nothing_is_started_while_there_is_no_room_for_its_log(tmp_path, monkeypatch):
    started = []
    address = Address("127.0.0.1", free_port(), None)
    made = Service(tiny(), Options(), tmp_path / "run", address)
    monkeypatch.setattr(module, "start", lambda *words: started.append(words))
    monkeypatch.setattr(module, "find_problem", lambda *_: FULL)
    made.turn()
    assert started == []
    monkeypatch.setattr(module, "find_problem", lambda *_: "")
    made.turn()
    assert len(started) == 1
    made.stop()


def get(service, path):
    place = f"http://127.0.0.1:{service._options.metrics_port}{path}"
    try:
        with urllib.request.urlopen(place) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_sees_the_server_app_and_the_last_arrival(service, monkeypatch):
    status, text = get(service, "/health")
    found = json.loads(text)
    assert (status, found["status"]) == (503, "failing")
    assert found["problems"] == ["the SuperLink does not run", "no server app is at work"]
    monkeypatch.setattr(service, "_link", Running())
    now = module.time.time()
    said = Liveness(os.getpid(), service._app.attempt, 7, now - 3, now - 40)
    write_liveness(service.out, said)
    status, text = get(service, "/health")
    found = json.loads(text)
    assert (status, found["status"], found["round"]) == (200, "ok", 7)
    assert 40 <= found["arrival_age"] < 60
    assert 3 <= found["heartbeat_age"] < 20
    write_liveness(service.out, said._replace(seen=now - 500))
    assert "has not shown itself for 50" in get(service, "/health")[1]


class Running:
    def poll(self):
        return None

    def terminate(self): ...

    def wait(self, _): ...


def test_metrics_of_serve_and_of_its_server_app_are_one_page(service):
    counts = Metrics()
    counts.round.set(7)
    port, end = counts.publish(0)
    write_liveness(service.out, Liveness(os.getpid(), service._app.attempt, 7, 1.0, 1.0, port))
    status, text = get(service, "/metrics")
    end()
    found = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
    assert status == 200
    assert found["secureafl_round"] == 7
    assert found["secureafl_server_app_up"] == 1
    assert found["secureafl_healthy"] == 0
    assert found["secureafl_last_arrival_age_seconds"] > 1e9
    assert found["secureafl_disk_free_bytes"] > 0
    assert found["secureafl_restarts_total"] == 0
    assert "secureafl_round" not in get(service, "/metrics")[1], "the server app has gone"
    assert get(service, "/")[0] == 404


def test_port_of_the_metrics_that_is_taken_is_named(service, tmp_path):
    address = Address("127.0.0.1", free_port(), None)
    with pytest.raises(ConfigError, match=r"metrics_port = .*in use"):
        Service(tiny(), service._options, tmp_path / "other", address)


def test_folder_that_is_full_at_the_start_is_one_line(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_app", full)
    address = Address("127.0.0.1", free_port(), None)
    with pytest.raises(RunError, match=r"run: cannot be written \(No space left on device\)"):
        Service(tiny(), Options(), tmp_path / "run", address)
    monkeypatch.undo()
    Service(tiny(), Options(), tmp_path / "run", address).stop()


def test_pulse_tells_of_arrivals_and_remembers_the_last_of_an_earlier_process(tmp_path):
    (tmp_path / "server").mkdir()
    pulse = Pulse(tmp_path, "1", 0)
    pulse.beat(5)
    assert read_liveness(tmp_path).arrived == 0
    pulse.beat(6)
    arrived = read_liveness(tmp_path).arrived
    assert arrived > 0
    Pulse(tmp_path, "2", 0).beat(6)
    again = read_liveness(tmp_path)
    assert (again.attempt, again.round, again.arrived) == ("2", 6, arrived)


def test_checkpoint_that_does_not_fit_is_one_line_and_leaves_no_half(tmp_path, monkeypatch):
    with_room = RunFolder.create(tmp_path / "run", "seed = 1\n", {"sessions": []})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", lambda _: None)
    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(RunError, match=r"cannot be written .No space"):
        with_room.save_checkpoint({}, 1, 0.0)
    assert not list((tmp_path / "run").glob(".check*"))
    with_room.close()


FILL = """
import sys; sys.path[:0] = {path!r}
from pathlib import Path
from secureafl.deployment.disk import find_problem, note_problem
from secureafl.deployment.logs import Log
run = Path({run!r})
(run / "server").mkdir()
note_problem(run, "")
print(find_problem(run, 0))
try:
    (run / "large").write_bytes(bytes(2**22))
except OSError:
    pass
found = find_problem(run, 0)
note_problem(run, found)
Log(run / "server" / "log.jsonl")("disk", said=found)
print(found)
print((run / "server" / "problem").read_text().strip())
"""


def test_disk_that_is_really_full_is_noticed_and_noted_on_itself(tmp_path):
    run = tmp_path / "small"
    run.mkdir()
    code = FILL.format(path=sys.path, run=str(run))
    mount = f'mount -t tmpfs -o size=1m tmpfs {run} && exec {sys.executable} -c "$0"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, code]
    if not shutil.which("unshare"):
        pytest.skip("no namespaces here")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode and "ermitted" in done.stderr + done.stdout:
        pytest.skip("no mounts here")
    before, found, noted = done.stdout.split("\n")[:3]
    assert before == ""
    assert "cannot be written (No space left on device)" in found
    assert noted == found
