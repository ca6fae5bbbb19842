"""The cases of a benchmark: numbers of clients, parameters, and stored L-BFGS pairs."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from secureafl.core.errors import require
from secureafl.estimators import Lbfgs

FLOAT_BYTES = 4


class Case(NamedTuple):
    """One size of the server's problem."""

    clients: int  # n
    parameters: int  # d
    buffer: int | None = None  # epsilon; None where nothing depends on it

    @property
    def values_bytes(self) -> int:
        """Bytes of one vector per client."""
        return self.clients * self.parameters * FLOAT_BYTES

    @property
    def memory_bytes(self) -> int:
        """Bytes L-BFGS stores: last upload, its base model, and a step and a change per pair."""
        return (2 + 2 * self.buffer) * self.values_bytes if self.buffer else 0

    def __str__(self) -> str:
        pairs = f", buffer {self.buffer}" if self.buffer else ""
        return f"{self.clients:,} clients, {self.parameters:,} parameters{pairs}"


class Scope(NamedTuple):
    """The cases a benchmark goes through."""

    clients: tuple[int, ...]
    sizes: tuple[int, ...]
    buffers: tuple[int, ...]
    quick: bool = False  # the main case alone

    @property
    def main(self) -> Case:
        """The first of each list, with the default number of pairs where that was asked for."""
        usual = Lbfgs().buffer_size
        buffer = usual if usual in self.buffers else self.buffers[0]
        return Case(self.clients[0], self.sizes[0], buffer)

    @property
    def other_buffers(self) -> list[Case]:
        """The main case with every other number of pairs."""
        if self.quick:
            return []
        return [self.main._replace(buffer=b) for b in self.buffers if b != self.main.buffer]

    @property
    def other_sizes(self) -> list[Case]:
        """All other combinations of clients and parameters, the cheapest first."""
        if self.quick:
            return []
        pairs = itertools.product(self.clients, self.sizes)
        cases = {Case(n, d, self.main.buffer) for n, d in pairs} - {self.main}
        return sorted(cases, key=lambda case: (case.memory_bytes, case))


def read_numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    """Read whole numbers separated by commas; duplicates are dropped."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    numbers = [int(word) for word in words if word.isascii() and word.isdigit()]
    fits = bool(words) and len(numbers) == len(words)
    fits = fits and all(1 <= number <= most for number in numbers)
    remedy = f"give whole numbers from 1 to {most:,} with commas between, such as {option} 1,3"
    require(fits, option, text, remedy)
    return tuple(dict.fromkeys(numbers))
