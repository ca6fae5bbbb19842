"""The process that trains for a node, and stays while Flower starts one per message.

Flower runs its ClientApp in a new process each time; importing torch and loading the data there
would cost more than training. So the ClientApp passes its bytes on to this one, over a socket in
a folder that only the same user may enter.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from io import BufferedRWPair
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from secureafl.core.errors import ConfigError, SecureAflError
from secureafl.deployment.homes import clear_home
from secureafl.deployment.messages import PROTOCOL

if TYPE_CHECKING:
    from jaxtyping import Float

    from secureafl.deployment.trainer import ClientOptions, Trainer


COMPLAINT = "cannot train"  # how lines for the user of `join` begin
# Tables of an experiment that no client needs.
_SERVERS = ("defense", "arrivals", "server_optimizer", "server_schedule")


class Job(NamedTuple):
    """What a client is asked for."""

    experiment: str  # as TOML
    client: int
    version: int
    protocol: int = 0  # of the server's messages; the first ones did not say
    inputs: str = ""  # InputFacts of the server's data, as JSON
    task_checksum: str = ""  # of the file of the server's task, if that is its own


def request_update(
    place: str, job: Job, weights: Float[np.ndarray, " d"]
) -> tuple[np.ndarray, str]:
    """Have the worker at a socket train; returns its update, and the attack if it plays one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(place)
        with line.makefile("rwb") as file:
            _send(file, job._asdict(), weights)
            facts, update = _receive(file)
    if facts.get("error"):
        raise RuntimeError(facts["error"])
    return update, facts["attack"]


def _send(file: BufferedRWPair, facts: dict[str, Any], numbers: Float[np.ndarray, " d"]) -> None:
    data = np.ascontiguousarray(numbers, "<f4").tobytes()
    file.write(json.dumps({**facts, "bytes": len(data)}).encode() + b"\n" + data)
    file.flush()


def _receive(file: BufferedRWPair) -> tuple[dict[str, Any], np.ndarray]:
    facts = json.loads(file.readline() or b'{"error": "the worker is gone", "bytes": 0}')
    return facts, np.frombuffer(file.read(facts["bytes"]), "<f4").copy()


class TrainerCache:
    """The trainer of the experiment at hand; another experiment replaces it."""

    def __init__(self, client_options: ClientOptions) -> None:
        self._client_options = client_options
        self._trainers: dict[tuple[str, ...], Trainer] = {}

    def train(self, job: Job, weights: Float[np.ndarray, " d"]) -> tuple[np.ndarray, str]:
        """The update a job asks for, and the attack if one is played."""
        if job.protocol != PROTOCOL:
            numbers = f"format {job.protocol} of messages, and this client {PROTOCOL}"
            raise ConfigError(f"the server has {numbers}; install the same version on both sides")
        trained = self._trainer(job).train(weights, job.client, job.version)
        return trained.update, trained.attack

    def _trainer(self, job: Job) -> Trainer:
        key = (job.experiment, job.inputs, job.task_checksum)
        if key not in self._trainers:
            self._trainers = {key: self._make_trainer(job)}  # not two data sets
        return self._trainers[key]

    def _make_trainer(self, job: Job) -> Trainer:
        import tomllib

        from secureafl.deployment.own_task import require_named, require_same_file
        from secureafl.deployment.samples import InputFacts
        from secureafl.deployment.trainer import Trainer
        from secureafl.experiment import from_mapping
        from secureafl.settings import only_importing

        # Whoever can send messages must not choose what runs here.
        values, own = tomllib.loads(job.experiment), self._client_options.task
        task = values.get("task", {})
        require_named(str(task.get("kind", "") if isinstance(task, dict) else task), own)
        needed = {name: value for name, value in values.items() if name not in _SERVERS}
        with only_importing([own] if own else []):
            made = from_mapping(needed)
        require_same_file(made.task, job.task_checksum)
        return Trainer(made, self._client_options, InputFacts.from_json(job.inputs))


def serve(place: Path, client_options: ClientOptions) -> None:
    """Train for each connection in turn until the parent process is gone."""
    trainers, parent = TrainerCache(client_options), os.getppid()
    import torch  # noqa: F401  (now, not while a request waits)

    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(place))
        door.listen()
        door.settimeout(1.0)
        while os.getppid() == parent:
            try:
                line, _ = door.accept()
            except TimeoutError:
                continue
            _answer(line, trainers)


def _answer(line: socket.socket, trainers: TrainerCache) -> None:
    line.settimeout(60.0)
    try:
        with line, line.makefile("rwb") as file:
            _send(file, *_done(file, trainers))
    except OSError as error:  # the ClientApp is gone; its node connects again
        print(f"the client app is gone: {error}", file=sys.stderr, flush=True)


def _done(file: BufferedRWPair, trainers: TrainerCache) -> tuple[dict[str, str], np.ndarray]:
    """The answer to what is asked; what is wrong with it otherwise."""
    try:
        facts, weights = _receive(file)
        facts.pop("bytes")
        update, attack = trainers.train(Job(**facts), weights)
    except (SecureAflError, RuntimeError, ValueError, TypeError, KeyError) as error:
        print(f"{COMPLAINT}: {error}", file=sys.stderr, flush=True)
        reason = str(error) or type(error).__name__
        return {"attack": "", "error": reason}, np.zeros(0, np.float32)
    return {"attack": attack, "error": ""}, update


def options_from(facts: Mapping[str, Any]) -> ClientOptions:
    """Client options as `join` passes them: data, task, tables for attack and privacy."""
    from secureafl.deployment.trainer import DEALT, ClientOptions
    from secureafl.experiment import from_mapping

    given = {"training": {"privacy": facts["privacy"]}} if facts.get("privacy") else {}
    given |= {"attack": facts["attack"]} if facts.get("attack") else {}
    made = from_mapping(given)
    return ClientOptions(
        str(facts.get("data") or DEALT),
        made.attack if "attack" in given else None,
        made.training.privacy if "training" in given else None,
        str(facts.get("task") or ""),
    )


def main(place: Path, facts: str) -> None:
    """Serve; if `join` was killed, end what is left of its node and remove its folder."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # sent when it is
    try:
        serve(place, options_from(json.loads(facts)))
    finally:
        if os.getppid() != parent:
            clear_home(place.parent)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
