"""The server step recorded on a GPU: one launch per arrival, and several servers side by side.

All clients are known, then one uploads the same gradient again and again. That is as costly as any
other arrival: all clients' vectors are read whatever the numbers are, and in the cases measured by
default they are several times larger than a GPU's caches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from secureafl.bench.clock import Timing, gpu_milliseconds
from secureafl.bench.host import tensor_bytes
from secureafl.bench.load import RATE, fill, make_load, make_root_data
from secureafl.core.ledger import Ledger
from secureafl.core.server import Server, ServerState, name_changing
from secureafl.defenses.secure_afl import State
from secureafl.simulation.cuda_graph import Recorded, put_back

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.bench.cases import Case
    from secureafl.core.protocols import Defense

_SAMPLES, _REPLAYS = 5, 50


class Replica(NamedTuple):
    """A recorded step of one server."""

    step: Recorded
    stream: torch.cuda.Stream
    state: Any  # what the recorded step reads and writes; it must outlive the graph

    def launch(self) -> None:
        """Replay one arrival on the replica's own stream."""
        with torch.cuda.stream(self.stream):
            self.step()


def time_replayed(defense: Defense, case: Case, device: torch.device) -> Timing:
    """Time of an arrival at one server."""
    replica = _record(defense, case, device)
    with torch.cuda.stream(replica.stream):
        times = [gpu_milliseconds(replica.step, _REPLAYS) for _ in range(_SAMPLES)]
    return Timing(times, tensor_bytes(replica.state))


def time_replicas(defense: Defense, case: Case, device: torch.device, count: int) -> Timing:
    """Time of an arrival with `count` servers that take turns on streams of their own."""
    replicas = [_record(defense, case, device) for _ in range(count)]
    here = torch.cuda.current_stream(device)

    def rounds() -> None:
        for replica in replicas:
            replica.stream.wait_stream(here)
        for _ in range(_REPLAYS):
            for replica in replicas:
                replica.launch()
        for replica in replicas:
            here.wait_stream(replica.stream)

    arrivals = _REPLAYS * count
    times = [gpu_milliseconds(rounds, 1) / arrivals for _ in range(_SAMPLES)]
    return Timing(times, sum(tensor_bytes(replica.state) for replica in replicas))


def _record(defense: Defense, case: Case, device: torch.device) -> Replica:
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        step, state = make_step(defense, case, device)
        recorded = Recorded(step, stream)
        recorded()
    return Replica(recorded, stream, state)


def make_step(defense: Defense, case: Case, device: torch.device) -> tuple[Callable[[], None], Any]:
    """A step whose results are copied back to where its inputs lie, and the state it works on."""
    load = make_load(case.parameters, device)
    server = Server(defense, case.clients, RATE, make_root_data(device))
    weights, gradient = load.start, load.upload(0, load.start)
    state = defense.init(case.clients, weights)
    uploads = range(case.clients - 1, -1, -1)
    if isinstance(state, State) and case.buffer:
        fill(state, case.parameters)
        uploads = range(0)
    numbers = torch.zeros(3, dtype=torch.int64, device=device)  # client, staleness, round

    before = ServerState(0, weights, state, Ledger())

    def step(upload: Tensor = gradient) -> None:
        _, after = server.decide(before, numbers, upload, weights)
        put_back(*(name_changing(s).values() for s in (before, after)))

    for client in uploads:
        numbers[0] = client
        step(
            (1 + client / case.clients) * gradient
        )  # a median is found sooner among lengths that differ
    return step, state
