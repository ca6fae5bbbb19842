"""Keeps other machines to the clients' part of Flower's server.

Its one port serves clients (/v1/fleet) and the people who run the server (/v1/control, which
starts code, and /v1/runtime). Here requests from other machines reach the first part only. Of a
client's request the head is read first: without the signature of a registered key in it, no body
is read but one of the few bytes in which a client asks to be let in. What a client pushes is a
reply of its own.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from secureafl.deployment.limits import (
    BODY_SECONDS,
    LARGEST_REQUEST,
    STRANGERS_REQUEST,
    ByteBudget,
    Receive,
    limit_body,
)
from secureafl.deployment.roster import RosterReader
from secureafl.deployment.status import CLOCK, REVOKED, UNKNOWN, Status, answer
from secureafl.deployment.status import PATH as STATUS

FLEET, HEALTH = "/v1/fleet/", "/health"
RUN = "SECUREAFL_RUN"  # variable: the run folder

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
SenderOf = Callable[[dict[bytes, bytes]], bytes | None]
StatusOf = Callable[[dict[bytes, bytes]], bytes | None]
FindNode = Callable[[bytes], int | None]


class FleetOnly:
    """The SuperLink's web application, with all but the clients' part closed to other machines."""

    def __init__(
        self,
        inner: Callable[[Scope, Receive, Send], Awaitable[None]],
        sender_of: SenderOf | None = None,
        budget: ByteBudget | None = None,
        status_of: StatusOf | None = None,
    ) -> None:
        """Guard an application.

        Args:
            inner: Flower's application.
            sender_of: From a request's head to the key it is signed with, None: with none that is
                registered. It runs in a thread. Without it nobody needs a key.
            budget: Of the bodies of clients.
            status_of: From a request's head to what its sender may know of its part in the run,
                None: nothing. It runs in a thread.
        """
        self._inner, self._sender_of, self._status_of = inner, sender_of, status_of
        self._budget = budget or ByteBudget()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
        elif scope["type"] != "http" or not _allowed(scope):
            await _refuse(send, 403)
        elif _announced(scope) > LARGEST_REQUEST:
            await _refuse(send, 413)
        elif scope["path"] == STATUS and self._status_of is not None:
            told = await asyncio.to_thread(self._status_of, dict(scope["headers"]))
            await (_refuse(send, 401) if told is None else _respond(send, 200, told))
        elif scope["path"].startswith(FLEET):
            await self._serve_client(scope, receive, send)
        else:
            largest = LARGEST_REQUEST if _is_own(scope) else STRANGERS_REQUEST
            await self._inner(scope, limit_body(receive, largest), send)

    async def _serve_client(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender, size = None, _announced(scope)
        if self._sender_of is not None:
            sender = await asyncio.to_thread(self._sender_of, dict(scope["headers"]))
            if sender is None and size > STRANGERS_REQUEST:
                await _refuse(send, 401)
                return
        sender = sender or (scope.get("client") or ("",))[0]
        try:
            async with asyncio.timeout(BODY_SECONDS):
                await self._budget.take(sender, size)
        except TimeoutError:
            await _refuse(send, 503)
            return
        try:
            await self._inner(scope, limit_body(receive, size), send)
        finally:
            await self._budget.give_back(sender, size)


def _allowed(scope: Scope) -> bool:
    return _is_own(scope) or scope["path"].startswith(FLEET) or scope["path"] == HEALTH


def _is_own(scope: Scope) -> bool:
    return is_loopback((scope.get("client") or ("",))[0])


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own; a name other than localhost is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _announced(scope: Scope) -> int:
    """Bytes that a body may have, as its head says."""
    heads = dict(scope["headers"])
    if b"transfer-encoding" in heads:
        return LARGEST_REQUEST
    value = heads.get(b"content-length", b"0")
    return int(value) if value.isdigit() and len(value) < 16 else LARGEST_REQUEST + 1


async def _refuse(send: Send, status: int) -> None:
    # What follows is not read: the connection ends here.
    await _respond(send, status, b"", [(b"connection", b"close")])


async def _respond(
    send: Send, status: int, body: bytes, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    headers = [*more, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class SignedHead(NamedTuple):
    """What a head says of its sender; nothing of it is proven before `is_genuine`."""

    key: bytes
    fresh: bool  # whether it was signed just now, by its own account
    signed: bytes
    signature: bytes

    def is_genuine(self) -> bool:
        """Whether the owner of the key has signed it."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        try:
            return verify_signature(bytes_to_public_key(self.key), self.signed, self.signature)
        except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):  # another's key
            return False


