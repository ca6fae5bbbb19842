"""The parts of 3DFed that follow from a formula."""

import numpy as np


def backdoor(gradient, colluders, factor, strength):
    """The gradient, at most benign in length, times 1 + strength (factor - 1)."""
    benign = np.sort([np.linalg.norm(g) for g in [*colluders, gradient]])[len(colluders) // 2]
    length = np.linalg.norm(gradient)
    scale = benign / length if length > benign else 1.0
    return (1 + strength * (factor - 1)) * scale * np.asarray(gradient), benign


def masks(noises, size):
    """Masks of successive uploads; each `size` of them sum to zero."""
    made, owed = [], np.zeros(len(noises[0]))
    for number, noise in enumerate(noises):
        left = size - number % size
        mask = np.sqrt(1 - 1 / left) * np.asarray(noise) - owed / left
        owed = owed + mask if left > 1 else np.zeros_like(owed)
        made.append(mask)
    return made


def marked_place(gradients, candidates, member, members, last=None):
    """The member's own candidate (every members-th) where the largest gradient is smallest."""
    own = [c for number, c in enumerate(candidates) if number % members == member and c != last]
    return min(own, key=lambda c: max(abs(gradient[c]) for gradient in gradients))


def share_of_mark(before, after, neighbours_before, neighbours_after, value, rate):
    """(w_new - w_old)[I] / (-eta value), minus what the neighbours moved."""
    drift = np.mean(np.subtract(neighbours_after, neighbours_before))
    return (after - before - drift) / (-rate * value)
