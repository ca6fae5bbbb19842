"""The clients of a run beside each other, and what that comes to in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from secureafl.runs.digest import Client, Digest
from secureafl.runs.suspicion import CREDIT, HIGH, LOST, RAISED, Signs, judge, usual_refusals

_NAMED = 12  # clients named in a sentence
_MOST_REASONS = 3
_MEASURES = {
    "distance": "the distance of uploads from what the defence compares them with",
    "norm": "the length of uploads",
}
_LIMIT = "A liar whose uploads look like everybody's is not seen here."


class Lane(NamedTuple):
    """One client."""

    client: int
    suspicion: float
    level: str  # high, raised or low
    uploads: int
    refused: int
    reasons: dict[str, int]
    distance: float | None  # of its last upload
    times: float | None  # how many times as far as the typical one its latest uploads lie
    last: int  # round
    staleness: int
    mean_staleness: float
    marks: str  # its latest uploads, the newest last: 1 accepted, 0 refused
    planted: bool  # a simulation made it malicious; suspicion does not look at this


def lanes(digest: Digest) -> list[Lane]:
    """All clients, the most suspicious first."""
    judged = judge(client.record for client in digest.clients.values())
    found = [
        _lane(number, client, signs)
        for (number, client), signs in zip(digest.clients.items(), judged, strict=True)
    ]
    return sorted(found, key=lambda lane: (-lane.suspicion, lane.client))


def _lane(number: int, client: Client, signs: Signs) -> Lane:
    record, suspicion = client.record, signs.suspicion
    times = math.exp(min(99.0, record.excess / (record.measured + CREDIT)))
    return Lane(
        client=number,
        suspicion=round(suspicion, 4),
        level="high" if suspicion >= HIGH else "raised" if suspicion >= RAISED else "low",
        uploads=client.uploads,
        refused=client.uploads - client.accepted,
        reasons=dict(client.reasons.most_common(_MOST_REASONS)),
        distance=client.distance if math.isfinite(client.distance) else None,
        times=times if record.measured else None,
        last=client.last,
        staleness=client.staleness,
        mean_staleness=round(client.total_staleness / client.uploads, 2),
        marks="".join("01"[mark] for mark in client.marks),
        planted=client.poisoned > 0,
    )


def verdict(digest: Digest, found: Sequence[Lane]) -> str:
    """Who stands out."""
    if not found:
        return "No upload has come yet."
    if usual_refusals(client.record for client in digest.clients.values()) > LOST:
        return "Most uploads are refused: the model may be lost, and nobody can be singled out."
    everybody = f"{len(found):,} client{'s' if len(found) > 1 else ''}"
    high = [lane.client for lane in found if lane.level == "high"]
    if high:
        named = ", ".join(map(str, sorted(high[:_NAMED]))) + ", …" * (len(high) > _NAMED)
        return f"{len(high):,} of {everybody} stand{'s' * (len(high) == 1)} out: {named}"
    raised = sum(lane.level == "raised" for lane in found)
    if raised:
        return f"None of {everybody} stands out clearly; {raised:,} raised."
    return f"None of {everybody} stands out."


def grounds(digest: Digest, found: Sequence[Lane], defense: str) -> str:
    """What the verdict rests on, and how far it can be trusted."""
    signs = ["refusals"] if digest.reasons else []
    signs += [_MEASURES[digest.measure]] if digest.measure else []
    if not found:
        return ""
    if not signs:
        return (
            f"{defense} gives no sign of who is poisoning: it refuses nothing and measures "
            "nothing, so the order of clients says nothing."
        )
    told = [f"Suspicion rests on {' and '.join(signs)}."]
    if not digest.reasons:
        told.append(f"{defense} has refused no upload.")
    planted = sum(lane.planted for lane in found)
    if planted:
        on_top = sum(lane.planted for lane in found[:planted])
        told.append(f"The simulation planted {planted:,}; {on_top:,} of them are on top.")
    return " ".join([*told, _LIMIT])
