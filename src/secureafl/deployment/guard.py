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
import os
from base64 import b64decode
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from typing import Any

from secureafl.deployment.limits import (
    BODY_SECONDS,
    LARGEST_REQUEST,
    STRANGERS_REQUEST,
    ByteBudget,
    Receive,
    limit_body,
)

FLEET, HEALTH = "/v1/fleet/", "/health"

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
SenderOf = Callable[[dict[bytes, bytes]], bytes | None]


class FleetOnly:
    """The SuperLink's web application, with all but the clients' part closed to other machines."""

    def __init__(
        self,
        inner: Callable[[Scope, Receive, Send], Awaitable[None]],
        sender_of: SenderOf | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        """Guard an application.

        Args:
            inner: Flower's application.
            sender_of: From a request's head to the key it is signed with, None: with none that is
                registered. It runs in a thread. Without it nobody needs a key.
            budget: Of the bodies of clients.
        """
        self._inner, self._sender_of = inner, sender_of
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
    headers = [(b"connection", b"close"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def signer(find_node: Callable[[bytes], int | None]) -> SenderOf:
    """Who has signed a head, as Flower finds out once it has read the body.

    `find_node` is Flower's: the node of a registered key.
    """
    from flwr.common.constant import (
        SYSTEM_TIME_TOLERANCE,
        TIMESTAMP_HEADER,
        TIMESTAMP_TOLERANCE,
    )
    from flwr.supercore import constant
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    names = constant.FLEET_HTTP_PUBLIC_KEY_HEADER, constant.FLEET_HTTP_SIGNATURE_HEADER
    oldest = TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE

    def sender_of(heads: dict[bytes, bytes]) -> bytes | None:
        try:
            key, signature = (b64decode(heads[name.encode()], validate=True) for name in names)
            signed = heads[TIMESTAMP_HEADER.encode()]
            age = (now() - datetime.fromisoformat(signed.decode("ascii"))).total_seconds()
            if not -SYSTEM_TIME_TOLERANCE < age < oldest or find_node(key) is None:
                return None
            return key if verify_signature(bytes_to_public_key(key), signed, signature) else None
        except (KeyError, ValueError, TypeError):
            return None

    return sender_of


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
    from flwr.superlink import main as superlink
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers

    from secureafl.deployment import listening

    os.umask(0o077)  # its database holds the clients' updates
    create = superlink.create_app

    def guarded(*words: Any) -> FleetOnly:
        made = create(*words)
        state = made.state.linkstate_factory.state
        known = signer(lambda key: state().get_node_id_by_public_key(key))
        return FleetOnly(made, known if made.state.enable_supernode_auth else None)

    superlink.create_app = guarded  # pyrefly: ignore
    fleet_handlers.push_messages = replies_only(fleet_handlers.push_messages)
    uvicorn.run = listening.run  # pyrefly: ignore
    flower_superlink()


if __name__ == "__main__":
    main()
