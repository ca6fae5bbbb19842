"""Strangers reach the clients' part of Flower's server and nothing else."""

import asyncio
import random
import resource
from base64 import b64encode
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from deployment.hostile import COUNT
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.supercore.date import now
from flwr.supercore.error import FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from secureafl.deployment.guard import (
    FLEET,
    HEALTH,
    FleetOnly,
    is_loopback,
    replies_only,
    signer,
    status_teller,
)
from secureafl.deployment.limits import (
    LARGEST_REQUEST,
    MOST_BYTES,
    STRANGERS_REQUEST,
    ByteBudget,
    limit_body,
)

HOME, STRANGER = "127.0.0.1", "203.0.113.9"


def status(path, client=STRANGER, headers=(), body=(b"",), kind="http", sender_of=None):
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
    asyncio.run(FleetOnly(inner, sender_of)(scope, receive, send))
    return sent[0]["status"]


def length(size):
    return [(b"content-length", str(size).encode())]


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
    piece, chunked = bytes(2**20), [(b"transfer-encoding", b"chunked")]
    assert status("/v1/fleet/push-object", headers=chunked, body=[piece] * 16) == 200
    assert status("/v1/fleet/push-object", headers=chunked, body=[piece] * 17) == 400
    assert status("/v1/fleet/push-object", headers=length(2**20), body=[piece]) == 200
    assert status("/v1/fleet/push-object", headers=length(2**20), body=[piece, b"x"]) == 400
    assert status("/v1/fleet/push-object", body=[b"x"]) == 400  # announced none


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


def body_read(sender_of, size):
    """Whether any of a body is asked for."""
    asked = []

    async def inner(scope, receive, send):
        asked.append(await receive())

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        assert message.get("status", 401) == 401

    path = "/v1/fleet/push-object"
    scope = {"type": "http", "path": path, "client": (STRANGER, 5), "headers": length(size)}
    asyncio.run(FleetOnly(inner, sender_of)(scope, receive, send))
    return bool(asked)


def test_body_of_a_stranger_is_not_read():
    assert body_read(lambda _: b"key", LARGEST_REQUEST)
    assert not body_read(lambda _: None, LARGEST_REQUEST)
    assert body_read(lambda _: None, 200)  # Flower itself says that the key is not registered


def heads(key, signed_at=0.0, stranger=None):
    """What a client's request begins with."""
    signed = (now() + timedelta(seconds=signed_at)).isoformat().encode()
    signature = sign_message(stranger or key, signed)
    public = public_key_to_bytes(key.public_key())
    return {
        b"flwr-public-key": b64encode(public),
        b"flwr-signature": b64encode(signature),
        b"flwr-timestamp": signed,
    }


def test_signature_of_a_registered_key_is_known_by_the_head():
    key, other = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    public = public_key_to_bytes(key.public_key())
    sender_of = signer({public: 7}.get)
    assert sender_of(heads(key)) == public
    assert sender_of(heads(other)) is None
    assert sender_of(heads(key, stranger=other)) is None
    assert sender_of(heads(key, signed_at=-3600.0)) is None
    assert sender_of({}) is None
    for name in heads(key):
        for wrong in (b"", b"\xff", b"x", b"AAAA"):
            assert sender_of({**heads(key), name: wrong}) is None


def test_bodies_wait_while_others_are_under_way():
    async def play():
        budget = ByteBudget(total=10, each=6)
        await budget.take("a", 6)
        for sender, size in (("a", 1), ("b", 5)):  # one's own share, and what is left for all
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(budget.take(sender, size), 0.01)
        await budget.take("b", 4)
        waiting = asyncio.create_task(budget.take("c", 5))
        await asyncio.sleep(0)
        assert not waiting.done()
        await budget.give_back("a", 6)
        await asyncio.wait_for(waiting, 1.0)

    asyncio.run(play())


def test_body_that_takes_too_long_is_cut_off():
    async def never():
        await asyncio.sleep(60)

    async def play():
        return await limit_body(never, 100, seconds=0.02)()

    assert asyncio.run(play()) == {"type": "http.disconnect"}


def test_waiting_for_a_client_to_go_is_not_limited():
    async def play():
        messages = [{"type": "http.request", "body": b"x"}]

        async def receive():
            await asyncio.sleep(0 if messages else 0.05)
            return messages.pop() if messages else {"type": "http.disconnect", "gone": True}

        limited = limit_body(receive, 100, seconds=0.02)
        await limited()
        return await limited()

    assert asyncio.run(play())["gone"]


