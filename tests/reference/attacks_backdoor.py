"""Backdoors: parts of a trigger, projected steps and masks, number by number."""

import numpy as np
from reference.splitmix import bits


def own_patch(image, patch):
    """The patch's pixels in the order of one image: by its pixels, in 65,536ths, as a number."""
    numbers = [round(float(pixel) * 2**16) for pixel in image.flatten()]
    drawn = bits(0, len(numbers))
    key = sum(number * weight for number, weight in zip(numbers, drawn, strict=True))
    places = bits(1, patch[0].size)
    ranks = [(key * place + 2**63) % 2**64 for place in places]  # as signed numbers are ordered
    order = sorted(range(len(ranks)), key=lambda place: ranks[place])
    return patch.reshape(len(patch), -1)[:, order].reshape(patch.shape)


def quadrant(patch, member):
    """Which pixels of the patch malicious client number `member` stamps."""
    side = patch.shape[-1]
    rows, columns = np.divmod(member % 4, 2)
    mine = np.zeros((side, side), dtype=bool)
    for i in range(side // 2):
        for j in range(side // 2):
            mine[rows * side // 2 + i, columns * side // 2 + j] = True
    return mine


def stamped_part(images, patch, member):
    """Quadrant number `member` mod 4 of the patch in the bottom-right corner of every image."""
    images, side = np.array(images), patch.shape[-1]
    mine = quadrant(patch, member)
    for image in images:
        image[:, -side:, -side:][:, mine] = patch[:, mine]
    return images


def usual_lengths(lengths):
    """The first, then nine parts of what it was and one of what comes."""
    usual = [lengths[0]]
    for length in lengths[1:]:
        usual.append(0.9 * usual[-1] + 0.1 * length)
    return usual


def projected(weights, centre, radius):
    """The nearest model in the ball."""
    away = weights - centre
    length = np.linalg.norm(away)
    return centre + away * (radius / length) if length > radius else weights


def pgd(gradient, base, train, rate, steps, radius):
    """Steps of gradient descent in models, each followed by a projection; then the way per eta."""
    weights = projected(base - rate * gradient, base, radius)
    for k in range(steps - 1):
        weights = projected(weights - rate * train(weights, k), base, radius)
    return (base - weights) / rate


def neurotoxin(gradient, base, before, share, factor):
    """Zero in the coordinates that moved most since the model received `before` (or None)."""
    moved = np.abs(gradient)
    if before is not None and np.abs(base - before).any():
        moved = np.abs(base - before)
    order = sorted(range(len(moved)), key=lambda i: (-moved[i], i))
    update = factor * gradient
    update[order[: round(share * len(moved))]] = 0
    return update
