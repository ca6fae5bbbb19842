"""One SecureAFL server step against the memory floor and a plain torch version, in one run.

    python benchmarks/server_step.py [--clients 50] [--size 139960] [--threads 2]

The floor is the time to read all that is remembered once, at the read bandwidth measured here.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from plain import Plain

from secureafl.core.server import Server, Upload
from secureafl.defenses import AsyncSgd, SecureAfl


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


class Stream:
    """Arrivals of clients whose gradients follow a quadratic, with noise."""

    def __init__(self, clients: int, size: int) -> None:
        self.clients, self.now = clients, 0
        draw = torch.Generator().manual_seed(0)
        self.noise = [0.01 * torch.randn(size, generator=draw) for _ in range(16)]
        self.start = 0.05 * torch.randn(size, generator=draw)

    def next(self, weights: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Client and gradient."""
        self.now += 1
        return self.now % self.clients, 0.1 * weights + self.noise[self.now % 16]


def time_server(defense: SecureAfl | AsyncSgd, clients: int, size: int, rounds: int) -> float:
    """Milliseconds per arrival once every buffer is filled."""
    stream = Stream(clients, size)
    server = Server(defense, clients, 0.01)
    state = server.start(stream.start)
    times = []
    for number in range(4 * clients + 5 + rounds):
        client, gradient = stream.next(state.weights)
        state.ledger.lend(state.round, state.weights)
        upload = Upload(client, state.round, gradient)
        start = time.perf_counter()
        _, state = server.receive(state, upload)
        taken = 1e3 * (time.perf_counter() - start)
        if number >= 4 * clients + 5:
            times.append(taken)
    return statistics.median(times)


def time_plain(clients: int, size: int, rounds: int) -> float:
    """Milliseconds per arrival of the plain version."""
    stream, plain = Stream(clients, size), Plain(clients, size)
    weights, times = stream.start, []
    for _ in range(rounds):
        client, gradient = stream.next(weights)
        start = time.perf_counter()
        weights = weights - 0.01 * plain.step(client, gradient, weights, weights)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--size", type=int, default=139_960)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clients, size = given.clients, given.size
    remembered = torch.ones(clients * 8 * size)
    remembered.sum()
    floor = milliseconds(remembered.sum, 15)
    bandwidth = remembered.numel() * 4 / floor / 1e6
    del remembered
    print(
        f"{clients} clients, {size} parameters, {given.threads} threads, torch {torch.__version__}"
    )
    print(f"read bandwidth {bandwidth:.1f} GB/s: floor {floor:.1f} ms")
    rows = {
        "plain torch": time_plain(clients, size, 10),
        "secure_afl": time_server(SecureAfl(), clients, size, 30),
        "async_sgd": time_server(AsyncSgd(), clients, size, 30),
    }
    for name, taken in rows.items():
        ratio = rows["plain torch"] / taken
        print(f"{name:12} {taken:8.2f} ms   {taken / floor:6.2f} x floor   {ratio:6.1f} x plain")


if __name__ == "__main__":
    main()
