"""Flower's real server behind the guard, and members and strangers who speak to it directly."""

import contextlib
import os
import signal
import socket
import sqlite3
import ssl
import stat
import subprocess
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from deployment.network import Network
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from secureafl.deployment.processes import environment


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


def memory(number):
    """Resident bytes of a process."""
    lines = Path(f"/proc/{number}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_strangers_do_not_fill_the_memory_and_members_get_through(tmp_path):
    with Network(tmp_path, rounds=1000) as net, contextlib.ExitStack() as stack:
        net.serve()
        net.make_keys("one")
        net.wait(lambda: len(net.told("keys")) == 1, 60, "keys")
        assert stat.S_IMODE((net.run / "server" / "superlink.db").stat().st_mode) == 0o600
        (link,) = net.find("serve", "secureafl.deployment.guard")
        before = memory(link)
        trust = ssl.create_default_context(cafile=str(tmp_path / "certs" / "ca.crt"))
        answers = []
        for _ in range(60):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", net.port), 10))
            line = stack.enter_context(trust.wrap_socket(plain, server_hostname="127.0.0.1"))
            line.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\n")
            line.sendall(b"Content-Length: 16777216\r\n\r\n")
            with contextlib.suppress(OSError):  # closed meanwhile
                for _ in range(15):
                    line.sendall(bytes(2**20))
            answers.append(line.recv(12))
        grown = (memory(link) - before) / 2**20
        print(f"{grown:.0f} MB more")
        assert set(answers) == {b"HTTP/1.1 401"}
        assert grown < 100
        with closing(Member(net, "one")) as member:
            assert member.number


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_polls_that_one_superlink_answers_and_a_second_superexec(tmp_path):
    with Network(tmp_path, rounds=1000) as net:
        net.serve()
        net.make_keys("one", "two")
        net.join("one")
        net.wait(lambda: len(net.told("arrival")) >= 1, 200, "arrivals")
        words = ["--runtime-api-address", f"127.0.0.1:{net.port}"]
        words += ["--root-certificates", str(tmp_path / "certs" / "ca.crt")]
        # Its ServerApps import the task as those of the first: same folder, same paths.
        env = environment(net.run / "server" / "flower") | {"PYTHONPATH": net.env["PYTHONPATH"]}
        second = subprocess.Popen(["flower-superexec", *words], env=env, cwd=tmp_path)
        try:
            (link,) = net.find("serve", "secureafl.deployment.guard")
            with closing(Member(net, "two")) as member:
                poll = PullMessagesRequest(node=Node(node_id=member.number))
                idle, _ = busy(link, 10, lambda: time.sleep(0.1))
                spent, count = busy(link, 10, lambda: member.PullMessages(poll))
            each = (spent - idle) / count
            print(f"{count / 10:.0f} polls a second, {1000 * each:.1f} ms of CPU each")
            assert len(net.told("serving")) == 1, "one run has one ServerApp"
            os.kill(net.find("serve", "flower-superexec")[0], signal.SIGKILL)
            os.kill(net.server_app(), signal.SIGKILL)
            rounds = len(net.told("arrival"))
            net.wait(lambda: len(net.told("arrival")) > rounds, 120, "further round")
            assert len(net.told("serving")) == 2
            assert each < 0.1
        finally:
            second.terminate()
            second.wait()


def busy(process, seconds, action):
    """CPU seconds of a process while something is done again and again, and how often it was."""
    before, until, count = cpu_seconds(process), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        action()
        count += 1
    return cpu_seconds(process) - before, count


def cpu_seconds(number):
    """Of a process, so far."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
