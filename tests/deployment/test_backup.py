"""A copy of a run that is being served goes on where it was taken."""

import sqlite3
import stat
import threading
from contextlib import closing

import pytest
from deployment.served import Clients, begun, closed, opened, same_state, state_of
from simulation.small import tiny

from secureafl.core.errors import RunError
from secureafl.deployment.backup import back_up
from secureafl.deployment.keys import make_key, register

EXPERIMENT = tiny(clients=4, rounds=400, defense="async_sgd")


@pytest.fixture
def run(tmp_path):
    with closed(begun(EXPERIMENT, tmp_path / "run")) as server:
        register(make_key(tmp_path / "alice"), tmp_path / "run")
        with closing(sqlite3.connect(tmp_path / "run" / "server" / "superlink.db")) as database:
            database.execute("create table nodes (number)")
            database.execute("insert into nodes values (7)")
            database.commit()
        yield server


def test_copies_taken_while_rounds_come_in_lead_to_states_the_run_was_in(run, tmp_path):
    states, stop = {0: state_of(run)}, threading.Event()
    clients = Clients(EXPERIMENT)

    def serve():
        while not stop.is_set() and not run.finished:
            clients.turn(run)
            states[run.round] = state_of(run)
            if run.round % 7 == 0:
                run.save()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        reached = [back_up(run.folder.path, tmp_path / f"copy{n}") for n in range(6)]
    finally:
        stop.set()
        thread.join()
    assert max(reached) > 0
    for number, at in enumerate(reached):
        with closed(opened(EXPERIMENT, tmp_path / f"copy{number}")) as copy:
            same_state(state_of(copy), states[at])


def test_keys_and_flowers_database_come_along(run, tmp_path):
    back_up(run.folder.path, tmp_path / "copy")
    database = tmp_path / "copy" / "server" / "superlink.db"
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    with closing(sqlite3.connect(database)) as found:
        assert found.execute("select * from nodes").fetchall() == [(7,)]
    assert (tmp_path / "copy" / "server" / "keys" / "alice.pub").is_file()
    assert not list(tmp_path.glob(".copy*"))


def test_damaged_run_is_not_copied_and_nothing_is_left(run, tmp_path):
    Clients(EXPERIMENT).turn(run)
    (run.folder.path / "journal-0.bin").write_bytes(b"")
    with pytest.raises(RunError, match=r"cannot be copied.*journal-0.bin has a damaged head"):
        back_up(run.folder.path, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice", "alice.pub", "run"]


def test_what_is_there_is_not_overwritten(run, tmp_path):
    with pytest.raises(RunError, match="already there"):
        back_up(run.folder.path, run.folder.path)
    with pytest.raises(RunError, match="not a run folder"):
        back_up(tmp_path, tmp_path / "copy")
