"""Trust in clients (`core.trust`) on a CPU: NumPy for a number per client, machine code for pairs.

Plain torch needs some thousand short operations for this, each of which lets Python's lock go: as
many chances for another thread to keep it.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from llvmlite import ir

from secureafl.core.trust import (
    CENTRAL,
    DOUBT,
    ENOUGH,
    FEW,
    LEAST,
    SAYS,
    SEEN,
    SILENT,
    TINY,
    TURNS,
    TrustWeights,
    remembered,
)
from secureafl.kernels.llvm import DOUBLE, INT, Emitter, address, function, machine_code

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.trust import ClientStats, TrustConfig
    from secureafl.core.types import SecantProducts

_LANES = 8  # doubles side by side
_EXACT = DOUBLE.as_pointer()


def update_stats(
    stats: ClientStats,
    known: Tensor,
    client: Tensor,
    secant: SecantProducts,
    clip_norm: float,
    clip_to_median_norm: bool,
    memory: float,
) -> Tensor:
    """See `kernels.operations.update_stats`."""
    i, there = int(client), known.numpy()
    heard, *numbers = (field.item() for field in secant)
    _note_bend(stats, i, bool(heard), numbers, memory)
    there[i] = True
    length = math.sqrt(numbers[-1])
    lengths = stats.lengths.numpy()
    lengths[i] = most = length if heard else min(length, clip_norm)
    if clip_to_median_norm:
        most = min(most, _lower_median(lengths[there]))
    scale = most / length if length > most else 1.0
    kept, squared = memory * heard, numbers[-1] * scale**2
    loud, noise = (kind.numpy() for kind in stats.consistency)
    loud[i] = squared + kept * (loud[i] - squared)
    noise[i] = kept**2 * noise[i] + (1 - kept) ** 2
    return torch.tensor(scale, dtype=torch.float64)


def _note_bend(
    stats: ClientStats, i: int, heard: bool, numbers: list[float], memory: float
) -> None:
    ss, sy, yy, _ = numbers
    product = math.sqrt(ss * yy)
    if not (heard and 0 < product < math.inf):
        return
    mean, variance, count = (kind.numpy() for kind in stats.curvature)
    rate = max(1 / (count[i] + 1), 1 - memory)
    away = sy / product - mean[i]
    mean[i] += rate * away
    variance[i] = (1 - rate) * (variance[i] + rate * away**2)
    count[i] += 1


def weigh_clients(
    stats: ClientStats, known: Tensor, client: Tensor, products: Tensor, config: TrustConfig
) -> TrustWeights:
    """See `kernels.operations.weigh_clients`."""
    i, gram, fresh = int(client), stats.gram.numpy(), stats.fresh.numpy()
    gram[i] = gram[:, i] = products.numpy()
    trust = _trusted(stats, known.numpy(), config)
    fresh *= config.arrival_decay
    fresh[i] = 1
    weights = trust * fresh
    total = weights.sum()
    enough = min(np.count_nonzero(known.numpy()) / min(FEW, len(gram)), 1.0)
    shares = torch.from_numpy(weights * (enough / max(total, TINY))).to(products.dtype)
    return TrustWeights(torch.tensor(trust[i]), torch.tensor(total), shares)


def _trusted(stats: ClientStats, known: np.ndarray, config: TrustConfig) -> np.ndarray:
    """See `core.trust.trust_weights`."""
    weights, gram = known.astype(np.float64), stats.gram.numpy()
    if config.consistency:
        loud, noise = (kind.numpy() for kind in stats.consistency)
        said = gram.diagonal() / np.maximum(loud, TINY) - noise
        said /= np.maximum(1 - noise, 0.5)
        weights *= _next_to_usual(said, DOUBT, known & (noise < 0.5), SILENT, SAYS)
    heard = weights > 0
    weights *= _similarity_weights(
        gram, heard, config.similarity_penalty, config.disagreement_penalty
    )
    if config.curvature:
        mean, variance, count = (kind.numpy() for kind in stats.curvature)
        error = np.sqrt(variance / np.clip(count, 1, remembered(config.memory)))
        weights *= _next_to_usual(mean, error, (count >= SEEN) & heard, LEAST, ENOUGH)
    return weights


def similarity_weights(
    gram: Tensor, known: Tensor, similarity_penalty: float, disagreement_penalty: float
) -> Tensor:
    """See `kernels.operations.similarity_weights`."""
    exact = np.ascontiguousarray(gram.numpy(), np.float64)  # machine code takes it as it lies
    return torch.from_numpy(
        _similarity_weights(exact, known.numpy(), similarity_penalty, disagreement_penalty)
    ).to(gram.dtype)


def _similarity_weights(
    gram: np.ndarray, known: np.ndarray, similarity_penalty: float, disagreement_penalty: float
) -> np.ndarray:
    """See `core.trust.similarity_weights`; no matrix is made on the way."""
    diagonal = gram.diagonal()
    weights = present = known.astype(np.float64)
    scale = present / np.sqrt(np.maximum(diagonal, TINY))
    for _ in range(TURNS):
        centre = scale * (weights / max(weights.sum(), TINY))
        pulled = _times(gram, centre)
        along, middle = scale * pulled, float(centre @ pulled)
        own = diagonal * scale**2 - 2 * along + middle
        view = present / np.sqrt(np.maximum(own, CENTRAL))
        agree, _ = _felt(gram, scale, along, view, present, middle)
        crowd = np.maximum(agree, 1)
        weights = present * np.minimum(_lower_median(crowd[known]) / crowd, 1) ** similarity_penalty
        agree, blame = _felt(gram, scale, along, view, weights, middle)
        backing = np.maximum(agree, weights)
        share = backing / np.maximum(backing + blame, TINY)
        share = np.minimum(share / max(_lower_median(share[known]), TINY), 1)
        weights = weights * share**disagreement_penalty
    return weights


def _lower_median(values: np.ndarray) -> float:
    """The middle one, the smaller of two; infinite if there are none."""
    middle = (len(values) - 1) // 2
    return float(np.partition(values, middle)[middle]) if len(values) else math.inf


def _next_to_usual(
    values: np.ndarray, doubt: np.ndarray | float, judged: np.ndarray, least: float, enough: float
) -> np.ndarray:
    """See `core.trust`: 1 for who is not judged."""
    usual = _lower_median(values[judged])
    if not 0 < usual < math.inf:
        return np.ones(len(values))
    weights = ((values + doubt) / max(usual, TINY) - least) / (enough - least)
    return np.where(judged, np.clip(weights, 0, 1), 1.0)


def _times(gram: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Matrix times vector, the same bits on any number of threads."""
    found = np.empty(len(vector))
    _product_pass()(*map(address, (gram, vector, found)), len(vector))
    return found


