"""Centred clipping with its memory."""

import numpy as np


class CentredClipping:
    """`centre` is the last result; it starts at zero."""

    def __init__(self, size, radius, iterations):
        self.centre, self.radius, self.iterations = np.zeros(size), radius, iterations

    def aggregate(self, rows):
        """Move the centre by the mean of the clipped differences."""
        for _ in range(self.iterations):
            offsets = rows - self.centre
            lengths = [np.linalg.norm(offset) for offset in offsets]
            radius = self.radius or np.median(lengths)
            moves = [
                offset if length <= radius else offset * (radius / length)
                for offset, length in zip(offsets, lengths, strict=True)
            ]
            self.centre = self.centre + np.mean(moves, axis=0)
        return self.centre
