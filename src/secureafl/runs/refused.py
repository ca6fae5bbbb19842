"""Clients refused more often than not: malicious ones are caught, honest ones silenced.

Both are told side by side: a defence that refuses everybody catches every attacker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from secureafl.runs.digest import Client, Digest

MEANING = "Caught (malicious) or silenced (honest): more than half of a client's uploads refused."
_NAMED = 12  # clients named in a sentence
_MOST = 0.5  # of a client's uploads


class RefusedClients(NamedTuple):
    """Who was refused more often than not, and of how many."""

    caught: list[int]
    malicious: int
    silenced: list[int]
    honest: int


def mostly_refused(uploads: int, accepted: int) -> bool:
    """Whether more than half of a client's uploads were refused."""
    return uploads - accepted > _MOST * uploads


def refused_clients(digest: Digest) -> RefusedClients:
    """The clients of a run that are caught, and those that are silenced."""
    malicious = {n: c for n, c in digest.clients.items() if c.malicious}
    honest = {n: c for n, c in digest.clients.items() if not c.malicious}
    return RefusedClients(_mostly(malicious), len(malicious), _mostly(honest), len(honest))


def tell_refused(found: RefusedClients, deployed: bool) -> str:
    """Who is caught and who is silenced, in sentences.

    Args:
        found: The clients of a run.
        deployed: Whether they are real ones: then nobody knows which of the others are honest.
    """
    told = []
    if found.malicious:
        told.append(_sentence("Caught", found.caught, found.malicious, "malicious"))
    if found.honest:
        other = "other" if found.malicious else ""
        told.append(
            _sentence("Silenced", found.silenced, found.honest, other if deployed else "honest")
        )
    if deployed and found.silenced:
        told.append("Whether those are honest is not known.")
    return " ".join(told)


def name_clients(numbers: Sequence[int]) -> str:
    """Clients by their numbers; of many, the first."""
    named = ", ".join(map(str, sorted(numbers[:_NAMED])))
    return named + ", …" * (len(numbers) > _NAMED)


def _mostly(clients: dict[int, Client]) -> list[int]:
    return sorted(n for n, c in clients.items() if mostly_refused(c.uploads, c.accepted))


def _sentence(what: str, clients: Sequence[int], total: int, kind: str) -> str:
    everybody = f"{total:,} {kind} client{'s' * (total > 1)}".replace("  ", " ")
    if not clients:
        return f"{what}: none of {everybody}."
    return f"{what}: {len(clients):,} of {everybody} ({name_clients(clients)})."
