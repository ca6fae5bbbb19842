"""Passes over vectors, divided among threads; how many there are changes no bit."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

_MOST_BLOCKS, _LEAST_TILES = 16, 32  # blocks of tiles, at most; tiles in one, at least


class Ranges(NamedTuple):
    """Tiles divided among threads; the sums of each block of tiles have a row of their own.

    So the sums do not depend on the number of threads.
    """

    size: int
    block: int  # tiles in one
    blocks: int
    ranges: list[tuple[int, int]]  # of tiles, one for each thread

    def run(self, work: Callable[[int, int, int, int], None]) -> None:
        """Call `work` with the size, a block's tiles, and a range of tiles."""
        first, *others = self.ranges
        if not others:
            work(self.size, self.block, *first)
            return
        done: SimpleQueue[BaseException | None] = (
            SimpleQueue()
        )  # of this call alone: others may run at the same time
        for worker, more in zip(_workers(os.getpid(), len(others)), others, strict=True):
            worker.requests.put((done, work, self.size, self.block, *more))
        try:
            work(self.size, self.block, *first)
        finally:  # after an error, too: no thread may still write later
            errors = [done.get() for _ in others]
        for error in errors:
            if error:
                raise error


@functools.lru_cache
def divide(tiles: int, size: int, threads: int, least: int = _LEAST_TILES) -> Ranges:
    """Ranges of the tiles of a vector for so many threads, in blocks of `least` tiles or more."""
    block = max(least, -(-tiles // _MOST_BLOCKS))
    blocks = -(-tiles // block)
    share = -(-blocks // min(threads, blocks)) * block
    return Ranges(
        *(size, block, blocks), [(s, min(s + share, tiles)) for s in range(0, tiles, share)]
    )


def ranges_of(tiles: int, size: int) -> Ranges:
    """Ranges of the tiles of a vector for torch's threads."""
    return divide(tiles, size, torch.get_num_threads())


class _Worker(threading.Thread):
    """A worker thread; the futures of a thread pool would cost as much as a small pass."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.requests: SimpleQueue[Any] = SimpleQueue()

    def run(self) -> None:
        while True:
            done, work, *numbers = self.requests.get()
            try:
                work(*numbers)
            except BaseException as error:
                done.put(error)
            else:
                done.put(None)


@functools.cache
def _workers(process: int, count: int) -> list[_Worker]:
    """Worker threads of this process; a fork inherits none from its parent."""
    found = [_Worker() for _ in range(count)]
    for worker in found:
        worker.start()
    return found
