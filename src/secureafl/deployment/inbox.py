"""Replies as they come in from Flower, each parsed where it can harm only its sender.

Flower's own `pull_messages` waits for pieces that a client has announced and not sent, puts any
number of pieces together in memory, believes what a message says of itself, and raises on a broken
one. Here a reply is known by what the SuperLink has checked (which request, which node), waits
while pieces are missing, and is measured before it is assembled; a broken one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_head_values_from_object_content as head_of,
)
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid import HttpGrid

from secureafl.deployment.messages import FAILED

_SMALLEST = 64  # bytes that any piece takes; so there are not too many of them


class Reply(NamedTuple):
    """What came back to a request."""

    request: str  # message id
    node: int | None  # None: Flower itself says that there will be no answer
    content: Mapping[str, Any] | None  # its records
    reason: str  # why there is no content


class _Arriving(NamedTuple):
    node: int | None
    root: str
    missing: list[str]
    pieces: dict[str, bytes]


class Inbox:
    """Replies of one grid."""

    def __init__(self, grid: Grid, most_bytes: int) -> None:
        """`most_bytes`: no reply of use is larger."""
        self._grid, self._most = grid, most_bytes
        self._arriving: dict[str, _Arriving] = {}

    def replies(self, wanted: list[str]) -> list[Reply]:
        """The replies to these requests that are complete by now; each is returned once."""
        if not isinstance(self._grid, HttpGrid):
            return [_reply(message) for message in self._grid.pull_messages(wanted)]
        self._arriving = {r: a for r, a in self._arriving.items() if r in wanted}
        # Asked again for what it has handed out, Flower says that there is no such message.
        news = [request for request in wanted if request not in self._arriving]
        if news:
            self._pull_new(news)
        done = [reply for request in [*self._arriving] if (reply := self._collect(request))]
        for reply in done:
            self._confirm(self._arriving.pop(reply.request))
        return done

    @property
    def _client(self) -> Any:
        assert isinstance(self._grid, HttpGrid)
        return self._grid._runtime_client  # its own methods trust too much

    def _pull_new(self, wanted: list[str]) -> None:
        found = self._client.PullMessages(PullAppMessagesRequest(message_ids=wanted))
        trees = zip(found.messages_list, found.message_object_trees, strict=True)
        for message, tree in trees:
            facts = message.metadata
            missing = [piece.object_id for piece in iterate_object_tree(tree)]
            arriving = _Arriving(_sender(facts), facts.message_id, missing, {})
            self._arriving[facts.reply_to_message_id] = arriving

    def _collect(self, request: str) -> Reply | None:
        """Fetch the pieces of a reply that are here; None while some are missing."""
        node, root, missing, pieces = self._arriving[request]
        room = self._most - sum(map(len, pieces.values()))
        if len(missing) * _SMALLEST > self._most:
            return Reply(request, node, None, "oversized")
        while missing:
            piece = self._piece(missing[-1])
            if piece is None:
                return None
            room -= len(piece)
            if room < 0:
                return Reply(request, node, None, "oversized")
            pieces[missing.pop()] = piece
        message = assemble(root, pieces, self._most)
        if isinstance(message, str):
            return Reply(request, node, None, message)
        return _reply(message)._replace(request=request, node=node)

    def _piece(self, name: str) -> bytes | None:
        found = self._client.PullObject(self._about(PullObjectRequest, object_id=name))
        return found.object_content if found.object_found and found.object_available else None

    def _confirm(self, arriving: _Arriving) -> None:
        """Let the SuperLink drop it."""
        about = self._about(ConfirmMessageReceivedRequest, message_object_id=arriving.root)
        self._client.ConfirmMessageReceived(about)

    def _about(self, kind: Callable[..., Any], **more: str) -> Any:
        return kind(node=self._grid.node, run_id=self._grid.run.run_id, **more)  # pyrefly: ignore


def _reply(message: Message) -> Reply:
    facts = message.metadata
    if message.has_error():
        return Reply(facts.reply_to_message_id, _sender(facts), None, FAILED)
    return Reply(facts.reply_to_message_id, _sender(facts), message.content, "")


def _sender(facts: Any) -> int | None:
    return None if facts.src_node_id == SUPERLINK_NODE_ID else facts.src_node_id


def assemble(root: str, pieces: dict[str, bytes], most_bytes: int) -> Message | str:
    """The message that pieces make, or the reason why they make none of that size."""
    try:
        if _assembled_bytes(pieces) > most_bytes:
            return "oversized"
        message = inflate_object_from_contents(root, pieces)
        return message if isinstance(message, Message) else "malformed"
    except Exception:
        return "malformed"


def _assembled_bytes(pieces: dict[str, bytes]) -> int:
    """Bytes of all arrays once their chunks, some named again and again, stand in a row."""
    total = 0
    for piece in pieces.values():
        kind, children, _ = head_of(piece)
        if kind == "Array":
            named = json.loads(piece.partition(b"\x00")[2])["arraychunk_ids"]
            total += sum(len(pieces[children[number]]) for number in named)
    return total
