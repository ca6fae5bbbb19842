"""Flower's own list of nodes, kept equal to the run folder's public keys.

Keys are compared, not names, and with Flower's list itself: a file whose key was replaced is
another node, and whatever was lost between two turns is made up for in the next.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from secureafl.core.errors import ConfigError
from secureafl.deployment.keys import KEYS, load_public
from secureafl.deployment.nodes import Node, write_nodes

_SECONDS = 5.0  # that the SuperLink may take to answer


def connect(address: str, ca: Path) -> ControlHttpClient:
    """Flower's control API at an address of this machine."""
    try:
        trust = ssl.create_default_context(cafile=str(ca))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{ca}: no certificate ({error}); see 'secureafl keys ca'") from None
    version = RuntimeVersionHttpInterceptor(component_name="secureafl")
    return ControlHttpClient(
        f"https://{address}", interceptors=[version], verify=trust, timeout=_SECONDS
    )


class MemberList:
    """Lets in the owners of the keys in a folder, and puts out everybody else."""

    def __init__(self, control: Any, run: Path, say: Callable[[str], None]) -> None:
        """`control` is what `connect` returns; `say` is told what is done."""
        self._control, self._run, self._say = control, run, say
        self._written: list[Node] | None = None
        self._told: set[str] = set()  # complaints, which would come again at every turn

    def sync(self) -> None:
        """Make the two lists equal; while the SuperLink is away, leave it to the next turn."""
        wanted, damaged = self._read_keys()
        try:
            nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
            live = [node for node in nodes if node.status != NodeStatus.UNREGISTERED]
            self._write(nodes)
            for node in live:
                if node.public_key not in wanted and node.name not in damaged:
                    self._put_out(node)
            known = {node.public_key for node in live}
            revoked = {node.public_key for node in nodes} - known
            for key in sorted(wanted.keys() - known):
                self._let_in(key, wanted[key], key in revoked)
        except httpx.TransportError:
            return
        except httpx.HTTPStatusError as error:
            self._complain(f"keys: the SuperLink says {error.response.text[:200]}")

    def _write(self, nodes: Iterable[Any]) -> None:
        """Let the ServerApp know who was put out, by Flower's own list."""
        found = [
            Node(node.node_id, node.name, node.status == NodeStatus.UNREGISTERED) for node in nodes
        ]
        if found != self._written:
            with contextlib.suppress(OSError):  # on a full disk: at a later turn
                write_nodes(self._run, found)
                self._written = found

    def _read_keys(self) -> tuple[dict[bytes, str], set[str]]:
        """Names by key, and names of files that hold none: the nodes of these are let be."""
        wanted: dict[bytes, str] = {}
        damaged: set[str] = set()
        for path in sorted((self._run / KEYS).glob("*.pub")):
            try:
                wanted[public_key_to_bytes(load_public(path))] = path.stem
            except ConfigError as error:
                damaged.add(path.stem)
                self._complain(str(error))
        return wanted, damaged

    def _put_out(self, node: Any) -> None:
        self._control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
        self._say(f"key {node.name or 'without a name'}: node {node.node_id} is put out")

    def _let_in(self, key: bytes, name: str, revoked: bool) -> None:
        if revoked:
            remedy = "Flower lets none return; make a new one with 'secureafl keys make'"
            self._complain(f"key {name}: was revoked once, and {remedy}")
            return
        try:
            made = self._control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
            self._say(f"key {name}: let in as node {made.node_id}")
        except httpx.HTTPStatusError as error:
            self._complain(f"key {name}: refused by Flower ({error.response.text[:200]})")

    def _complain(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._say(line)
