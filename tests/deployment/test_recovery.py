"""Damaged files: the same state, or a line that says what is lost; never silence."""

import random
import shutil

import pytest
import torch
from deployment.served import Clients, begun, closed, opened, same_state, state_of
from simulation.small import tiny

from secureafl.core.errors import RunError, SecureAflError
from secureafl.deployment import recovery
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.journal import FORMAT

EXPERIMENT = tiny(clients=4, rounds=40, defense="async_sgd")
ROUNDS = 10
NODES = {5: 0, 6: 1, 7: 2, 8: 3}  # and their slots


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A folder with checkpoints of rounds 3 and 6 and ten rounds in all, and the state there."""
    path = tmp_path_factory.mktemp("whole") / "run"
    with closed(begun(EXPERIMENT, path)) as server:
        clients = Clients(EXPERIMENT)
        for node in NODES:
            server.slots.assign(node, 0)
        for number in range(ROUNDS):
            if number in (3, 6):
                server.save()
            clients.turn(server)
        return path, state_of(server), server._server.seed


@pytest.fixture
def run(reference, tmp_path):
    return shutil.copytree(reference[0], tmp_path / "run")


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def refused(run, words):
    before = contents(run)
    with pytest.raises(RunError, match=words):
        Coordinator(EXPERIMENT).open(run)
    assert contents(run) == before, "what is damaged must stay as it is"


def accepted(run):
    """The round from which a run goes on, without what is lost; it is whole again then."""
    server = Coordinator(EXPERIMENT)
    server.open(run, accept_loss=True)
    server.close()
    with closed(opened(EXPERIMENT, run)) as server:
        Clients(EXPERIMENT).turn(server)
        return server.round - 1


def test_whole_folder_gives_its_state(reference, run):
    assert {"checkpoint-before.safetensors", "journal-3.bin", "journal-6.bin"} <= contents(
        run
    ).keys()
    with closed(opened(EXPERIMENT, run)) as server:
        same_state(state_of(server), reference[1])


def test_what_holds_updates_is_for_its_user_alone(run):
    found = {path.name for path in run.iterdir() if path.stat().st_mode & 0o077 == 0}
    assert found >= PRIVATE


def test_flipped_byte_in_the_journal_says_which_rounds_are_lost(run):
    flip(run / "journal-6.bin", 40)
    refused(run, r"rounds 6 to 9 were applied, but journal-6.bin is \w+ at its record 1.*--accept")
    assert accepted(run) == 6
    assert (run / "journal-6.bin.damaged").is_file()
    assert (run / "events.jsonl.damaged").is_file()


def test_flipped_byte_in_a_later_record_leaves_the_ones_before_it(run):
    flip(run / "journal-6.bin", -1)
    refused(run, "rounds 9 to 9 were applied, but journal-6.bin is damaged at its record 4")
    assert accepted(run) == 9


def test_missing_journal_is_told(run):
    (run / "journal-6.bin").unlink()
    refused(run, "rounds 6 to 9 were applied, but journal-6.bin is missing")
    assert accepted(run) == 6


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "swapped"])
def test_damaged_checkpoint_is_made_up_for_by_the_one_before_it(reference, run, how):
    last, before = run / "checkpoint.safetensors", run / "checkpoint-before.safetensors"
    if how == "flipped":
        flip(last, -5)
    elif how == "cut":
        last.write_bytes(last.read_bytes()[:-5])
    elif how == "missing":
        last.unlink()
    else:
        kept = last.read_bytes()
        last.write_bytes(before.read_bytes())
        before.write_bytes(kept)
    spoilt = last.read_bytes() if last.exists() else b""
    with closed(opened(EXPERIMENT, run)) as server:
        same_state(state_of(server), reference[1])
        assert server.notes == ["checkpoint.safetensors is damaged"] * (how in ("flipped", "cut"))
        server.save()
    if how in ("flipped", "cut"):
        assert (run / "checkpoint.safetensors.damaged").read_bytes() == spoilt
    with closed(opened(EXPERIMENT, run)) as server:
        same_state(state_of(server), reference[1])


def test_both_checkpoints_damaged_is_told(run):
    flip(run / "checkpoint.safetensors", -5)
    flip(run / "checkpoint-before.safetensors", -5)
    refused(run, r"rounds 0 to 9 were applied, but checkpoint.safetensors is damaged; checkpoint-b")
    assert accepted(run) == 0
    assert len(list(run.glob("checkpoint*.damaged"))) == 2


def test_altered_line_before_the_checkpoint_is_noticed(run):
    events = run / "events.jsonl"
    place = events.read_bytes().index(b'"staleness": ') + len(b'"staleness": ')
    flip(events, place)
    refused(run, "events.jsonl was altered or cut before round 6")
    assert accepted(run) == ROUNDS


def test_damaged_line_before_the_checkpoint_is_dropped_if_that_is_accepted(run):
    flip(run / "events.jsonl", 1)
    refused(run, "events.jsonl was altered")
    assert accepted(run) == ROUNDS


def test_cut_events_are_noticed(run):
    (run / "events.jsonl").write_bytes(b"")
    refused(run, "events.jsonl was altered or cut before round 6")


def test_checkpoint_of_another_version_is_refused_with_both_formats(run, monkeypatch):
    monkeypatch.setattr(recovery, "FORMAT", FORMAT + 1)
    said = rf"checkpoint.safetensors: is of format {FORMAT}.*finish the run with that version"
    refused(run, said)


def test_nothing_older_than_the_checkpoint_before_the_last_is_kept(run):
    with closed(opened(EXPERIMENT, run)) as server:
        server.save()
    assert sorted(name for name in contents(run) if name.startswith(("journal", "check"))) == [
        "checkpoint-before.safetensors",
        "checkpoint.safetensors",
        "journal-10.bin",
        "journal-6.bin",
    ]


def test_lost_slots_are_noticed_and_their_nodes_are_new_clients_if_that_is_accepted(run):
    slots = run / "slots.jsonl"
    whole = slots.read_bytes()
    slots.write_bytes(whole[: whole.rfind(b"{")])
    refused(run, "slots.jsonl has 3 of 4 lines")
    slots.unlink()
    refused(run, "slots.jsonl has 0 of 4 lines")
    slots.write_bytes(whole.replace(b'"node": 7', b'"node": 9'))
    refused(run, "slots.jsonl is damaged at its line 3")
    assert accepted(run) == ROUNDS
    with closed(opened(EXPERIMENT, run)) as server:
        assert [server.slots.slot(node) for node in NODES] == [0, 1, None, None]
    assert list(run.glob("slots.jsonl.damaged"))


PRIVATE = {
    "checkpoint.safetensors",
    "checkpoint-before.safetensors",
    "journal-3.bin",
    "journal-6.bin",
}
FILES = [
    *sorted(PRIVATE),
    "events.jsonl",
    "slots.jsonl",
    "experiment.toml",
    "provenance.json",
    "server/secret",
]
KINDS = ["flip", "flip", "cut", "missing", "swap", "folder", "closed"]


def injure(run, rng):
    """One fault, drawn; what it was."""
    path, kind = run / rng.choice(FILES), rng.choice(KINDS)
    size = path.stat().st_size
    if kind == "flip":
        flip(path, rng.randrange(size))
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[: rng.randrange(size)])
    elif kind in ("missing", "folder"):
        path.unlink()
        if kind == "folder":  # cannot be read, whoever asks
            path.mkdir()
    elif kind == "closed":
        path.chmod(0)  # which root does not notice
    else:
        other = run / rng.choice(FILES)
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two)
        other.write_bytes(one)
    return f"{kind} {path.name}"


@pytest.mark.parametrize(
    "faults", [30, pytest.param(400, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_every_fault_ends_in_the_right_state_or_in_a_clear_line(reference, tmp_path, faults):
    rng, ends, lines = random.Random(4), {"right": 0, "told": 0}, []
    for number in range(faults):
        run = shutil.copytree(reference[0], tmp_path / f"{number}")
        what = injure(run, rng)
        try:
            server = opened(EXPERIMENT, run)
        except SecureAflError as error:
            ends["told"] += 1
            lines.append(str(error))
        else:
            with closed(server):
                assert server.round == ROUNDS, what
                assert torch.equal(server.weights, reference[1][1]), what
                assert {node: server.slots.slot(node) for node in NODES} == NODES, what
                assert server._server.seed == reference[2], what
            ends["right"] += 1
        shutil.rmtree(run)
    print(ends)
    assert not any("\n" in line for line in lines)
    assert min(ends.values()) > faults / 10
