"""Named random generators from one seed. Nothing in the package seeds globally.

A generator belongs to (seed, name, index), so drawing more in one place never shifts another, and
a resumed run needs no generator state: the one of round t is made anew.

What a recorded step draws is a function of tensors instead: of the number of the draw, which is
kept in a state.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # the increment of splitmix64, as a signed number


def _key(seed: int, name: str, index: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # torch seeds are signed


def numpy_generator(seed: int, name: str) -> np.random.Generator:
    """The NumPy generator called `name`."""
    return np.random.Generator(np.random.Philox(_key(seed, name, 0)))


def torch_generator(seed: int, name: str, index: int, device: torch.device) -> torch.Generator:
    """The torch generator called `name`, the `index`-th of them."""
    return torch.Generator(device).manual_seed(_key(seed, name, index))


def first_draw(seed: int, name: str) -> int:
    """The number of the first draw called `name`; the next ones follow."""
    return _key(seed, name, 0)


def random_bits(draw: Int[Tensor, ""], size: int) -> Int[Tensor, " size"]:
    """64 random bits for each of `size` places, always the same for the same `draw`.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    place = torch.arange(size, device=draw.device)
    return _scrambled(_scrambled(draw) + place * _GOLDEN)


def random_uniform(draw: Int[Tensor, ""], size: int) -> Float[Tensor, " size"]:
    """Numbers between 0 and 1 in float64, neither included, always the same for the same `draw`."""
    # 53 bits and a half: never 0, whose logarithm is infinite.
    return ((_shifted(random_bits(draw, size), 11)).double() + 0.5) * 2.0**-53


def random_normal(draw: Int[Tensor, ""], size: int) -> Float[Tensor, " size"]:
    """Standard normal numbers in float64, always the same for the same `draw`."""
    half = (size + 1) // 2
    uniform = random_uniform(draw, 2 * half)
    radius, angle = torch.sqrt(-2 * uniform[:half].log()), 2 * torch.pi * uniform[half:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:size]  # Box and Muller


def _scrambled(number: Tensor) -> Tensor:
    number = number + _GOLDEN
    number = (number ^ _shifted(number, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    number = (number ^ _shifted(number, 27)) * (0x94D049BB133111EB - 2**64)
    return number ^ _shifted(number, 31)


def _shifted(number: Tensor, places: int) -> Tensor:
    """To the right, zeros coming in: torch would repeat the sign."""
    return (number >> places) & (2 ** (64 - places) - 1)
