"""Flower's real server behind the guard, and members and strangers who speak to it directly."""

import sqlite3
import ssl
import time
from contextlib import closing

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from deployment.network import Network
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor


class Member(FleetHttpClient):
    """A member without a SuperNode: it may say what it likes."""

    def __init__(self, net, name):
        secret = (net.folder / name).read_bytes()
        key = serialization.load_ssh_private_key(secret, None)
        super().__init__(
            f"https://127.0.0.1:{net.port}",
            interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
            verify=ssl.create_default_context(cafile=str(net.folder / "certs" / "ca.crt")),
        )
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=60.0
        )
        self.number = self.ActivateNode(request).node_id

    def order(self, run, victim, source):
        """Ask another member for something, in somebody's name."""
        facts = Metadata(
            run_id=run,
            message_id="order",
            src_node_id=source,
            dst_node_id=victim,
            created_at=time.time(),
            ttl=60.0,
            message_type="train",
        )
        message = Message(metadata=facts, content=RecordDict())
        tree = ObjectTree(object_id="order")
        self.PushMessages(
            PushMessagesRequest(
                node=Node(node_id=self.number), messages_list=[message], message_object_trees=[tree]
            )
        )


def rows(net, query):
    place = f"file:{net.run}/server/superlink.db?mode=ro"
    with closing(sqlite3.connect(place, uri=True)) as database:
        return database.execute(query).fetchall()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_member_gives_no_orders_in_the_servers_name(tmp_path):
    with Network(tmp_path, rounds=1000) as net:
        net.serve()
        net.make_keys("one", "two")
        net.join("one")
        net.wait(lambda: len(net.told("arrival")) >= 1, 200, "arrivals")
        net.wait(lambda: len(net.told("keys")) == 2, 30, "keys")
        (victim,) = {line["node"] for line in net.told("arrival")}
        (run,) = rows(net, "select run_id from run")[0]
        with closing(Member(net, "two")) as member:
            for source in (SUPERLINK_NODE_ID, member.number, victim):
                with pytest.raises(httpx.HTTPStatusError):
                    member.order(run % 2**64, victim, source)
        assert rows(net, "select * from message_ins where message_id = 'order'") == []
