"""The server listens where it was told to, and nowhere else."""

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
import uvicorn
from command import TESTS

from secureafl.core.errors import ConfigError, RunError
from secureafl.deployment import listening
from secureafl.deployment.listening import LimitedProtocol, open_sockets, require_free
from secureafl.deployment.processes import free_port
from secureafl.deployment.serve import make_address

has_ipv6 = pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")


def reachable(host, port):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.mark.parametrize(
    ("address", "bound"),
    [
        ("127.0.0.1", {"127.0.0.1"}),
        ("localhost", {"127.0.0.1"}),
        ("127.0.0.2", {"127.0.0.1", "127.0.0.2"}),
        pytest.param("[::1]", {"127.0.0.1", "::1"}, marks=has_ipv6),
    ],
)
def test_what_counts_as_loopback_is_all_that_is_bound(address, bound):
    where = make_address(f"{address}:{free_port()}", None, False)
    sockets = open_sockets(where.host, where.port)
    try:
        assert {made.getsockname()[0] for made in sockets} == bound
        for made in sockets:
            made.listen()
        assert not reachable("127.0.0.3", where.port)  # as every other address of this machine
    finally:
        for made in sockets:
            made.close()


@pytest.mark.parametrize("address", ["10.0.0.1:8000", "[2001:db8::1]:8000", "0.0.0.0:8000"])
def test_address_of_an_interface_stays_that_address(address):
    assert make_address(address, None, True).host == address.rpartition(":")[0].strip("[]")


def test_taken_port_is_named():
    with closing(socket.create_server(("0.0.0.0", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=r"127\.0\.0\.1:\d+: .*choose another"):
            require_free("127.0.0.2", port)


@has_ipv6
def test_all_of_ipv6_is_not_all_of_ipv4():
    port = free_port()
    with closing(socket.create_server(("127.0.0.3", port))):
        require_free("::", port)


def test_name_is_refused_since_it_may_mean_several_addresses():
    with pytest.raises(ConfigError, match="number of an interface"):
        make_address("learn.example.org:8000", None, True)


def test_address_of_another_machine_is_named():
    with pytest.raises(RunError, match=r"203\.0\.113\.7:8000: .*choose another"):
        require_free("203.0.113.7", 8000)


async def echo(scope, receive, send):
    """An application that reads nothing and says yes."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


@pytest.fixture
def server(monkeypatch):
    """Starts the limited server as one of another machine's; its port."""
    monkeypatch.setattr(listening, "is_loopback", lambda host: False)
    settings = {"http": LimitedProtocol, "ws": "none", "lifespan": "off", "log_config": None}
    made = uvicorn.Server(uvicorn.Config(echo, **settings))
    door = open_sockets("127.0.0.1", free_port())
    thread = threading.Thread(target=made.run, args=(door,))
    thread.start()
    while not made.started and thread.is_alive():
        time.sleep(0.01)
    yield door[0].getsockname()[1]
    made.should_exit = True
    thread.join()
    assert not LimitedProtocol._open


def connect(port):
    return socket.create_connection(("127.0.0.1", port), 5)


def answer(line):
    line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    found = b""
    while not found.endswith(b"0\r\n\r\n") and (part := line.recv(1000)):
        found += part  # head and body may come one after the other
    return found


def test_connection_without_a_whole_head_is_closed(server, monkeypatch):
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.3)
    with connect(server) as silent, connect(server) as slow, connect(server) as honest:
        slow.sendall(b"GET / HTTP/1.1\r\nHost")
        assert b"yes" in answer(honest)
        for line in (silent, slow):
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(1) == b""
    with connect(server) as again:
        assert b"yes" in answer(again)


@pytest.mark.parametrize("limit", ["MOST_CONNECTIONS", "MOST_OF_ONE_ADDRESS"])
def test_further_connections_are_closed_and_there_is_room_once_others_go(
    server, monkeypatch, limit
):
    monkeypatch.setattr(listening, limit, 2)
    with connect(server) as one, connect(server) as two:
        assert b"yes" in answer(one)
        assert b"yes" in answer(two)
        with connect(server) as third, contextlib.suppress(ConnectionError):
            assert answer(third) == b""
    until = time.monotonic() + 5
    while LimitedProtocol._open and time.monotonic() < until:
        time.sleep(0.01)
    with connect(server) as fourth:
        assert b"yes" in answer(fourth)


# A second network behind a cable: whoever is there must not reach a server on loopback.
TWO_NETWORKS = """
ip link set lo up
unshare -n sleep 60 & other=$!
trap 'kill $other $server' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.1; done
ip link add here type veth peer name there netns $other
ip addr add 10.99.0.1/24 dev here; ip link set here up
nsenter -t $other -n ip addr add 10.99.0.2/24 dev there; nsenter -t $other -n ip link set there up
{python} -m secureafl serve tiny.toml --out run --quiet --address {address}:8000 & server=$!
reach() {{ {python} -c "import socket, sys; socket.create_connection((sys.argv[1], 8000), 5)" $1; }}
until reach 127.0.0.1 2>/dev/null; do sleep 0.5; done
nsenter -t $other -n bash -c "$(declare -f reach); reach 10.99.0.1" && echo in || echo out
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("address", "more", "seen"),
    [
        ("127.0.0.2", "", "out"),
        ("[::1]", "", "out"),
        ("10.99.0.1", "--insecure", "in"),
    ],
)
def test_from_another_network_only_an_address_of_that_network_is_reached(
    tmp_path, monkeypatch, address, more, seen
):
    words = ["unshare", "--user", "--map-root-user", "--net"]
    if not shutil.which("ip") or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("no network namespaces here")
    (tmp_path / "tiny.toml").write_text(
        'clients = 3\n[task]\nkind = "reference.tiny_task:TinyTask"'
    )
    monkeypatch.setenv("PYTHONPATH", ":".join([str(TESTS), *sys.path]))
    script = TWO_NETWORKS.format(python=sys.executable, address=address).replace(
        "--quiet", f"--quiet {more}"
    )
    done = subprocess.run(
        [*words, "bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split()[-1:] == [seen], done.stderr
