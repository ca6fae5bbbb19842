"""What a client may know of its part in a run: asked for by `join`, answered by the guard.

Whoever signs with a key is told how that key stands, and nothing of other clients. Of the
defence's decisions a client is told how many of twenty uploads were accepted, once they are
complete: a word on each upload would let an attacker feel its way along the rule's limits. Only an
operator who trusts all clients may have each decision told (`tell_clients = "decisions"`).
"""

from __future__ import annotations

import json
import ssl
import time
from base64 import b64encode
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from secureafl.core.errors import ConfigError
from secureafl.deployment.messages import REFUSALS
from secureafl.deployment.requests import FAILURES, RATE
from secureafl.deployment.roster import RECENT, ClientRecord, RosterFile

PATH = "/v1/fleet/secureafl/status"
_DEACTIVATE = "/v1/fleet/deactivate-node"  # Flower's own

# Why a key is not let in.
UNKNOWN, REVOKED, FULL, CLOCK = "unknown_key", "revoked", "full", "clock"
ASK_SECONDS = 6.0  # between two questions of a client
_SECONDS = 5.0  # that the server may take to answer


class Status(NamedTuple):
    """The answer."""

    refused: str = ""  # why the key is not let in; nothing else is told then
    round: int | None = None  # None: the server is starting
    rounds: int = 0
    finished: bool = False
    client: int | None = None  # the slot; None: none yet
    here: bool = False  # whether the client's node is connected
    uploads: int = 0
    last_round: int | None = None  # in which its last upload came in
    refusals: int = 0  # answers that were none, whatever the defence: no secret of the server's
    last_refused: str = ""  # why, if its last answer was such a one
    share: int | None = None  # of the last whole twenty uploads, how many were accepted
    decision: str | None = None  # on the last upload, "" accepted; None: is not told
    pause: str = ""  # why it is sent no model at present
    seconds: float = 0.0  # until then
    node: int | None = None  # Flower's number of the key


def answer(found: RosterFile | None, node: int | None, refused: str) -> Status:
    """What the owner of a key may know; `node` is Flower's number of it, None: nobody has keys."""
    if refused or found is None:
        return Status(refused, node=None if refused else node)
    record = next((c for c in found.clients if c.node == node), ClientRecord(node or 0))
    full = record.here and record.client is None and not found.finished
    last = record.recent[-1] if record.recent else ""
    return Status(
        FULL if full else "",
        found.round,
        found.rounds,
        found.finished,
        record.client,
        record.here,
        record.uploads,
        record.last_round,
        sum(record.dropped.get(reason, 0) for reason in REFUSALS),
        record.last_dropped if record.last_dropped in REFUSALS else "",
        record.told_share,
        last if found.tell == "decisions" and record.recent else None,
        record.pause,
        round(max(0.0, record.until - time.time()), 1) if record.pause else 0.0,
        node,
    )


class StatusClient:
    """Asks a server, with the key of one client."""

    def __init__(self, server: str, ca: Path | None, key: Path | None) -> None:
        """Without `ca` the connection is plain, without `key` the request is not signed."""
        self._key = _load_private(key) if key else None
        try:
            verify = ssl.create_default_context(cafile=str(ca)) if ca else True
        except (OSError, ValueError) as error:
            raise ConfigError(f"--ca {ca}: no certificate ({error})") from None
        scheme = "https" if ca else "http"
        self._http = httpx.Client(base_url=f"{scheme}://{server}", verify=verify, timeout=_SECONDS)

    def ask(self) -> Status | str:
        """The server's answer; or why there is none."""
        try:
            reply = self._http.get(PATH, headers=self._head())
            reply.raise_for_status()
            return Status(**json.loads(reply.content))
        except httpx.HTTPStatusError as error:
            return f"it answers {error.response.status_code}"
        except (httpx.HTTPError, OSError) as error:
            return str(error) or type(error).__name__
        except (ValueError, TypeError):
            return "it has another version"

    def end_session(self) -> bool:
        """Have the server give up the connection of this client's node, which was killed.

        It would take the node for alive for about a minute, wait for its answer and refuse the
        next one. Returns whether it has given it up.
        """
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest
        from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

        found = self.ask()
        if not isinstance(found, Status) or found.node is None:
            return False
        body = DeactivateNodeRequest(node_id=found.node).SerializeToString()
        head = {**self._head(), "content-type": PROTOBUF_MEDIA_TYPE}
        try:
            return self._http.post(_DEACTIVATE, content=body, headers=head).is_success
        except (httpx.HTTPError, OSError):
            return False

    def _head(self) -> dict[str, str]:
        if self._key is None:
            return {}
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore import constant
        from flwr.supercore.date import now
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

        when = now().isoformat()
        signature = sign_message(self._key, when.encode("ascii"))
        public = public_key_to_bytes(self._key.public_key())
        return {
            constant.FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode("ascii"),
            TIMESTAMP_HEADER: when,
            constant.FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode("ascii"),
        }

    def close(self) -> None:
        """End the connection."""
        self._http.close()


def _load_private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key: Any = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"--key {path}: not a private key; make one with 'secureafl keys make'")
    return key


_REFUSED = {
    UNKNOWN: "the server does not know this key; send its .pub file to whoever runs the server",
    REVOKED: "this key was revoked, and none returns; make another with 'secureafl keys make'",
    FULL: "all slots of the run are taken; whoever runs the server can free one or raise clients",
    CLOCK: "the clocks of this machine and of the server differ too much; set this one right",
}
_PAUSED = {
    RATE: "it answered faster than the server allows",
    FAILURES: "its last answers could not be used",
}


class Teller:
    """Turns one answer after another into lines for the user of `join`."""

    def __init__(self) -> None:
        self._last = Status()
        self._away = False

    def lines(self, found: Status | str) -> list[str]:
        """What is new."""
        if isinstance(found, str):
            away, self._away = self._away, True
            return [] if away else [f"no answer from the server: {found}"]
        back, self._away = ["the server answers again"] if self._away else [], False
        last, self._last = self._last, found
        if found.refused:
            new = found.refused != last.refused
            said = _REFUSED.get(found.refused, found.refused[:80])
            return [*back, *([f"not let in: {said}"] if new else [])]
        return [*back, *_progress(last, found)]


def _progress(last: Status, found: Status) -> list[str]:
    lines = []
    if found.client is not None and found.client != last.client:
        lines.append(f"taking part as client {found.client}")
    if found.uploads != last.uploads:
        so_far = f"uploads of this client: {found.uploads}, the last in round {found.last_round}"
        lines.append(f"round {found.round} of {found.rounds}; {so_far}{_outcome(found)}")
    if found.refusals > last.refusals:
        why = f", the last: {found.last_refused}" if found.last_refused else ""
        lines.append(f"answers of this client that were refused: {found.refusals}{why}")
    if found.share is not None and found.uploads // RECENT != last.uploads // RECENT:
        lines.append(f"of {RECENT} uploads of this client {found.share} were accepted")
    if found.pause and found.pause != last.pause:
        why = _PAUSED.get(found.pause, found.pause[:80])
        lines.append(f"the next model comes in {found.seconds:.0f} seconds: {why}")
    if found.finished:
        rounds = f"{found.rounds} rounds"
        lines.append(f"the run is finished after {rounds}; uploads of this client: {found.uploads}")
    return lines


def _outcome(found: Status) -> str:
    if found.decision is None:
        return ""
    return f", not accepted: {found.decision}" if found.decision else ", accepted"
