"""Clients ranked by suspicion, and the sentences about them."""

import pytest
from dashboard.folders import arrival, lines

from secureafl.runs.digest import Digest
from secureafl.runs.events import parse
from secureafl.runs.lanes import explain_suspicion, lanes, name_suspects

LIMIT = "A malicious client whose uploads look like everybody's cannot be seen here."


def run(clients: int, bad: int = 0, uploads: int = 40, **scores: float) -> Digest:
    """A run in which every upload of the first `bad` clients is refused."""
    found = [
        arrival(
            i, i % clients, accepted=i % clients >= bad, malicious=i % clients < bad, scores=scores
        )
        for i in range(clients * uploads)
    ]
    digest = Digest()
    digest.add(parse(lines(found).encode().splitlines()).events)
    return digest


def test_most_suspicious_client_comes_first():
    first, *others = lanes(run(8, bad=1, norm=2.0))
    assert (first.client, first.level, first.malicious) == (0, "high", True)
    assert (first.uploads, first.refused, first.reasons) == (40, 40, {"lipschitz": 40})
    assert (first.marks, first.last, first.mean_staleness) == ("0" * 40, 312, 2.0)
    assert (first.distance, first.times) == (2.0, 1.0)
    assert [lane.client for lane in others] == list(range(1, 8))
    assert {(lane.level, lane.suspicion, lane.refused) for lane in others} == {("low", 0.0, 0)}


@pytest.mark.parametrize(
    ("digest", "sentence"),
    [
        (Digest(), "No upload has come yet."),
        (run(5), "None of 5 clients stands out."),
        (run(9, bad=1), "1 of 9 clients stands out: 0"),
        (run(9, bad=2), "2 of 9 clients stand out: 0, 1"),
        (run(9, bad=2, uploads=3), "None of 9 clients stands out clearly; 2 raised."),
        (
            run(9, bad=8),
            "Most uploads are refused: the model may have diverged, so no client stands out.",
        ),
    ],
)
def test_clients_that_stand_out_are_named(digest, sentence):
    assert name_suspects(digest, lanes(digest)) == sentence


@pytest.mark.parametrize(
    ("digest", "sentence"),
    [
        (Digest(), ""),
        (
            run(5),
            "mean gives no sign of who is poisoning: it refuses nothing and measures nothing, "
            "so the order of clients has no meaning.",
        ),
        (
            run(5, norm=1.0),
            f"Suspicion rests on the norm of uploads. mean has refused no upload. {LIMIT}",
        ),
        (
            run(9, bad=2),
            "Suspicion rests on refusals. Known to be malicious: 2; among the 2 most "
            f"suspicious: 2. {LIMIT}",
        ),
    ],
)
def test_suspicion_is_explained(digest, sentence):
    assert explain_suspicion(digest, lanes(digest), "mean") == sentence
