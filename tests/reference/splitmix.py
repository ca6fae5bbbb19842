"""splitmix64 on Python's whole numbers."""

import numpy as np

_ALL = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def stream(seed, count):
    """The first numbers of the generator seeded with `seed`, unsigned."""
    numbers = []
    for place in range(1, count + 1):
        z = (seed + place * _GOLDEN) & _ALL
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _ALL
        numbers.append(z ^ (z >> 31))
    return numbers


def bits(draw, count):
    """What the package draws: a stream seeded by the scrambled number of the draw; signed."""
    return [z - 2**64 if z >= 2**63 else z for z in stream(stream(draw, 1)[0], count)]


def permutation(draw, present):
    """Indices of those present, by the bits each place draws."""
    keys = bits(draw, len(present))
    return sorted(np.flatnonzero(present).tolist(), key=lambda place: keys[place])
