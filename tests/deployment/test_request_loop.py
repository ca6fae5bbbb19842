"""The server's side, with nodes that are functions: honest, hostile, slow and absent ones."""

import httpx
import numpy as np
import pytest
from deployment.grids import Here, reply
from deployment.hostile import hostile
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from simulation.small import tiny

from secureafl.core.events import ArrivalEvent, ForgottenEvent
from secureafl.deployment import server_app
from secureafl.deployment.client_app import named_arrays
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.logs import Log
from secureafl.deployment.messages import REFUSALS
from secureafl.deployment.nodes import Node, write_nodes
from secureafl.deployment.options import Options
from secureafl.deployment.roster import read_roster
from secureafl.deployment.server_app import RequestLoop
from secureafl.deployment.worker import Job, TrainerCache, options_from
from secureafl.runs.events import read_events


class Clock:
    """Time passes by hand."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(server_app, "time", made)
    monkeypatch.setattr("secureafl.runtime.records._commit", lambda: None)
    return made


TRAINERS = TrainerCache(options_from({"task": "reference.tiny_task:TinyTask"}))


def honest(message):
    """What our ClientApp answers."""
    arrays, request = message.content["arrays"], message.content["request"]
    weights = np.concatenate([a.numpy().reshape(-1) for a in arrays.values()])
    update, _ = TRAINERS.train(Job(**{name: request[name] for name in Job._fields}), weights)
    shapes = {name: array.shape for name, array in arrays.items()}
    return [reply(message, RecordDict({"update": named_arrays(update, shapes)}))]


class Server:
    """A request loop with some nodes until the run is finished, or for some turns."""

    def __init__(self, folder, nodes, clock, experiment=None, options=None):
        self.experiment = experiment or tiny(clients=4, rounds=30)
        self.path, self.clock = folder / "run", clock
        self.coordinator = Coordinator(self.experiment)
        self.coordinator.create(self.path)
        self.coordinator.open(self.path)
        self.grid, self.told = Here(nodes), []
        log = lambda what, **facts: self.told.append((what, facts))  # noqa: E731
        self.loop = RequestLoop(self.grid, self.coordinator, options or Options(), log)

    def turns(self, count):
        for _ in range(count):
            if not self.coordinator.finished:
                self.loop.turn()
                self.clock.now += 0.25

    def run(self, turns=10_000):
        self.turns(turns)
        self.coordinator.close()
        return [e for e in read_events(self.path) if isinstance(e, ArrivalEvent)]

    def reasons(self, what="dropped"):
        return {facts.get("reason") for event, facts in self.told if event == what}


def test_honest_nodes_learn(tmp_path, clock):
    server = Server(tmp_path, dict.fromkeys((5, 6, 7, 8), honest), clock)
    events = server.run()
    assert [event.round for event in events] == list(range(30))
    assert {event.client for event in events} == {0, 1, 2, 3}
    assert all(event.staleness < 8 for event in events)


def spoilt(message, rng):
    """A hostile message in the shapes of this model: an honest one with something wrong."""
    content, _ = hostile(rng)
    return [reply(message, content)]


def test_hostile_node_is_refused_slowed_down_and_nobody_else_is_harmed(tmp_path, clock):
    rng = np.random.default_rng(1)
    nodes = {5: honest, 6: honest, 7: lambda m: spoilt(m, rng)}
    server = Server(tmp_path, nodes, clock)
    events = server.run()
    bad = [event for event in events if event.reason in REFUSALS]
    slot = server.coordinator.slots.slot(7)
    assert {event.client for event in bad} == {slot}
    assert 2 <= len(bad) <= 6  # each failure doubles the pause
    assert np.isfinite(server.coordinator.weights.numpy()).all()


def test_roster_says_who_is_in_and_why_others_are_not(tmp_path, clock):
    rng = np.random.default_rng(1)
    nodes = {5: honest, 6: lambda m: spoilt(m, rng), 7: honest, 8: lambda m: [], 9: honest}
    server = Server(tmp_path, nodes, clock, options=Options(answers_per_minute=20))
    server.run()
    found = read_roster(server.path)
    assert (found.round, found.rounds, found.finished, found.slots) == (30, 30, True, 4)
    by_node = {record.node: record for record in found.clients}
    events = [e for e in read_events(server.path) if isinstance(e, ArrivalEvent)]
    for node, client in ((5, 0), (6, 1), (7, 2)):
        record, own = by_node[node], [e for e in events if e.client == client]
        assert (record.client, record.uploads) == (client, len(own))
        assert record.accepted == sum(e.accepted for e in own)
        assert record.recent == ["" if e.accepted else e.reason for e in own][-20:]
        assert record.last_round == own[-1].round
    assert by_node[8].asked
    assert by_node[8].uploads == 0
    assert by_node[9].client is None


def test_roster_of_a_run_that_goes_on_counts_what_was_before(tmp_path, clock):
    server = Server(tmp_path, {5: honest, 6: honest}, clock)
    server.turns(8)
    server.coordinator.close()
    before = server.coordinator.round
    server.coordinator.open(server.path)
    log = lambda *_, **__: None  # noqa: E731
    server.loop = RequestLoop(server.grid, server.coordinator, Options(), log)
    server.run()
    assert 0 < before < 30
    assert sum(record.uploads for record in read_roster(server.path).clients) == 30


def test_answer_delivered_many_times_counts_once(tmp_path, clock):
    def again(message):
        return honest(message) * 5

    server = Server(tmp_path, {5: again}, clock)
    events = server.run()
    assert len(events) == 30
    assert server.reasons() == {"unknown_request"}


def test_answer_in_the_name_of_another_node_is_dropped(tmp_path, clock):
    def forged(message):
        (made,) = honest(message)
        made.metadata.__dict__["_src_node_id"] = 5
        return [made]

    server = Server(tmp_path, {5: honest, 6: forged}, clock)
    events = server.run()
    assert {event.client for event in events} == {0}
    assert server.reasons() == {"wrong_sender"}


def test_answer_to_a_forged_request_is_dropped(tmp_path, clock):
    def forged(message):
        (made,) = honest(message)
        made.metadata.__dict__["_reply_to_message_id"] = "made up"
        return [made]

    server = Server(tmp_path, {5: honest, 6: forged}, clock)
    assert {event.client for event in server.run()} == {0}
    assert server.reasons() == {"unknown_request"}


def test_staleness_is_the_servers_whatever_a_client_says(tmp_path, clock):
    def liar(message):
        (made,) = honest(message)
        made.content["secureafl"] = ConfigRecord({"version": 10**6, "staleness": -5})
        return [made]

    events = Server(tmp_path, {5: honest, 6: liar}, clock).run()
    assert all(0 <= event.staleness <= 2 for event in events)


def test_node_that_never_answers_is_given_up_and_asked_again(tmp_path, clock):
    server = Server(tmp_path, {5: lambda m: []}, clock, options=Options(deadline=10.0))
    assert server.run(turns=200) == []
    assert server.reasons() == {"late"}


def test_node_whose_app_fails_is_asked_less_and_less(tmp_path, clock):
    count = []

    def failing(message):
        count.append(clock.now)
        return [Message(Error(code=2, reason="raised"), reply_to=message)]

    server = Server(tmp_path, {5: failing, 6: honest}, clock, tiny(clients=4, rounds=90))
    server.run()
    assert len(count) <= 8
    assert {event.client for event in read_events(server.path) if isinstance(event, ArrivalEvent)}


def test_rate_of_one_client_is_bounded(tmp_path, clock):
    options = Options(answers_per_minute=6)
    server = Server(tmp_path, {5: honest}, clock, options=options)
    began = clock.now
    events = server.run()
    assert len(events) <= 6 * ((clock.now - began) / 60 + 1)


def test_node_without_a_slot_is_told_of_once_and_not_asked(tmp_path, clock):
    nodes = dict.fromkeys(range(5, 11), honest)
    server = Server(tmp_path, nodes, clock)
    assert {event.client for event in server.run()} == {0, 1, 2, 3}
    without = [facts["node"] for what, facts in server.told if what == "no_slot"]
    assert sorted(without) == [9, 10]


def test_late_joiner_gets_a_slot_and_a_returning_node_its_own(tmp_path, clock):
    server = Server(tmp_path, {5: honest, 6: honest}, clock, tiny(clients=3, rounds=60))
    server.turns(10)
    server.grid.leave(5)
    server.turns(10)
    server.grid.nodes |= {5: honest, 7: honest}
    server.run()
    slots = [server.coordinator.slots.slot(node) for node in (5, 6, 7)]
    assert slots == [0, 1, 2]


def test_slot_of_a_forgotten_client_goes_to_a_new_one_whose_first_upload_is_a_first_contact(
    tmp_path, clock
):
    experiment = tiny(clients=2, rounds=60, forget_after=5, defense="secure_afl")
    server = Server(tmp_path, {5: honest, 6: honest}, clock, experiment)
    server.turns(6)
    server.grid.leave(5)
    server.grid.nodes[7] = honest
    server.turns(60)
    slot, now = server.coordinator.slots.slot(7), server.coordinator.round
    events = server.run()
    assert slot == 0
    firsts = [e.round for e in events if e.client == 0 and e.scores["lipschitz"] is None]
    assert len(firsts) == 2
    assert firsts[1] <= now


def test_slot_of_a_revoked_client_is_free_at_once(tmp_path, clock):
    experiment = tiny(clients=2, rounds=60, defense="secure_afl")
    server = Server(tmp_path, {5: honest, 6: honest, 7: honest}, clock, experiment)
    server.turns(6)
    assert server.coordinator.slots.slot(7) is None
    write_nodes(server.path, [Node(5, "alice", True), Node(6, "bob", False)])
    began = server.coordinator.round
    events = server.run()
    assert server.coordinator.slots.slot(7) == 0
    assert [facts["node"] for what, facts in server.told if what == "slot_free"] == [5]
    asked = [facts["node"] for what, facts in server.told if what == "arrival"]
    assert 5 not in asked[began:]
    assert set(asked[began:]) == {6, 7}
    firsts = [e.round for e in events if e.client == 0 and e.scores["lipschitz"] is None]
    assert len(firsts) == 2, "the new client is a first contact"
    assert [e for e in read_events(server.path) if isinstance(e, ForgottenEvent)] == [
        ForgottenEvent(began, 0)
    ]


def test_client_that_understands_other_messages_is_named_and_costs_no_round(tmp_path, clock):
    def other(message):
        return [reply(message, RecordDict({"secureafl": ConfigRecord({"protocol": 99})}))]

    server = Server(tmp_path, {5: honest, 6: other}, clock)
    events = server.run()
    assert {event.client for event in events} == {server.coordinator.slots.slot(5)}
    assert server.reasons() == {"other_version"}


def test_flower_app_of_a_user_sends_trained_models(tmp_path, clock):
    def user(message):
        state = message.content["arrays"].to_torch_state_dict()
        trained = {name: value * 0.99 for name, value in state.items()}
        return [reply(message, RecordDict({"arrays": ArrayRecord(trained)}))]

    server = Server(tmp_path, {5: user}, clock, tiny(clients=1, rounds=10, defense="async_sgd"))
    before = server.coordinator.weights.norm()
    events = server.run()
    assert all(event.accepted for event in events)
    np.testing.assert_allclose(server.coordinator.weights.norm(), before * 0.99**10, rtol=1e-4)


def test_log_is_one_json_object_a_line(tmp_path):
    import json

    log = Log(tmp_path / "log.jsonl")
    log("arrival", node=5, scores={"a": 1.0})
    log("dropped", reason="late")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["arrival", "dropped"]


def test_superlink_that_is_away_for_a_while_is_waited_for(tmp_path, clock):
    server = Server(tmp_path, {5: honest, 6: honest}, clock)
    server.turns(3)
    reach = server.grid.pull_messages, server.grid.push_messages

    def away(_):
        raise httpx.ConnectError("refused")

    server.grid.pull_messages = server.grid.push_messages = away
    server.turns(20)
    server.grid.pull_messages, server.grid.push_messages = reach
    assert len(server.run()) == 30
    assert any(what == "grid_away" for what, _ in server.told)


def test_superlink_that_stays_away_ends_the_server(tmp_path, clock):
    server = Server(tmp_path, {5: honest}, clock)

    def away(_):
        raise httpx.ConnectError("refused")

    server.grid.pull_messages = away
    with pytest.raises(httpx.ConnectError):
        server.turns(1000)
    server.coordinator.close()


def test_journal_that_cannot_be_written_ends_the_server(tmp_path, clock, monkeypatch):
    server = Server(tmp_path, {5: honest}, clock)
    server.turns(3)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        server.turns(10)
    monkeypatch.undo()
    server.coordinator.close()


def test_full_disk_is_told_once_and_waited_for_without_losing_an_answer(
    tmp_path, clock, monkeypatch
):
    server = Server(tmp_path, dict.fromkeys((5, 6), honest), clock)
    server.turns(4)
    before = server.coordinator.round
    monkeypatch.setattr(server_app, "shortage", lambda *_: "disk full: 3 MB free")
    server.turns(20)
    assert server.coordinator.round == before
    assert [f["said"] for w, f in server.told if w == "disk_full"] == ["disk full: 3 MB free"]
    monkeypatch.setattr(server_app, "shortage", lambda *_: "")
    assert [event.round for event in server.run()] == list(range(30))
    assert [what for what, _ in server.told].count("disk_free") == 1
    assert server.reasons() == set()


def test_honest_answers_to_a_diverged_model_are_refused_but_not_slowed_down(tmp_path, clock):
    def diverged(message):
        arrays = message.content["arrays"]
        shapes = {name: array.shape for name, array in arrays.items()}
        nan = np.full(sum(a.numpy().size for a in arrays.values()), np.nan, np.float32)
        return [reply(message, RecordDict({"update": named_arrays(nan, shapes)}))]

    began = clock.now
    events = Server(tmp_path, {5: diverged}, clock).run()
    assert {event.reason for event in events} == {"not_finite"}
    assert clock.now - began < 30
