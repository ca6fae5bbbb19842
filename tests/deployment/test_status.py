"""What clients are told of their part in a run, by whom, and how `join` says it."""

import asyncio
import json
from base64 import b64encode
from datetime import timedelta

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from secureafl.core.errors import ConfigError
from secureafl.deployment.guard import FleetOnly, read_head, status_teller
from secureafl.deployment.keys import make_key
from secureafl.deployment.roster import CLIENTS, RosterReader, read_roster
from secureafl.deployment.status import PATH, Status, StatusClient, Teller, answer

KEY, OTHER, REVOKED = (ec.generate_private_key(ec.SECP384R1()) for _ in range(3))
NODES = {public_key_to_bytes(KEY.public_key()): 7}


def record(**changes):
    facts = {"node": 7, "client": 2, "here": True, "uploads": 3, "accepted": 1, "last_round": 9}
    return {**facts, "recent": ["", "norm", "norm"], "told_share": None, **changes}


@pytest.fixture
def run(tmp_path):
    """A run folder, whose file can be written."""
    (tmp_path / "server").mkdir()

    def write(*clients, **changes):
        facts = {"round": 10, "rounds": 40, "finished": False, "slots": 4, "tell": "summary"}
        fields = {**facts, "clients": list(clients), **changes}
        (tmp_path / CLIENTS).write_text(json.dumps(fields))
        return tmp_path

    return write


def told(run, node=7):
    return answer(read_roster(run), node, "")


def test_decisions_of_the_defence_are_told_of_twenty_uploads_together(run):
    found = told(run(record()), 7)
    assert found == Status("", 10, 40, False, 2, True, 3, 9, node=7)
    assert told(run(record(told_share=17)), 7).share == 17


def test_an_operator_may_have_each_decision_told(run):
    assert told(run(record(), tell="decisions"), 7).decision == "norm"
    assert told(run(record(recent=[""]), tell="decisions"), 7).decision == ""


@pytest.mark.parametrize("reason", ["not_finite", "wrong_shape", "too_large"])
def test_what_is_wrong_with_an_uploads_form_is_told_at_once(run, reason):
    dropped = {reason: 2, "late": 1}
    found = told(run(record(dropped=dropped, last_dropped=reason)), 7)
    assert (found.refusals, found.last_refused) == (2, reason)
    assert told(run(record(dropped=dropped)), 7).last_refused == ""


def test_no_client_is_told_of_another(run):
    found = told(run(record(), record(node=8, client=3, uploads=99)), 7)
    assert (found.client, found.uploads) == (2, 3)
    assert told(run(record()), 9) == Status("", 10, 40, node=9)


def test_client_without_a_slot_is_told_and_a_server_that_starts_says_so(run, tmp_path):
    assert told(run(record(client=None)), 7).refused == "full"
    (tmp_path / CLIENTS).unlink()
    assert told(tmp_path) == Status(node=7)


def test_roster_is_read_again_when_it_has_changed(run, tmp_path):
    reader = RosterReader(tmp_path)
    assert reader.read() is None
    run(record())
    first = reader.read()
    assert first.clients[0].uploads == 3
    assert reader.read() is first
    (tmp_path / CLIENTS).unlink()
    run(record(uploads=4), record(node=8))
    assert [client.uploads for client in reader.read().clients] == [4, 3]


def heads(key, seconds=0.0, signer=None):
    when = (now() + timedelta(seconds=seconds)).isoformat()
    signature = sign_message(signer or key, when.encode())
    return {
        b"flwr-public-key": b64encode(public_key_to_bytes(key.public_key())),
        b"flwr-timestamp": when.encode(),
        b"flwr-signature": b64encode(signature),
    }


def asked(run, headers, keys=True):
    """Status code, and what the guard answers."""
    sent = []

    async def send(message):
        sent.append(message)

    revoked = public_key_to_bytes(REVOKED.public_key())
    teller = status_teller(run, NODES.get if keys else None, lambda key: key == revoked)
    scope = {"type": "http", "path": PATH, "client": ("203.0.113.9", 5), "headers": headers.items()}
    asyncio.run(FleetOnly(None, status_of=teller)(scope, None, send))
    body = sent[1]["body"]
    return sent[0]["status"], Status(**json.loads(body)) if body else None


def test_owner_of_a_key_is_told_how_it_stands(run):
    path = run(record())
    assert asked(path, heads(KEY)) == (200, told(path))
    assert asked(path, heads(OTHER)) == (200, Status("unknown_key"))
    assert asked(path, heads(REVOKED)) == (200, Status("revoked"))
    assert asked(path, heads(KEY, -3600.0)) == (200, Status("clock"))