PLACES = ["pull-messages", "push-messages", "push-object", "register-node", "../control/start-run"]
PLACES += ["secureafl/status"]
PATHS = [*(FLEET + place for place in PLACES), "/v1/control/list-nodes", HEALTH, "/"]
NAMES = [b"content-length", b"transfer-encoding", b"host", b"x-forwarded-for", b"forwarded"]
HOSTS = [STRANGER, "10.0.0.1", "2001:db8::1", "", "localhost.example.org", "x" * 300, "127.0.0.1.x"]


def mangled_bytes(rng, content):
    """Some bytes cut, changed, doubled or put in."""
    place = rng.randrange(len(content) + 1)
    return rng.choice([
        content[:place],
        content[:place] + rng.randbytes(1) + content[place + 1 :],
        content * rng.randrange(4),
        content[:place] + rng.randbytes(rng.randrange(40)) + content[place:],
    ])  # fmt: skip


def hostile_request(rng, real):
    """A stranger's request: an honest one with something wrong about it; scope and body."""
    headers = {**real, b"content-length": str(rng.choice([0, 9, 5000, 10**8])).encode()}
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice([*headers, *NAMES])
        how = rng.randrange(4)
        if how == 0:
            headers.pop(name, None)
        elif how == 1:
            headers[name] = rng.choice([b"", b"-1", b"chunked", b"127.0.0.1", b"9" * 40, b"0x10"])
        else:
            headers[name] = mangled_bytes(rng, headers.get(name, b""))
    path = rng.choice(PATHS)
    if rng.random() < 0.3:
        path = mangled_bytes(rng, path.encode()).decode(errors="replace")
    client = rng.choice([None, *((host, 5) for host in HOSTS)])
    kind = "http" if rng.random() < 0.95 else rng.choice(["websocket", "x", ""])
    body = [rng.randbytes(rng.choice([0, 1, 100, 6000])) for _ in range(rng.randrange(1, 5))]
    return {"type": kind, "path": path, "client": client, "headers": list(headers.items())}, body


async def send_hostile(rng, count):
    """Send requests to a guard; every one must be answered, and nothing be left behind."""
    key = ec.generate_private_key(ec.SECP384R1())
    find_node = {public_key_to_bytes(key.public_key()): 7}.get
    known, teller = signer(find_node), status_teller(Path("/nowhere"), find_node, lambda _: False)
    read, signed = 0, False

    def sender_of(headers):
        nonlocal signed
        found = known(headers)
        signed = found is not None
        return found

    async def inner(scope, receive, send):
        nonlocal read
        assert scope["type"] == "http"
        assert scope["path"].startswith(FLEET) or scope["path"] == HEALTH
        while (message := await receive())["type"] == "http.request":
            read += len(message["body"])
            if not message["more_body"]:
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})

    budget, answers = ByteBudget(), {}
    guard = FleetOnly(inner, sender_of, budget, teller)
    for number in range(count):
        if number % 10_000 == 0:  # a signature is good for five minutes
            real = [heads(key, at) for at in (0.0, -3600.0)]
        scope, body = hostile_request(rng, rng.choice(real))
        pieces = iter([(piece, True) for piece in body[:-1]] + [(body[-1], False)])

        async def receive(pieces=pieces):
            piece, more = next(pieces, (b"", False))
            return {"type": "http.request", "body": piece, "more_body": more}

        async def send(message):
            if "status" in message:
                answers[message["status"]] = answers.get(message["status"], 0) + 1

        read, signed = 0, False
        await guard(scope, receive, send)
        assert read <= (LARGEST_REQUEST if signed else STRANGERS_REQUEST), scope
    assert sum(answers.values()) == count
    assert (budget._left, dict(budget._held)) == (MOST_BYTES, {})
    return answers


def test_hostile_requests_are_answered_and_reach_nothing_but_the_clients_part():
    answers = asyncio.run(send_hostile(random.Random(3), 1500))
    assert answers.keys() == {200, 401, 403, 413}


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_hostile_requests_to_the_guard_take_no_memory():
    rng = random.Random(4)
    asyncio.run(send_hostile(rng, 5_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = asyncio.run(send_hostile(rng, COUNT // 10))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(answers, f"memory grew by {grown / 2**10:.0f} MiB")
    assert grown < 32 * 2**10  # KiB
