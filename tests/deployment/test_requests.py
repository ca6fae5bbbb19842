import pytest

from secureafl.deployment.requests import Pause, Request, RequestTracker


def asked(tracker, message="m", node=7, now=0.0):
    tracker.opened(message, Request(node, 0, 3, now))
    return tracker


@pytest.fixture
def tracker():
    return RequestTracker(deadline=10.0, per_minute=60)


def test_answer_belongs_to_the_request_as_it_was_noted(tracker):
    assert asked(tracker).close("m", 7) == Request(7, 0, 3, 0.0)


@pytest.mark.parametrize("message", ["other", "", None, 5, b"m", ("m",)])
def test_forged_message_id_is_unknown(tracker, message):
    assert asked(tracker).close(message, 7) == "unknown_request"
    assert tracker.open == ["m"]


def test_second_answer_to_one_request_is_unknown(tracker):
    asked(tracker).close("m", 7)
    assert tracker.close("m", 7) == "unknown_request"


@pytest.mark.parametrize("node", [8, -7, "7", 7.5])
def test_answer_of_another_node_is_refused_and_the_right_one_still_wanted(tracker, node):
    assert asked(tracker).close("m", node) == "wrong_sender"
    assert tracker.close("m", 7) == Request(7, 0, 3, 0.0)


def test_network_itself_may_close_a_request(tracker):
    assert asked(tracker).close("m", None) == Request(7, 0, 3, 0.0)


def test_late_answer_is_unknown_once_the_request_is_given_up(tracker):
    asked(tracker)
    assert tracker.overdue(9.9) == []
    assert tracker.overdue(10.1) == [Request(7, 0, 3, 0.0)]
    assert tracker.close("m", 7) == "unknown_request"


def test_node_has_one_open_request_at_a_time(tracker):
    assert tracker.may_request(7, 0.0)
    asked(tracker)
    assert not tracker.may_request(7, 5.0)
    tracker.close("m", 7)
    tracker.replied(7, True, 5.0)
    assert tracker.may_request(7, 5.0)


def test_node_that_fails_waits_longer_each_time_and_others_do_not(tracker):
    waits, now = [], 0.0
    for _ in range(12):
        tracker.replied(7, False, now)
        wait = next(s for s in range(1000) if tracker.may_request(7, now + s))
        waits.append(wait)
        now += wait
    assert waits[:5] == [1, 2, 4, 8, 16]
    assert waits[-1] == 300
    assert tracker.may_request(8, 0.0)
    tracker.replied(7, True, now)
    assert tracker.may_request(7, now)


def test_nobody_answers_faster_than_the_rate():
    tracker, now, answers = RequestTracker(1000.0, per_minute=6), 0.0, []
    while now < 600:
        if tracker.may_request(7, now):
            tracker.replied(7, True, now)
            answers.append(now)
        now += 0.5
    assert len(answers) <= 6 * 11
    assert all(b - a >= 60 for a, b in zip(answers, answers[6:], strict=False))


def test_pauses_say_why_and_how_long():
    tracker = RequestTracker(deadline=10.0, per_minute=2)
    tracker.replied(7, good=False, now=0.0)
    tracker.replied(8, good=True, now=0.0)
    assert tracker.pauses(0.25) == {7: Pause("failures", 0.75)}
    tracker.replied(8, good=True, now=5.0)
    assert tracker.pauses(20.0) == {8: Pause("rate", 40.0)}
    assert tracker.pauses(60.0) == {}
