"""Sorting networks: a fixed sequence of comparisons, so that many columns sort side by side.

Batcher, "Sorting networks and their applications", AFIPS 1968 (odd-even merge sort).
"""

import functools

import numpy as np


@functools.cache
def sorting_network(size: int) -> np.ndarray:
    """Pairs of places to compare and, if need be, swap, in order."""
    pairs: list[tuple[int, int]] = []
    run = 1
    while run < size:
        gap = run
        while gap >= 1:
            for start in range(gap % run, size - gap, 2 * gap):
                stop = start + min(gap, size - start - gap)
                merged = (low for low in range(start, stop) if _same_run(low, low + gap, run))
                pairs += [(low, low + gap) for low in merged]
            gap //= 2
        run *= 2
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _same_run(low: int, high: int, run: int) -> bool:
    return low // (2 * run) == high // (2 * run)


@functools.cache
def middle_network(size: int) -> np.ndarray:
    """The pairs that the two middle places of an even number depend on."""
    wanted = {size // 2 - 1, size // 2}
    kept: list[tuple[int, int]] = []
    for low, high in reversed(sorting_network(size).tolist()):
        if low in wanted or high in wanted:
            kept.append((low, high))
            wanted |= {low, high}
    return np.array(kept[::-1], dtype=np.int64).reshape(-1, 2)
