"""How the SuperLink listens: at the address that was given, to so many, and for so long.

Flower listens at one address. The server's own processes need 127.0.0.1, which the guard lets
control it, so that is open too; 0.0.0.0 holds it already.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
from collections import Counter
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from secureafl.core.errors import ConfigError, RunError
from secureafl.deployment.guard import is_loopback

MOST_CONNECTIONS = 2000  # of other machines
MOST_OF_ONE_ADDRESS = 500
HEAD_SECONDS = 20.0  # from connecting, or from the last answer, to the next whole head
OWN = "127.0.0.1"  # where this machine's own processes reach the server


def numeric_host(host: str) -> str:
    """The address of an interface as a number; localhost is the only name."""
    plain = host.removeprefix("[").removesuffix("]")
    try:
        return OWN if plain == "localhost" else str(ipaddress.ip_address(plain))
    except ValueError:
        wanted = "give the number of an interface, such as 0.0.0.0 or 10.1.2.3"
        raise ConfigError(f"--address {host}: a name may mean several machines; {wanted}") from None


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Bound sockets of the address, and of 127.0.0.1."""
    hosts = [host] if host in (OWN, "0.0.0.0") else [OWN, host]
    found: list[socket.socket] = []
    try:
        for one in hosts:
            found.append(_open_socket(one, port))  # noqa: PERF401  (what is open must be closed)
    except RunError:
        for made in found:
            made.close()
        raise
    return found


def _open_socket(host: str, port: int) -> socket.socket:
    kind, numbers = socket.SOCK_STREAM, socket.AI_NUMERICHOST
    family, _, _, _, place = socket.getaddrinfo(host, port, type=kind, flags=numbers)[0]
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # [::] would open IPv4 too
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(place)
    except OSError as error:
        made.close()
        raise RunError(f"{host}:{port}: {error.strerror}; choose another --address") from None
    return made


def require_free(host: str, port: int) -> None:
    """Raise if the server cannot listen there."""
    for made in open_sockets(host, port):
        made.close()


class LimitedProtocol(H11Protocol):
    """HTTP with a limit of connections, and of the time until a request's head is there.

    The head is kept in memory up to 64 kB, the body only as far as the application reads it.
    """

    _open: ClassVar[Counter[str]] = Counter()  # connections by address
    _timer: asyncio.TimerHandle | None = None
    _counted = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        if not is_loopback(host):
            if self._open.total() >= MOST_CONNECTIONS or self._open[host] >= MOST_OF_ONE_ADDRESS:
                transport.abort()
                return
            self._counted = host
            self._open[host] += 1
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client has gone."""
        self._stop_waiting()
        if self._counted:
            self._open[self._counted] -= 1
            if not self._open[self._counted]:
                del self._open[self._counted]
            self._counted = ""
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Bytes have come."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """A request is answered, another may follow."""
        super().on_response_complete()
        self._expect_head()

    def _expect_head(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def run(app: Any, host: str, port: int, **settings: Any) -> None:
    """Serve an application, as `uvicorn.run` does, at these sockets alone and within limits."""
    sockets = open_sockets(host, port)
    _allow_files(2 * MOST_CONNECTIONS)
    settings |= {"http": LimitedProtocol, "ws": "none"}
    # Headers that name another sender, which a proxy may set, would open the control API.
    config = uvicorn.Config(app, host=host, port=port, proxy_headers=False, **settings)
    uvicorn.Server(config).run(sockets)


def _allow_files(wanted: int) -> None:
    """Let this process have as many files open as its connections need, and its database."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), most))
