"""Clients ranked by suspicion, and the sentences about them."""

import pytest
from dashboard.folders import arrival, lines

from secureafl.runs.digest import Digest
from secureafl.runs.events import parse
from secureafl.runs.lanes import explain_suspicion, lanes, name_suspects
from secureafl.runs.refused import refused_clients, tell_refused

LIMIT = "A malicious client whose uploads look like everybody's cannot be seen here."


def run(
    clients: int, bad: int = 0, uploads: int = 40, silenced: int = 0, **scores: float
) -> Digest:
    """A run in which the first `bad` clients are malicious; they and the last are refused."""
    found = [
        arrival(
            i,
            i % clients,
            accepted=bad <= i % clients < clients - silenced,
            malicious=i % clients < bad,
            scores=scores,
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
        (run(9, bad=2, silenced=1), "3 of 9 clients stand out: 0, 1, 8 (honest: 8)"),
        (run(9, silenced=1), "1 of 9 clients stands out: 8 (honest: 8)"),
        (run(9, bad=2, uploads=3), "None of 9 clients stands out clearly; 2 raised."),
        (
            run(9, bad=8),
            "Most uploads are refused: the model may have diverged, so no client stands out.",
        ),
    ],
)
def test_clients_that_stand_out_are_named(digest, sentence):
    assert name_suspects(digest, lanes(digest), deployed=False) == sentence


def test_of_real_clients_nobody_knows_who_is_honest():
    digest = run(9, silenced=1)
    assert name_suspects(digest, lanes(digest), deployed=True) == "1 of 9 clients stands out: 8"


@pytest.mark.parametrize(
    ("digest", "deployed", "sentence"),
    [
        (Digest(), False, ""),
        (run(9), False, "Silenced: none of 9 honest clients."),
        (
            run(9, bad=2),
            False,
            "Caught: 2 of 2 malicious clients (0, 1). Silenced: none of 7 honest clients.",
        ),
        (
            run(9, bad=1, silenced=2),
            False,
            "Caught: 1 of 1 malicious client (0). Silenced: 2 of 8 honest clients (7, 8).",
        ),
        (
            run(9, silenced=1),
            True,
            "Silenced: 1 of 9 clients (8). Whether those are honest is not known.",
        ),
        (
            run(9, bad=1, silenced=1),
            True,
            "Caught: 1 of 1 malicious client (0). Silenced: 1 of 8 other clients (8). "
            "Whether those are honest is not known.",
        ),
    ],
)
def test_silenced_clients_are_told_beside_those_who_are_caught(digest, deployed, sentence):
    assert tell_refused(refused_clients(digest), deployed) == sentence


def test_client_is_silenced_if_more_than_half_of_its_uploads_are_refused():
    found = [arrival(i, i % 2, accepted=i % 4 > i % 2) for i in range(40)]
    found.append(arrival(40, 1, accepted=False))
    digest = Digest()
    digest.add(parse(lines(found).encode().splitlines()).events)
    assert [client.accepted for client in digest.clients.values()] == [10, 10]
    assert refused_clients(digest) == ([], 0, [1], 2)
    assert {lane.client: lane.mostly_refused for lane in lanes(digest)} == {0: False, 1: True}


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
