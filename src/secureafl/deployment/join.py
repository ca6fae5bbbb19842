"""What `secureafl join` keeps running: Flower's SuperNode, and a worker that trains for it.

A node that is cut off or killed is started again until it is let in. After a kill the SuperLink
takes the old one for alive, and refuses the new one, until it is told.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from secureafl.core.errors import ConfigError
from secureafl.deployment.client_app import WORKER
from secureafl.deployment.homes import FLOWER, clear_home, make_home
from secureafl.deployment.logs import rotate
from secureafl.deployment.processes import (
    end_leftovers,
    environment,
    find_processes,
    free_port,
    require_safe,
    start,
    stop,
)
from secureafl.deployment.status import StatusClient
from secureafl.deployment.worker import COMPLAINT

_AGAIN_SECONDS, _MOST_SECONDS = 5.0, 30.0  # between two tries: at first, and after several
_LOOK_SECONDS = 60.0  # between two looks whether a node has what it needs, and before the first
_EXECUTOR = "flower-superexec"  # Flower's program that starts client apps for a node
_LARGEST_LOG = 4 * 2**20  # bytes; temporary folders are often in memory
_REASON = "[code:"  # how Flower's line begins that says why


class ClientService:
    """The two processes of one client."""

    def __init__(
        self,
        server: str,
        client_options: dict[str, Any],
        ca: Path | None,
        key: Path | None,
        insecure: bool,
    ) -> None:
        """Nothing is started yet. `client_options` is as `worker.options_from` takes it."""
        remedy = "give --ca (the server's ca.crt) and --key"
        require_safe(server, ca is not None and key is not None, insecure, remedy)
        for name, path in (("--ca", ca), ("--key", key)):
            if path is not None and not path.is_file():
                raise ConfigError(f"{name} {path}: no such file")
        if key is not None and ca is None:
            raise ConfigError(f"--key {key}: give --ca too; keys are used with TLS only")
        self._server, self._client_options, self._ca, self._key = server, client_options, ca, key
        self.status = StatusClient(server, ca, key)
        self._home, self._lock = make_home()
        self._env = environment(self._home / FLOWER)
        self._node: subprocess.Popen[bytes] | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        self._began, self._pause, self._looked = 0.0, _AGAIN_SECONDS, 0.0
        self.starts = 0  # of the node
        self._killed = False  # whether the server takes a node for alive that was
        self._cleared = True  # whether nothing is left of a node that has ended
        self._told: set[str] = set()  # complaints
        self._read = 0  # bytes of the worker's log

    @property
    def log(self) -> Path:
        """The file with the node's output."""
        return self._home / "supernode.log"

    def turn(self) -> None:
        """See that both run."""
        if self._worker is None or self._worker.poll() is not None:
            words = [str(self._socket), json.dumps(self._client_options)]
            command = [sys.executable, "-m", "secureafl.deployment.worker", *words]
            env = {**self._env, "FLWR_HOME": str(self._home)}  # not one of Flower's
            self._worker = start(command, self._home / "worker.log", env)
        for path in self._home.glob("*.log"):
            rotate(path, held_open=True, largest=_LARGEST_LOG)
        self._end_lame_node()
        ended = self._node is None or self._node.poll() is not None
        if ended and not self._cleared:
            end_leftovers(self._home / FLOWER)  # its client apps would wait for it for ever
            self._cleared = True
        ran = time.monotonic() - self._began
        if ended and (self._node is None or ran >= self._pause):
            short = self._node is not None and ran < 2 * _MOST_SECONDS
            self._pause = min(2 * self._pause, _MOST_SECONDS) if short else _AGAIN_SECONDS
            self._end_session()
            self._node = start(self._supernode(), self.log, self._env)
            self._began, self._cleared = time.monotonic(), False
            self.starts += 1

    def _end_lame_node(self) -> None:
        """End a node whose SuperExec was killed: it takes requests on and never answers them."""
        now, node = time.monotonic(), self._node
        if now - max(self._looked, self._began) < _LOOK_SECONDS or not Path("/proc/self").exists():
            return
        self._looked = now
        if node is not None and not find_processes(self._home / FLOWER, _EXECUTOR):
            stop(node)

    def _end_session(self) -> None:
        """Tell the server of a node that was killed; one that ends has told it by itself.

        Nobody else's connection is ended: another machine may have the same key.
        """
        self._killed |= self._node is not None and (self._node.returncode or 0) < 0
        self._killed = self._killed and not self.status.end_session()

    @property
    def _socket(self) -> Path:
        return self._home / "worker.sock"

    def _supernode(self) -> list[str]:
        words = ["flower-supernode", "--superlink", self._server, "--port", str(free_port())]
        words += ["--node-config", f'{WORKER}="{self._socket}"']
        words += ["--root-certificates", str(self._ca)] if self._ca else ["--insecure"]
        return [*words, "--auth-supernode-private-key", str(self._key)] if self._key else words

    def refusal(self) -> str:
        """Why the node ended last, in Flower's words; empty while it runs."""
        if self._node is None or self._node.poll() is None:
            return ""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line.startswith(_REASON)), "it ended")

    def complaints(self) -> list[str]:
        """What the worker could not do, each kind once."""
        path = self._home / "worker.log"
        if not path.exists() or path.stat().st_size == self._read:
            return []
        self._read = path.stat().st_size
        lines = path.read_text(errors="replace").splitlines()
        found = dict.fromkeys(line for line in lines if line.startswith(COMPLAINT))
        fresh = [line for line in found if line not in self._told]
        self._told |= set(fresh)
        return fresh

    def stop(self) -> None:
        """End both, and leave nothing behind."""
        stop(self._node)
        stop(self._worker)
        self.status.close()
        clear_home(self._home)
        self._lock.close()
