"""FreqFed: keep the majority whose updates agree in their low frequencies.

The discrete cosine transform of an update gathers what training agrees on in its low
frequencies. Clients are clustered by the angles between the lower halves of their spectra; as in
FLAME a cluster holds more than half of the clients. The updates of its members are averaged.

Fereidooni, Pegoraro, Rieger, Dmitrienko, Sadeghi, "FreqFed: a frequency analysis-based approach for
mitigating poisoning attacks in federated learning", NDSS 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from secureafl.linalg.linkage import closest_majority
from secureafl.linalg.pairwise import cosines
from secureafl.linalg.rows import directions, masked, mean_of

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class FreqFed:
    """Mean over the majority that is closest in low frequencies."""

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def aggregate(
        self, state: tuple[()], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        rows = masked(values, present)
        # Of length 1: angles stay what they are, and no sum of the transform overflows.
        spectra = low_frequencies(directions(rows))
        return mean_of(rows, closest_majority(1 - cosines(spectra), present)), state


def low_frequencies(rows: Float[Tensor, "n d"]) -> Float[Tensor, "n half"]:
    """The lower half, rounded up, of each row's discrete cosine transform (type II, orthonormal).

    Zeros fill a row up to a length without large prime factors, which would cost many times more.

    Makhoul, "A fast cosine transform in one and two dimensions", IEEE Transactions on Acoustics,
    Speech and Signal Processing 28, 1980: even places ahead, odd ones back, one Fourier transform.
    """
    size = _fast_length(rows.shape[1])
    rows = torch.nn.functional.pad(rows, (0, size - rows.shape[1]))
    there_and_back = torch.cat([rows[:, ::2], rows[:, 1::2].flip(1)], dim=1)
    wave = torch.fft.rfft(there_and_back)[:, : (size + 1) // 2]
    # In float64: the phase of a high frequency has few digits left in float32.
    number = torch.arange(wave.shape[1], device=rows.device, dtype=torch.float64)
    angle = torch.pi * number / (2 * size)
    cosine, sine = angle.cos().to(rows.dtype), angle.sin().to(rows.dtype)
    lowest = torch.where(number == 0, 1 / size, 2 / size).sqrt().to(rows.dtype)
    return (wave.real * cosine + wave.imag * sine) * lowest


def _fast_length(size: int) -> int:
    """The next number that is a product of twos, threes and fives."""
    while True:
        rest = size
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return size
        size += 1
