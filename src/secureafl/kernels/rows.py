"""Rows of tables whose numbers only the device knows: set, drawn as a batch, taken turn by turn.

A round recorded on a GPU costs about as much as it has operations. There each of these is one
(`note_row`: two) instead of three or more, with the bits of the plain torch that runs elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from secureafl.core.server import moved
from secureafl.kernels.dispatch import on_gpu
from secureafl.kernels.gpu_source import ONE_CLIENT, blocks_for, compiled, counter_for
from secureafl.linalg import vectors

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.types import Decision

_MOST = 2**30  # numbers of a row, which kernels count with 32 bits
_BLOCKS = 64  # that share a sample
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_PIXELS = {torch.uint8: "unsigned char", torch.float32: "float"}


def set_row(matrix: Tensor, index: Int[Tensor, ""], value: Tensor, keep: Bool[Tensor, ""]) -> None:
    """`matrix[index] = value` in place where `keep` holds; on a GPU without a host read.

    >>> table, client = torch.zeros(2), torch.tensor(1)
    >>> secureafl.set_row(table, client, torch.tensor(7.0), keep=torch.tensor(True))
    >>> secureafl.set_row(table, client, torch.tensor(8.0), keep=torch.tensor(False))
    >>> table
    tensor([0., 7.])
    """
    if not (on_gpu(matrix) and _is_row(matrix, index, value) and _is_flag(keep, value)):
        vectors.set_row(matrix, index, value, keep)
        return
    arguments = [matrix, index, value, keep, len(matrix), value.numel()]
    _launch("set_row", value, arguments, value.element_size())


def note_row(
    matrix: Float[Tensor, "n d"],
    known: Bool[Tensor, " n"],
    index: Int[Tensor, ""],
    value: Float[Tensor, " d"],
    heard: Bool[Tensor, " n"],
) -> None:
    """Set a row, and that it is known, where it is `heard` and the value is finite."""
    fits = on_gpu(matrix) and _is_row(matrix, index, value) and _are_plain(known, heard)
    if not (fits and value.dtype == torch.float32):
        # Infinite or NaN is the largest.
        told = torch.linalg.vector_norm(value, torch.inf) < torch.inf
        told = told & vectors.row(heard, index)
        vectors.set_row(matrix, index, value, told)
        vectors.set_row(known, index, told, told)
        return
    size = value.numel()
    finite = known.new_empty(blocks_for(size, value.device))
    _launch("finite_parts", value, [value, finite, size])
    given = [matrix, known, index, value, heard, finite, len(matrix), size]
    _launch("note_row", value, given)


def draw_batch(
    inputs: Tensor,
    labels: Tensor,
    rows: Int[Tensor, " b"],
    mean: Float[Tensor, " c"],
    std: Float[Tensor, " c"],
) -> tuple[Tensor, Tensor] | None:
    """Inputs, standardised channel by channel, and labels of some rows; None where no kernel is."""
    if not (on_gpu(inputs) and _is_batch(inputs, labels, rows, mean, std)):
        return None
    shape, device = (len(rows), *inputs.shape[1:]), inputs.device
    batch = torch.empty(shape, dtype=torch.float32, device=device)
    batch_labels = labels.new_empty(len(rows), *labels.shape[1:])
    size, label_size = inputs.shape[1:].numel(), labels.shape[1:].numel()
    given = [inputs, labels, rows, mean, std, batch, batch_labels, len(inputs)]
    given += [size, label_size, size // mean.numel()]
    grid = (len(rows), min(-(-size // (4 * ONE_CLIENT)), _BLOCKS), 1)
    kernel = _kernel("draw_batch", labels.element_size(), _PIXELS[inputs.dtype])
    kernel(grid, (ONE_CLIENT, 1, 1), given)
    return batch, batch_labels


def turn_to_next(
    number: Int[Tensor, " 1"],
    jobs: Int[Tensor, "rounds width"],
    job: Int[Tensor, "1 width"],
    models: Float[Tensor, "places d"],
    base: Float[Tensor, " d"],
) -> None:
    """Copy the job of this number, and the model it starts from, and count on.

    Which model it is, a job says in its last number but one.
    """
    fits = on_gpu(models) and _is_row(models, number, base) and _are_plain(jobs, job)
    if not (fits and jobs.dtype == torch.int64):
        torch.index_select(jobs, 0, number, out=job)
        torch.index_select(models, 0, job[0, -2:-1], out=base[None])
        number += 1
        return
    arguments = [number, jobs, job, models, base, counter_for(base.device)]
    arguments += [*jobs.shape, *models.shape]
    _launch("turn_to_next", base, arguments, base.element_size())


def move_model(
    weights: Float[Tensor, " d"],
    decision: Decision,
    rate: float,
    models: Float[Tensor, "places d"],
    place: Int[Tensor, " 1"],
) -> None:
    """`core.server.moved` in place, and a copy of it as a row of `models`."""
    given = (weights, decision.direction)
    fits = on_gpu(models) and all(_is_row(models, place, vector) for vector in given)
    if not (fits and models.dtype == torch.float32 and _is_flag(decision.ready, weights)):
        weights.copy_(moved(weights, decision, rate))
        models.index_copy_(0, place, weights[None])
        return
    arguments = [*given, decision.ready, models, place, -float(rate), *models.shape]
    _launch("move_model", weights, arguments)


def _is_row(matrix: Tensor, index: Tensor, value: Tensor) -> bool:
    """Whether a kernel can copy this value from or to a row of the matrix."""
    alike = value.dtype == matrix.dtype and value.shape == matrix.shape[1:]
    known = value.element_size() in _WORDS and 0 < value.numel() < _MOST
    return alike and known and index.dtype == torch.int64 and _are_plain(matrix, index, value)


def _is_flag(flag: Tensor, beside: Tensor) -> bool:
    return flag.dtype == torch.bool and flag.numel() == 1 and flag.device == beside.device


def _is_batch(inputs: Tensor, labels: Tensor, rows: Tensor, mean: Tensor, std: Tensor) -> bool:
    sizes = (inputs.shape[1:].numel(), labels.shape[1:].numel())
    fits = len(rows) > 0 and inputs.dim() > 1 and all(0 < size < _MOST for size in sizes)
    fits = fits and mean.shape == std.shape and mean.numel() in (1, inputs.shape[1])
    known = inputs.dtype in _PIXELS and labels.element_size() in _WORDS
    known = known and rows.dtype == torch.int64 and mean.dtype == std.dtype == torch.float32
    return fits and known and _are_plain(inputs, labels, rows, mean, std)


def _are_plain(*tensors: Tensor) -> bool:
    """Whether a kernel can take them: they are on one device, each as if it were made there."""
    device = tensors[0].device
    return all(tensor.device == device and tensor.is_contiguous() for tensor in tensors)


def _launch(name: str, vector: Tensor, arguments: list[Any], word: int = 4) -> None:
    blocks = blocks_for(vector.numel(), vector.device)
    _kernel(name, word)((blocks, 1, 1), (ONE_CLIENT, 1, 1), arguments)


def _kernel(name: str, word: int, pixel: str = "float") -> Any:
    return compiled("gpu_rows.cu", name, (("WORD", _WORDS[word]), ("PIXEL", pixel)))