def _felt(
    gram: np.ndarray,
    scale: np.ndarray,
    along: np.ndarray,
    view: np.ndarray,
    weights: np.ndarray,
    middle: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Of each client, what stands with it and what stands against it, with these weights.

    By the squared cosines of angles, seen from the middle of all.
    """
    agree, oppose = np.empty((2, len(weights)))
    arrays = (gram, scale, along, view, weights, agree, oppose)
    _felt_pass()(*map(address, arrays), middle, len(weights))
    return agree, oppose


@functools.cache
def _product_pass() -> Any:
    module, (gram, vector, found, size), emit = function([_EXACT] * 3 + [INT])
    builder = emit.builder

    def terms(row: Any, i: Any, j: Any, kind: Any) -> list[Any]:
        return [builder.fmul(emit.load(row, j, kind), emit.load(vector, j, kind))]

    _add_up_rows(emit, gram, [found], size, terms)
    return machine_code(module)


@functools.cache
def _felt_pass() -> Any:
    module, arguments, emit = function([_EXACT] * 7 + [DOUBLE, INT])
    gram, scale, along, view, weights, agree, oppose, middle, size = arguments
    builder = emit.builder

    def terms(row: Any, i: Any, j: Any, kind: Any) -> list[Any]:
        def all_over(value: Any) -> Any:
            return value if kind is DOUBLE else emit.spread(value, _LANES)

        cosine = builder.fmul(emit.load(row, j, kind), emit.load(scale, j, kind))
        cosine = builder.fmul(cosine, all_over(emit.load(scale, i, DOUBLE)))
        centre = builder.fsub(emit.load(along, i, DOUBLE), middle)
        seen = builder.fsub(builder.fsub(cosine, emit.load(along, j, kind)), all_over(centre))
        seen = builder.fmul(seen, emit.load(view, j, kind))
        seen = builder.fmul(seen, all_over(emit.load(view, i, DOUBLE)))
        none = ir.Constant(kind, None)
        above = builder.select(builder.fcmp_ordered(">", seen, none), seen, none)
        below, counts = builder.fsub(seen, above), emit.load(weights, j, kind)
        return [builder.fmul(counts, builder.fmul(part, part)) for part in (above, below)]

    _add_up_rows(emit, gram, [agree, oppose], size, terms)
    return machine_code(module)


def _add_up_rows(emit: Emitter, matrix: Any, found: list[Any], size: Any, terms: Any) -> None:
    """Sums over each row of a square matrix: side by side, then what is left one by one."""
    builder, wide = emit.builder, ir.VectorType(DOUBLE, _LANES)
    rooms = [builder.alloca(wide) for _ in found]
    blocks = builder.sdiv(size, INT(_LANES))
    with emit.loop(0, size) as i:
        row = emit.at(matrix, builder.mul(i, size))
        for room in rooms:
            builder.store(ir.Constant(wide, None), room)
        with emit.loop(0, blocks) as block:
            values = terms(row, i, builder.mul(block, INT(_LANES)), wide)
            for room, value in zip(rooms, values, strict=True):
                builder.store(builder.fadd(builder.load(room), value), room)
        for room, out in zip(rooms, found, strict=True):
            lanes = builder.load(room)
            total = DOUBLE(0.0)
            for lane in range(_LANES):
                total = builder.fadd(total, builder.extract_element(lanes, INT(lane)))
            emit.store(total, out, i)
        with emit.loop(builder.mul(blocks, INT(_LANES)), size) as j:
            for value, out in zip(terms(row, i, j, DOUBLE), found, strict=True):
                emit.store(builder.fadd(emit.load(out, i, DOUBLE), value), out, i)
    builder.ret_void()
