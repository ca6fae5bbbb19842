from dashboard.folders import arrival, evaluation, events, lines

from secureafl.runs.digest import Digest
from secureafl.runs.events import parse


def test_digest_stays_small_and_counts_everything():
    digest = Digest()
    digest.add(parse(lines(events(9000, 50)).encode().splitlines()).events)
    assert (digest.rounds, digest.uploads, len(digest.clients)) == (9000, 9000, 50)
    assert len(digest.scores.points) <= 4000
    assert sum(digest.staleness.values()) == 9000
    assert digest.deciding == ("lipschitz", "threshold")


def test_uploads_of_unknown_clients_make_no_lanes():
    digest = Digest()
    strange = [arrival(i, 10_000 + i, accepted=False, reason="unknown_client") for i in range(50)]
    digest.add(parse(lines(strange).encode().splitlines()).events)
    assert not digest.clients
    assert digest.reasons == {"unknown_client": 50}


def digest_of(*found: dict) -> Digest:
    digest = Digest()
    digest.add(parse(lines(found).encode().splitlines()).events)
    return digest


def test_every_upload_is_counted_where_it_belongs():
    digest = digest_of(
        evaluation(0, ter=0.9),
        arrival(0, 4, staleness=1),
        arrival(1, 4, staleness=3, accepted=False, malicious=True),
        arrival(2, 5, staleness=1, scores={}),
        {"event": "forgotten", "round": 3, "client": 4},
    )
    assert (digest.rounds, digest.uploads, digest.accepted, digest.malicious) == (3, 3, 2, 1)
    assert (digest.staleness, digest.reasons) == ({1: 2, 3: 1}, {"lipschitz": 1})
    assert [event.round for event in digest.latest] == [0, 1, 2]
    four, five = digest.clients[4], digest.clients[5]
    assert (four.uploads, four.accepted, four.malicious, four.reasons) == (
        2,
        1,
        1,
        {"lipschitz": 1},
    )
    assert (four.last, four.staleness, four.total_staleness) == (1, 3, 4)
    assert (list(four.marks), four.distance) == ([True, False], 0.5)
    assert (four.history.measured, five.history.measured) == (1.95, 0.0)


def test_evaluations_alone_count_rounds():
    assert digest_of(evaluation(7, ter=0.5)).rounds == 7


def test_reasons_without_end_are_counted_together():
    digest = digest_of(*(arrival(i, accepted=False, reason=f"reason {i}") for i in range(60)))
    assert (len(digest.reasons), digest.reasons["other"]) == (51, 10)


def test_bars_are_as_narrow_as_their_number_allows():
    assert digest_of(*(arrival(i, staleness=i) for i in range(32))).staleness_bars() == (
        1,
        [1] * 32,
    )
    assert digest_of(*(arrival(i, staleness=i) for i in range(33))).staleness_bars()[0] == 2


def test_long_staleness_is_drawn_with_few_bars():
    digest = Digest()
    found = [arrival(i, staleness=i * 37) for i in range(100)]
    digest.add(parse(lines(found).encode().splitlines()).events)
    width, bars = digest.staleness_bars()
    assert len(bars) <= 33
    assert sum(bars) == 100
    assert bars[37 * 99 // width] > 0


def test_trust_is_what_a_rule_that_weighs_is_read_by():
    digest = Digest()
    found = [arrival(0, 3, scores={"weight": 0.2, "norm": 1.0})]
    digest.add(parse(lines(found).encode().splitlines()).events)
    assert (digest.deciding, digest.measure) == (("weight", None), "norm")