def read_head(heads: dict[bytes, bytes]) -> SignedHead | None:
    """Key, time and signature of a request, as Flower finds them once it has read the body."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
    from flwr.supercore import constant
    from flwr.supercore.date import now

    names = constant.FLEET_HTTP_PUBLIC_KEY_HEADER, constant.FLEET_HTTP_SIGNATURE_HEADER
    try:
        key, signature = (b64decode(heads[name.encode()], validate=True) for name in names)
        signed = heads[TIMESTAMP_HEADER.encode()]
        age = (now() - datetime.fromisoformat(signed.decode("ascii"))).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None
    oldest = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    return SignedHead(key, -SYSTEM_TIME_TOLERANCE < age < oldest, signed, signature)


def signer(find_node: FindNode) -> SenderOf:
    """Who has signed a head; `find_node` is Flower's: the node of a registered key."""

    def sender_of(heads: dict[bytes, bytes]) -> bytes | None:
        head = read_head(heads)
        if head is None or not head.fresh or find_node(head.key) is None:
            return None
        return head.key if head.is_genuine() else None

    return sender_of


def status_teller(
    run: Path, find_node: FindNode | None, was_revoked: Callable[[bytes], bool]
) -> StatusOf:
    """What the sender of a request may know of its part in a run.

    Only who has signed with a key is told how that key stands. Without `find_node` nobody needs a
    key, and all are told the same: how far the run is.
    """
    roster = RosterReader(run)

    def tell(heads: dict[bytes, bytes]) -> bytes | None:
        if find_node is None:
            return _as_json(answer(roster.read(), None, ""))
        head = read_head(heads)
        if head is None or not head.is_genuine():
            return None
        node, refused = find_node(head.key), ""
        if not head.fresh:
            refused = CLOCK
        elif node is None:
            refused = REVOKED if was_revoked(head.key) else UNKNOWN
        return _as_json(answer(roster.read(), node, refused))

    return tell


def _as_json(status: Status) -> bytes:
    return json.dumps(status._asdict()).encode()


def replies_only(push: Callable[..., Any]) -> Callable[..., Any]:
    """Flower's handler of clients' messages, for replies of the client that pushes them.

    Flower knows by its key who pushes, but takes from the message who has sent it, and stores what
    is no reply as an order of the server's.
    """
    from flwr.supercore.error import ApiErrorCode, FlowerError

    def checked(request: Any, state: Any) -> Any:
        sender = request.node.node_id
        facts = [message.metadata for message in request.messages_list]
        if any(not f.reply_to_message_id or f.src_node_id != sender for f in facts):
            said = f"node {sender} pushed what is no reply of its own"
            raise FlowerError(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, said)
        return push(request=request, state=state)

    return checked


def main() -> None:
    """Flower's own `flower-superlink`, guarded."""
    import uvicorn
    from flwr.supercore.constant import NodeStatus
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers

    from secureafl.deployment import listening

    os.umask(0o077)  # its database holds the clients' updates
    create = superlink.create_app

    def guarded(*words: Any) -> FleetOnly:
        made = create(*words)
        state, needs_keys = made.state.linkstate_factory.state, made.state.enable_supernode_auth

        def find_node(key: bytes) -> int | None:
            return state().get_node_id_by_public_key(key)

        def was_revoked(key: bytes) -> bool:
            gone = state().get_node_info(statuses=[NodeStatus.UNREGISTERED])
            return any(node.public_key == key for node in gone)

        run = Path(os.environ[RUN])
        teller = status_teller(run, find_node if needs_keys else None, was_revoked)
        return FleetOnly(made, signer(find_node) if needs_keys else None, status_of=teller)

    superlink.create_app = guarded  # pyrefly: ignore
    fleet_handlers.push_messages = replies_only(fleet_handlers.push_messages)
    uvicorn.run = listening.run  # pyrefly: ignore
    flower_superlink()


if __name__ == "__main__":
    main()
