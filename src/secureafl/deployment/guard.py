"""Keeps other machines to the clients' part of Flower's server.

Its one port serves clients (/v1/fleet) and the people who run the server (/v1/control, which
starts code, and /v1/runtime). Here requests from other machines reach the first part only,
requests have a size limit, and a client's messages are replies of its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

FLEET = ("/v1/fleet/", "/health")
LARGEST_REQUEST = 16 * 2**20  # bytes; Flower cuts arrays into pieces of 5 MB

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class FleetOnly:
    """The SuperLink's web application, with all but the clients' part closed to other machines."""

    def __init__(self, inner: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket" or (scope["type"] == "http" and not _allowed(scope)):
            await _refuse(send, 403)
        elif scope["type"] == "http" and _announced(scope) > LARGEST_REQUEST:
            await _refuse(send, 413)
        else:
            await self._inner(scope, _limited(receive), send)


def _allowed(scope: Scope) -> bool:
    return scope["path"].startswith(FLEET) or is_loopback((scope.get("client") or ("",))[0])


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own; a name other than localhost is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 16 else LARGEST_REQUEST + 1
    return 0


def _limited(receive: Receive) -> Receive:
    """End a body that grows beyond the limit, whatever it announced."""
    left = LARGEST_REQUEST

    async def measured() -> MutableMapping[str, Any]:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        return message if left >= 0 else {"type": "http.disconnect"}

    return measured


async def _refuse(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


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

    create = superlink.create_app
    superlink.create_app = lambda *words: FleetOnly(create(*words))  # pyrefly: ignore
    fleet_handlers.push_messages = replies_only(fleet_handlers.push_messages)
    uvicorn.run = listening.run  # pyrefly: ignore
    flower_superlink()


if __name__ == "__main__":
    main()
