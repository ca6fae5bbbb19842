"""One pass over the memory: combine, select, inner products, while a tile is in the cache.

Inner loops run over the WIDTH coordinates of a tile, on one-dimensional slices: that is the form
which LLVM turns into vector instructions.
"""

import numba
import numpy as np
from numba import njit, prange

from secureafl.kernels.tiles import BASE, GRADIENT, OWN, WIDTH


def one_pass(vectors, shares, model, fill, network, first, last, threads):
    """Direction and its inner products with every vector of `vectors`."""
    threads = min(threads, numba.config.NUMBA_NUM_THREADS)  # pyrefly: ignore
    numba.set_num_threads(threads)
    number = vectors.dtype.type  # literals inside would be float64
    wanted = (first, last, number(1 / max(last - first + 1, 1)))
    return _one_pass(vectors, shares, model, fill, network, wanted, number(0), threads)


@njit(parallel=True, cache=True, fastmath=True)
def _one_pass(vectors, shares, model, fill, network, wanted, zero, threads):
    tiles, clients, slots, _ = vectors.shape
    direction = np.empty(tiles * WIDTH, dtype=vectors.dtype)
    # One table of sums per thread, added up in order: the same bits at every run.
    along = np.zeros((threads, clients, slots))
    share = (tiles + threads - 1) // threads
    for thread in prange(threads):
        values = np.empty((len(fill), WIDTH), dtype=vectors.dtype)
        for t in range(thread * share, min(tiles, (thread + 1) * share)):
            here = direction[t * WIDTH : (t + 1) * WIDTH]
            _combine(vectors[t], shares, model[t * WIDTH : (t + 1) * WIDTH], fill, values)
            _sort(values, network)
            _mean(values, wanted, here)
            _products(vectors[t], here, zero, along[thread])
    return direction, along.sum(axis=0)


@njit(cache=True, fastmath=True)
def _combine(tile, shares, model, fill, values):
    clients, slots, _ = tile.shape
    for i in range(len(fill)):
        out = values[i]
        if i >= clients or fill[i] != 0:
            out[:] = fill[i]
            continue
        a, b = shares[i, GRADIENT], shares[i, BASE]
        gradient, base = tile[i, GRADIENT], tile[i, BASE]
        for j in range(WIDTH):
            out[j] = a * gradient[j] + b * (model[j] - base[j])
        for s in range(OWN, slots):
            a, row = shares[i, s], tile[i, s]
            for j in range(WIDTH):
                out[j] += a * row[j]


@njit(cache=True, fastmath=True)
def _sort(values, network):
    for pair in range(len(network)):
        low, high = values[network[pair, 0]], values[network[pair, 1]]
        for j in range(WIDTH):
            a, b = low[j], high[j]
            low[j] = min(a, b)
            high[j] = max(a, b)


@njit(cache=True, fastmath=True)
def _mean(values, wanted, out):
    first, last, scale = wanted
    for j in range(WIDTH):
        out[j] = scale * values[first, j]
    for i in range(first + 1, last + 1):
        row = values[i]
        for j in range(WIDTH):
            out[j] += scale * row[j]


@njit(cache=True, fastmath=True)
def _products(tile, direction, zero, along):
    clients, slots, _ = tile.shape
    for i in range(clients):
        for s in range(slots):
            along[i, s] += _dot(tile[i, s], direction, zero)


@njit(cache=True, fastmath=True)
def inner_products(rows, model, zero):
    """Of vectors with each other, and in the last column with the model."""
    count, size = rows.shape
    found = np.zeros((count, count + 1))
    for start in range(0, size, WIDTH):
        stop = min(start + WIDTH, size)
        for i in range(count):
            row = rows[i, start:stop]
            found[i, count] += _dot(row, model[start:stop], zero)
            for k in range(i + 1):
                found[i, k] += _dot(row, rows[k, start:stop], zero)
    for i in range(count):
        for k in range(i):
            found[k, i] = found[i, k]
    return found


@njit(cache=True, fastmath=True)
def _dot(one, other, zero):
    total = zero
    for j in range(len(one)):
        total += one[j] * other[j]
    return total
