import pytest

from secureafl.deployment.desk import Desk, Request


def asked(desk, message="m", node=7, now=0.0):
    desk.ask(message, Request(node, 0, 3, now))
    return desk


@pytest.fixture
def desk():
    return Desk(deadline=10.0, per_minute=60)


def test_answer_belongs_to_the_request_as_it_was_noted(desk):
    assert asked(desk).take("m", 7) == Request(7, 0, 3, 0.0)


@pytest.mark.parametrize("message", ["other", "", None, 5, b"m", ("m",)])
def test_forged_message_id_is_unknown(desk, message):
    assert asked(desk).take(message, 7) == "unknown_request"
    assert desk.open == ["m"]


def test_second_answer_to_one_request_is_unknown(desk):
    asked(desk).take("m", 7)
    assert desk.take("m", 7) == "unknown_request"


@pytest.mark.parametrize("node", [8, -7, "7", 7.5])
def test_answer_of_another_node_is_refused_and_the_right_one_still_wanted(desk, node):
    assert asked(desk).take("m", node) == "wrong_sender"
    assert desk.take("m", 7) == Request(7, 0, 3, 0.0)


def test_network_itself_may_close_a_request(desk):
    assert asked(desk).take("m", None) == Request(7, 0, 3, 0.0)


def test_late_answer_is_unknown_once_the_request_is_given_up(desk):
    asked(desk)
    assert desk.overdue(9.9) == []
    assert desk.overdue(10.1) == [Request(7, 0, 3, 0.0)]
    assert desk.take("m", 7) == "unknown_request"


def test_node_has_one_open_request_at_a_time(desk):
    assert desk.may_ask(7, 0.0)
    asked(desk)
    assert not desk.may_ask(7, 5.0)
    desk.take("m", 7)
    desk.done(7, True, 5.0)
    assert desk.may_ask(7, 5.0)


def test_node_that_fails_waits_longer_each_time_and_others_do_not(desk):
    waits, now = [], 0.0
    for _ in range(12):
        desk.done(7, False, now)
        wait = next(s for s in range(1000) if desk.may_ask(7, now + s))
        waits.append(wait)
        now += wait
    assert waits[:5] == [1, 2, 4, 8, 16]
    assert waits[-1] == 300
    assert desk.may_ask(8, 0.0)
    desk.done(7, True, now)
    assert desk.may_ask(7, now)


def test_nobody_answers_faster_than_the_rate():
    desk, now, answers = Desk(1000.0, per_minute=6), 0.0, []
    while now < 600:
        if desk.may_ask(7, now):
            desk.done(7, True, now)
            answers.append(now)
        now += 0.5
    assert len(answers) <= 6 * 11
    assert all(b - a >= 60 for a, b in zip(answers, answers[6:], strict=False))
