"""Where the SuperLink listens: at the address that was given, and nowhere else on the network.

Flower listens at one address. The server's own processes need 127.0.0.1, which the guard lets
control it, so that is open too; 0.0.0.0 holds it already.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import uvicorn

from secureafl.core.errors import ConfigError, RunError

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


def run(app: Any, host: str, port: int, **settings: Any) -> None:
    """Serve an application, as `uvicorn.run` does, at these sockets alone."""
    sockets = open_sockets(host, port)
    # Headers that name another sender, which a proxy may set, would open the control API.
    config = uvicorn.Config(app, host=host, port=port, proxy_headers=False, **settings)
    uvicorn.Server(config).run(sockets)