def test_nobody_is_told_of_a_key_that_is_not_its_own(run):
    path = run(record())
    assert asked(path, heads(KEY, signer=OTHER)) == (401, None)
    assert asked(path, {}) == (401, None)
    assert asked(path, {**heads(KEY), b"flwr-public-key": b"bm8="}) == (401, None)


@pytest.mark.parametrize("kind", ["rsa", "ed25519", "private", "text"])
def test_key_of_another_kind_is_no_signature(run, kind):
    path, form = run(record()), serialization.PublicFormat.SubjectPublicKeyInfo
    pem = serialization.Encoding.PEM
    keys = {
        "rsa": lambda: rsa.generate_private_key(65537, 1024).public_key().public_bytes(pem, form),
        "ed25519": lambda: (
            ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(pem, form)
        ),
        "private": lambda: KEY.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        "text": lambda: b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
    }
    path, named = run(record()), b64encode(keys[kind]())
    assert asked(path, {**heads(KEY), b"flwr-public-key": named}) == (401, None)


def test_where_nobody_needs_a_key_all_are_told_how_far_the_run_is(run):
    assert asked(run(record()), {}, keys=False) == (200, Status("", 10, 40))


def test_join_tells_what_is_new_and_only_that():
    teller = Teller()
    assert teller.lines(Status()) == []
    assert teller.lines(Status("", 3, 40, client=1, here=True)) == ["taking part as client 1"]
    found = Status("", 4, 40, False, 1, True, uploads=1, last_round=3)
    said = ["round 4 of 40; uploads of this client: 1, the last in round 3"]
    assert teller.lines(found) == said
    assert teller.lines(found) == []
    found = found._replace(refusals=2, last_refused="not_finite")
    said = "answers of this client that were refused: 2"
    assert teller.lines(found) == [f"{said}, the last: not_finite"]
    assert teller.lines(found._replace(refusals=3, last_refused="")) == [said.replace("2", "3")]
    (line,) = teller.lines(found._replace(pause="rate", seconds=12.3))
    assert line == "the next model comes in 12 seconds: it answered faster than the server allows"


def test_join_tells_of_decisions_as_far_as_they_are_told():
    found = Status("", 30, 40, False, 1, True, uploads=19, last_round=3)
    teller = Teller()
    teller.lines(found)
    assert teller.lines(found._replace(uploads=20, share=17))[-1].endswith("17 were accepted")
    assert teller.lines(found._replace(uploads=21, share=17, decision=""))[0].endswith(", accepted")
    (line,) = teller.lines(found._replace(uploads=22, share=17, decision="norm"))
    assert line.endswith(", not accepted: norm")


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ("unknown_key", "does not know this key"),
        ("revoked", "was revoked"),
        ("full", "all slots"),
        ("clock", "clocks"),
    ],
)
def test_refused_key_is_told_why_once(refused, said):
    teller = Teller()
    (line,) = teller.lines(Status(refused))
    assert line.startswith("not let in: ")
    assert said in line
    assert teller.lines(Status(refused)) == []


def test_end_and_absence_of_the_server_are_told():
    teller = Teller()
    assert teller.lines("refused") == ["no answer from the server: refused"]
    assert teller.lines("refused") == []
    assert teller.lines(Status("", 40, 40, True, 1, True, 9, 38))[-1] == (
        "the run is finished after 40 rounds; uploads of this client: 9"
    )
    assert Teller().lines(Status()) == []


def test_server_that_is_not_there_is_no_error_of_the_client(tmp_path):
    make_key(tmp_path / "ada")
    client = StatusClient("127.0.0.1:1", None, tmp_path / "ada")
    assert "refused" in client.ask()
    client.close()
    with pytest.raises(ConfigError, match="no certificate"):
        StatusClient("127.0.0.1:1", tmp_path / "ada", None)
    with pytest.raises(ConfigError, match="not a private key"):
        StatusClient("127.0.0.1:1", None, tmp_path / "ada.pub")


def test_connection_of_a_killed_node_is_ended_with_its_own_key(tmp_path):
    make_key(tmp_path / "ada")
    client, asked, codes = StatusClient("127.0.0.1:1", None, tmp_path / "ada"), [], [200, 400]

    def reply(request):
        if request.url.path == PATH:
            return httpx.Response(200, json=Status(node=7)._asdict())
        asked.append(request)
        return httpx.Response(codes.pop(0))

    assert not client.end_session(), "there is no server"
    client._http = httpx.Client(base_url="http://x", transport=httpx.MockTransport(reply))
    assert client.end_session()
    assert not client.end_session(), "the server has refused"
    assert DeactivateNodeRequest.FromString(asked[0].content).node_id == 7
    head = read_head({name.lower(): value for name, value in asked[0].headers.raw})
    assert head.fresh
    assert head.is_genuine()
    client.close()
