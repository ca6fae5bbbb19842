"""Strangers reach the clients' part of Flower's server and nothing else."""

import asyncio

import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.error import FlowerError

from secureafl.deployment.guard import LARGEST_REQUEST, FleetOnly, is_loopback, replies_only

HOME, STRANGER = "127.0.0.1", "203.0.113.9"


def status(path, client=STRANGER, headers=(), body=(b"",), kind="http"):
    """What the guarded application answers; 200 if the request got through with its whole body."""
    sent = []

    async def inner(scope, receive, send):
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            pass
        whole = message["type"] == "http.request"
        await send({"type": "http.response.start", "status": 200 if whole else 400, "headers": []})

    pieces = [{"type": "http.request", "body": b, "more_body": True} for b in body]
    pieces[-1] = {**pieces[-1], "more_body": False}
    queue = iter(pieces)

    async def receive():
        return next(queue)

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "client": (client, 5), "headers": list(headers)}
    asyncio.run(FleetOnly(inner)(scope, receive, send))
    return sent[0]["status"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/control/../fleet/",
        "/v1/runtime/acquire-task",
        "/v1/fleet",
        "/v1/fleets/x",
        "//v1/fleet/x",
        "/openapi.json",
        "/docs",
        "/",
    ],
)
def test_only_this_machine_gets_beyond_the_clients_part(path):
    assert status(path) == 403
    assert status(path, HOME) == 200


def test_clients_get_through():
    assert status("/v1/fleet/pull-messages") == 200


def test_nobody_gets_through_by_websocket():
    assert status("/v1/fleet/x", kind="websocket") == 403


@pytest.mark.parametrize("length", [str(LARGEST_REQUEST + 1), "9" * 30, "-1", "x", ""])
def test_request_that_announces_too_much_or_nonsense_is_not_read(length):
    headers = [(b"content-length", length.encode())]
    assert status("/v1/fleet/push-object", headers=headers) == 413


def test_request_that_grows_too_large_is_cut_off():
    piece = bytes(2**20)
    assert status("/v1/fleet/push-object", body=[piece] * 16) == 200
    assert status("/v1/fleet/push-object", body=[piece] * 17) == 400


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_is_known(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "10.0.0.1", "example.org", "", "localhost.example.org", "128.0.0.1"]
)
def test_all_else_is_not_loopback(host):
    assert not is_loopback(host)


def pushed(**facts):
    """What the guarded handler does with a message that node 7 pushes."""
    metadata = {"src_node_id": 7, "reply_to_message_id": "asked", **facts}
    message = Message(metadata=Metadata(**metadata))
    request = PushMessagesRequest(node=Node(node_id=7), messages_list=[message])
    return replies_only(lambda request, state: "stored")(request, None)


def test_client_pushes_replies_of_its_own():
    assert pushed() == "stored"


@pytest.mark.parametrize(
    "facts",
    [
        {"reply_to_message_id": "", "src_node_id": 1, "dst_node_id": 8},  # the server's number
        {"reply_to_message_id": ""},
        {"src_node_id": 1},
        {"src_node_id": 8},
    ],
)
def test_client_speaks_neither_for_the_server_nor_for_another(facts):
    with pytest.raises(FlowerError, match="no reply of its own"):
        pushed(**facts)
