"""The clients of a run ranked by suspicion, and which of them stand out, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from secureafl.runs.digest import Client, Digest
from secureafl.runs.refused import mostly_refused, name_clients
from secureafl.runs.suspicion import (
    HIGH,
    MOST_REFUSED,
    RAISED,
    SuspicionScore,
    median_refusal_share,
    score_clients,
)

_MOST_REASONS = 3
_MEASURES = {
    "distance": "the distance of uploads from what the defence compares them with",
    "norm": "the norm of uploads",
}
_LIMIT = "A malicious client whose uploads look like everybody's cannot be seen here."


class Lane(NamedTuple):
    """What is shown of one client."""

    client: int
    suspicion: float
    level: str  # high, raised or low
    uploads: int
    refused: int
    reasons: dict[str, int]
    distance: float | None  # of its last upload
    times: float | None  # how many times the median distance its latest uploads lie away
    last: int  # round
    staleness: int
    mean_staleness: float
    marks: str  # its latest uploads, the newest last: 1 accepted, 0 refused
    malicious: bool  # as the simulation or a client of a test says; suspicion is not based on it
    mostly_refused: bool  # more than half of its uploads


def lanes(digest: Digest) -> list[Lane]:
    """All clients, the most suspicious first."""
    scores = score_clients(client.history for client in digest.clients.values())
    found = [
        _lane(number, client, score)
        for (number, client), score in zip(digest.clients.items(), scores, strict=True)
    ]
    return sorted(found, key=lambda lane: (-lane.suspicion, lane.client))


def _lane(number: int, client: Client, score: SuspicionScore) -> Lane:
    history, suspicion = client.history, score.suspicion
    return Lane(
        client=number,
        suspicion=round(suspicion, 4),
        level="high" if suspicion >= HIGH else "raised" if suspicion >= RAISED else "low",
        uploads=client.uploads,
        refused=client.uploads - client.accepted,
        reasons=dict(client.reasons.most_common(_MOST_REASONS)),
        distance=client.distance if math.isfinite(client.distance) else None,
        times=math.exp(min(99.0, history.mean_excess)) if history.measured else None,
        last=client.last,
        staleness=client.staleness,
        mean_staleness=round(client.total_staleness / client.uploads, 2),
        marks="".join("01"[mark] for mark in client.marks),
        malicious=client.malicious > 0,
        mostly_refused=mostly_refused(client.uploads, client.accepted),
    )


def name_suspects(digest: Digest, found: Sequence[Lane], deployed: bool) -> str:
    """Which clients stand out, in a sentence; honest ones as such, where that is known.

    Args:
        digest: What happened in the run.
        found: Its clients, the most suspicious first.
        deployed: Whether they are real ones: then nobody knows which of them are honest.
    """
    if not found:
        return "No upload has come yet."
    if median_refusal_share(client.history for client in digest.clients.values()) > MOST_REFUSED:
        return "Most uploads are refused: the model may have diverged, so no client stands out."
    everybody = f"{len(found):,} client{'s' if len(found) > 1 else ''}"
    high = [lane.client for lane in found if lane.level == "high"]
    if high:
        honest = [lane.client for lane in found if lane.level == "high" and not lane.malicious]
        though = f" (honest: {name_clients(honest)})" if honest and not deployed else ""
        stand = f"stand{'s' * (len(high) == 1)} out: {name_clients(high)}"
        return f"{len(high):,} of {everybody} {stand}{though}"
    raised = sum(lane.level == "raised" for lane in found)
    if raised:
        return f"None of {everybody} stands out clearly; {raised:,} raised."
    return f"None of {everybody} stands out."


def explain_suspicion(digest: Digest, found: Sequence[Lane], defense: str) -> str:
    """What the suspicion rests on, and how far it can be relied on."""
    measured = ["refusals"] if digest.reasons else []
    measured += [_MEASURES[digest.measure]] if digest.measure else []
    if not found:
        return ""
    if not measured:
        return (
            f"{defense} gives no sign of who is poisoning: it refuses nothing and measures "
            "nothing, so the order of clients has no meaning."
        )
    told = [f"Suspicion rests on {' and '.join(measured)}."]
    if not digest.reasons:
        told.append(f"{defense} has refused no upload.")
    malicious = sum(lane.malicious for lane in found)
    if malicious:
        first = sum(lane.malicious for lane in found[:malicious])
        told.append(
            f"Known to be malicious: {malicious:,}; "
            f"among the {malicious:,} most suspicious: {first:,}."
        )
    return " ".join([*told, _LIMIT])
