"""FreqFed with the cosine transform written out."""

import numpy as np
from reference.flame import cosine_distances
from reference.linkage import majority


def cosine_transform(rows):
    """Type II, orthonormal: sum over j of x_j cos(pi k (2 j + 1) / (2 d)), scaled."""
    size = rows.shape[1]
    place = np.arange(size)
    waves = np.cos(np.pi * np.outer(place, 2 * place + 1) / (2 * size))
    waves *= np.sqrt(np.where(place == 0, 1, 2) / size)[:, None]
    return rows @ waves.T


def padded(rows):
    """Zeros at the end, up to the next number that is a product of twos, threes and fives."""
    smooth = {2**a * 3**b * 5**c for a in range(18) for b in range(12) for c in range(8)}
    size = min(number for number in smooth if number >= rows.shape[1])
    return np.pad(rows, [(0, 0), (0, size - rows.shape[1])])


def freq_fed(rows):
    """Mean over the majority in the lower half of the spectrum."""
    spectra = cosine_transform(padded(rows))
    low = spectra[:, : (spectra.shape[1] + 1) // 2]
    return rows[majority(cosine_distances(low))].mean(axis=0)
