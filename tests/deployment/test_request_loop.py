"""The server's side, with nodes that are functions: honest, hostile, slow and absent ones."""

import functools
import itertools

import httpx
import numpy as np
import pytest
from deployment.grids import reply
from deployment.hostile import hostile
from deployment.loops import Clock, Server, filled, honest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from simulation.small import tiny

from secureafl.core.events import ArrivalEvent, ForgottenEvent
from secureafl.deployment import server_app
from secureafl.deployment.logs import Log
from secureafl.deployment.messages import REFUSALS
from secureafl.deployment.nodes import Node, write_nodes
from secureafl.deployment.options import Options
from secureafl.deployment.roster import read_roster
from secureafl.deployment.server_app import RequestLoop
from secureafl.runs.events import read_events


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(server_app, "time", made)
    monkeypatch.setattr("secureafl.runtime.records._commit", lambda: None)
    return made


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


HOSTILE = {
    "hostile": lambda: functools.partial(spoilt, rng=np.random.default_rng(1)),
    "nan": lambda: filled(np.nan),
    "too large": lambda: filled(1e30),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_refused_answers_are_no_rounds_slow_their_sender_and_harm_nobody_else(
    tmp_path, clock, kind
):
    server = Server(tmp_path, {5: honest, 6: honest, 7: HOSTILE[kind]()}, clock)
    events = server.run()
    assert [event.round for event in events] == list(range(30))
    assert {event.client for event in events} == {0, 1}
    refused = [facts["node"] for what, facts in server.told if what == "refused"]
    assert 2 <= len(refused) <= 6  # each one doubles the pause
    assert set(refused) == {7}
    assert server.reasons("refused") <= REFUSALS
    without = Server(tmp_path / "without", {5: honest, 6: honest}, clock)
    without.run()
    np.testing.assert_array_equal(server.coordinator.weights, without.coordinator.weights)


def test_a_member_that_sends_only_refused_answers_ends_no_run_and_fills_no_disk(tmp_path, clock):
    server = Server(tmp_path, {5: filled(np.nan)}, clock)
    server.turns(1)
    before, began = {p: p.stat().st_size for p in server.path.glob("*")}, clock.now
    server.turns(40_000)
    assert not server.coordinator.finished
    assert {p: p.stat().st_size for p in server.path.glob("*")} == before
    hours = (clock.now - began) / 3600
    assert server.reasons("refused") == {"not_finite"}
    assert sum(what == "refused" for what, _ in server.told) <= 12 * hours + 10
    server.coordinator.close()


def test_roster_says_who_is_in_and_why_others_are_not(tmp_path, clock):
    rng = np.random.default_rng(1)
    nodes = {5: honest, 6: lambda m: spoilt(m, rng), 7: honest, 8: lambda m: [], 9: honest}
    server = Server(tmp_path, nodes, clock, options=Options(answers_per_minute=20))
    server.run()
    found = read_roster(server.path)
    assert (found.round, found.rounds, found.finished, found.slots) == (30, 30, True, 4)
    by_node = {record.node: record for record in found.clients}
    events = [e for e in read_events(server.path) if isinstance(e, ArrivalEvent)]
    for node, client in ((5, 0), (7, 2)):
        record, own = by_node[node], [e for e in events if e.client == client]
        assert (record.client, record.uploads) == (client, len(own))
        assert record.accepted == sum(e.accepted for e in own)
        assert record.recent == ["" if e.accepted else e.reason for e in own][-20:]
        assert record.last_round == own[-1].round
    assert (by_node[6].client, by_node[6].uploads) == (1, 0)
    assert by_node[6].last_dropped in by_node[6].dropped
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


def test_client_is_as_fast_as_before_after_one_good_answer(tmp_path, clock):
    asked = []

    def recovering(message):
        asked.append(clock.now)
        return filled(np.nan)(message) if len(asked) <= 3 else honest(message)

    Server(tmp_path, {5: recovering}, clock, tiny(clients=4, rounds=5)).run()
    assert [round(b - a) for a, b in itertools.pairwise(asked)] == [1, 2, 4, 0, 0, 0, 0]
