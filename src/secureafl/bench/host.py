"""Time arrivals at a server on the CPU, one by one as in a deployment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from secureafl.bench.clock import Timing, attempts
from secureafl.bench.load import RATE, fill, make_load, make_root_data
from secureafl.core.server import Server, Upload
from secureafl.core.trees import name_tensors
from secureafl.defenses.secure_afl import State

if TYPE_CHECKING:
    from secureafl.bench.cases import Case
    from secureafl.bench.load import Load
    from secureafl.core.protocols import Defense
    from secureafl.core.server import ServerState

_CPU = torch.device("cpu")
_REPEATS, _WARM_UPS = 30, 5
# From here on, filling the memory by real uploads would take minutes.
_MANY_CLIENTS, _MANY_VALUES = 300, 20_000_000


def time_arrivals(defense: Defense, case: Case) -> Timing:
    """Time of an arrival, from the upload to the new model, once every buffer is full."""
    load = make_load(case.parameters, _CPU)
    server = Server(defense, case.clients, RATE, make_root_data(_CPU))
    state = server.start(load.start)
    for _ in range(_warm_ups(state, case)):
        state, _ = _arrive(server, state, load)
    times = []
    for _ in attempts(_REPEATS):
        state, taken = _arrive(server, state, load)
        times.append(taken)
    return Timing(times, tensor_bytes(state.defense))


def _warm_ups(state: ServerState, case: Case) -> int:
    """Warm up with arrivals; a memory too large for that is filled directly."""
    if not isinstance(state.defense, State) or not case.buffer:
        return _WARM_UPS
    if case.clients < _MANY_CLIENTS and case.clients * case.parameters <= _MANY_VALUES:
        return (case.buffer + 1) * case.clients + _WARM_UPS
    fill(state.defense, case.parameters)
    return _WARM_UPS


def _arrive(server: Server, state: ServerState, load: Load) -> tuple[ServerState, float]:
    gradient = load.upload(state.round, state.weights)
    state.ledger.lend(state.round, state.weights)
    upload = Upload(state.round % server.num_clients, state.round, gradient)
    start = time.perf_counter()
    _, state = server.receive(state, upload)
    return state, 1e3 * (time.perf_counter() - start)


def tensor_bytes(state: object) -> int:
    """Bytes of all tensors of a state."""
    return sum(tensor.nbytes for tensor in name_tensors(state, "").values())
