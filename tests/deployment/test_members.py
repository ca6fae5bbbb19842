"""Who may join is what the folder of keys says, by key, whatever Flower's list was before."""

import httpx
import pytest
from flwr.proto.control_pb2 import ListNodesResponse, RegisterNodeResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from typer.testing import CliRunner

from secureafl.cli.app import app
from secureafl.core.errors import ConfigError
from secureafl.deployment.keys import load_public, make_key, register, revoke
from secureafl.deployment.members import MemberList, connect
from secureafl.deployment.nodes import Node, RevokedNodes, read_nodes
from secureafl.deployment.slots import SlotRegistry


class Control:
    """Flower's list, which lets no key in twice."""

    def __init__(self):
        self.nodes, self.away = [], False

    def ListNodes(self, _):  # noqa: N802
        if self.away:
            raise httpx.ConnectError("away")
        return ListNodesResponse(nodes_info=self.nodes)

    def RegisterNode(self, request):  # noqa: N802
        assert request.public_key not in {node.public_key for node in self.nodes}
        number = len(self.nodes) + 1
        made = NodeInfo(
            node_id=number, public_key=request.public_key, name=request.name, status="registered"
        )
        self.nodes.append(made)
        return RegisterNodeResponse(node_id=number)

    def UnregisterNode(self, request):  # noqa: N802
        self.nodes[request.node_id - 1].status = "unregistered"

    def live(self):
        return {node.public_key for node in self.nodes if node.status != "unregistered"}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "server").mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def control():
    return Control()


@pytest.fixture
def said():
    return []


@pytest.fixture
def members(control, run, said):
    return MemberList(control, run, said.append)


def key_of(path):
    return public_key_to_bytes(load_public(path))


def test_replaced_key_is_another_node(tmp_path, run, control, members, said):
    old = key_of(register(make_key(tmp_path / "alice"), run))
    members.sync()
    assert control.live() == {old}
    (tmp_path / "new").mkdir()
    new = key_of(register(make_key(tmp_path / "new" / "alice"), run))
    members.sync()
    assert control.live() == {new} != {old}
    assert said == [
        "key alice: let in as node 1",
        "key alice: node 1 is put out",
        "key alice: let in as node 2",
    ]
    members.sync()
    assert len(said) == 3


def test_revoked_key_is_put_out_whatever_this_process_knew(tmp_path, run, control, members, said):
    register(make_key(tmp_path / "alice"), run)
    members.sync()
    revoke("alice", run)
    later = MemberList(control, run, said.append)  # a later serve
    later.sync()
    assert control.live() == set()
    assert read_nodes(run) == [Node(1, "alice", False)]
    assert RevokedNodes(run).read() == set()
    later.sync()
    assert RevokedNodes(run).read() == {1}


def test_list_of_keys_names_nodes_and_their_slots(tmp_path, run, members):
    listed = ["keys", "list", "--run", str(run)]
    assert "nobody yet" in CliRunner().invoke(app, listed).output
    for name in ("alice", "bob", "carol"):
        register(make_key(tmp_path / name), run)
    members.sync()
    revoke("bob", run)
    members.sync()
    members.sync()
    (number,) = [node.number for node in read_nodes(run) if node.name == "carol"]
    SlotRegistry(run, 3, 0).assign(number, 0)
    lines = CliRunner().invoke(app, listed).output.splitlines()
    assert [line.split("  ")[::2] for line in lines] == [
        ["alice", "no slot yet"],
        ["carol", "client 0"],
    ]


def test_key_that_was_revoked_once_is_told_of_once(tmp_path, run, control, members, said):
    public = make_key(tmp_path / "alice")
    register(public, run)
    members.sync()
    revoke("alice", run)
    members.sync()
    register(public, run)
    members.sync()
    members.sync()
    assert control.live() == set()
    assert ["make a new one" in line for line in said] == [False, False, True]


def test_damaged_file_puts_nobody_out_and_is_named(tmp_path, run, control, members, said):
    place = register(make_key(tmp_path / "alice"), run)
    members.sync()
    key = control.live()
    place.write_bytes(b"")
    members.sync()
    members.sync()
    assert control.live() == key
    assert ["not a public key" in line for line in said] == [False, True]


def test_full_disk_keeps_nobody_out_and_the_list_is_written_later(
    tmp_path, run, members, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    register(make_key(tmp_path / "alice"), run)
    with monkeypatch.context() as patch:
        patch.setattr("secureafl.deployment.members.write_nodes", full)
        members.sync()
        members.sync()
    assert read_nodes(run) == []
    members.sync()
    assert read_nodes(run) == [Node(1, "alice", False)]


def test_superlink_that_is_away_is_made_up_for(tmp_path, run, control, members, said):
    register(make_key(tmp_path / "alice"), run)
    control.away = True
    members.sync()
    assert said == []
    control.away = False
    members.sync()
    assert len(control.live()) == 1


def test_file_that_is_no_certificate_is_named(tmp_path):
    (tmp_path / "ca.crt").write_text("x")
    with pytest.raises(ConfigError, match=r"ca\.crt: no certificate"):
        connect("127.0.0.1:1", tmp_path / "ca.crt")
