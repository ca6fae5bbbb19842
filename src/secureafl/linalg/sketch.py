"""A count sketch: a vector in few numbers, from which inner products can still be estimated.

The coordinates are written in rows as long as the sketch, every row is rotated by a random number
of places, they get random signs, and the columns are added up. Two coordinates fall on the same
number by chance, as if each were thrown anywhere; but reading along rows is many times as fast as
reading all over the memory. Sketches are linear, and the inner product of two is that of the
vectors on average, off by about their norms' product over the square root of the sketch's size.
Whoever does not know order and signs cannot choose a vector for what its sketch shows; whoever does
can send one whose sketch is zero. So they are drawn where clients cannot see it.

Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import pad

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Int8
    from torch import Tensor


class Sketch(NamedTuple):
    """What vectors of one length are sketched with."""

    order: Int[Tensor, " d"]  # which coordinate comes where, int32
    signs: Int8[Tensor, " d"]  # in that order


def draw_sketch(length: int, size: int, device: torch.device) -> Sketch:
    """Order and signs for sketches of `size` numbers, drawn from torch's default generator."""
    size = min(size, length)
    starts = torch.arange(0, length, size)[:, None]
    widths = (length - starts).clamp(max=size)  # the last row may be shorter
    place, rotation = torch.arange(size), torch.randint(size, starts.shape)
    order = (starts + (place + rotation) % widths)[place < widths]
    signs = torch.randint(2, (length,), dtype=torch.int8) * 2 - 1
    return Sketch(order.to(device, torch.int32), signs.to(device))


def sketched(sketch: Sketch, vector: Float[Tensor, " d"], size: int) -> Float[Tensor, " k"]:
    """The sketch of a vector, `size` numbers or as many as it has coordinates if these are fewer.

    Then no two coordinates share a number, and inner products are exact.

    >>> from secureafl.linalg.sketch import draw_sketch, sketched
    >>> sketch = draw_sketch(1000, 50, torch.device("cpu"))
    >>> sketched(sketch, torch.ones(1000), size=50).shape
    torch.Size([50])
    """
    size = min(size, len(vector))
    mixed = vector.index_select(0, sketch.order) * sketch.signs
    return pad(mixed, (0, -len(vector) % size)).view(-1, size).sum(dim=0)
