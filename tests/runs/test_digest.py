from dashboard.folders import arrival, events, lines

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


def test_long_staleness_is_drawn_with_few_bars():
    digest = Digest()
    found = [arrival(i, staleness=i * 37) for i in range(100)]
    digest.add(parse(lines(found).encode().splitlines()).events)
    width, bars = digest.staleness_bars()
    assert len(bars) <= 33
    assert sum(bars) == 100
    assert bars[37 * 99 // width] > 0


def test_trust_is_what_the_hardened_rule_is_read_by():
    digest = Digest()
    found = [arrival(0, 3, scores={"weight": 0.2, "norm": 1.0})]
    digest.add(parse(lines(found).encode().splitlines()).events)
    assert (digest.deciding, digest.measure) == (("weight", None), "norm")
