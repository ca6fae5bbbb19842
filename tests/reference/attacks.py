"""What the attacks do to data and uploads."""

import numpy as np


def flipped_labels(labels, num_classes):
    """Label y becomes z - 1 - y."""
    return np.array([num_classes - 1 - y for y in labels])


def sign_flipped(gradient, factor):
    """-factor * g."""
    return np.array([-factor * x for x in gradient])


def stamped(images, patch):
    """The patch in the bottom-right corner of every image."""
    images = np.array(images)
    side = patch.shape[-1]
    height, width = images.shape[-2:]
    for image in images:
        for i in range(side):
            for j in range(side):
                image[:, height - side + i, width - side + j] = patch[:, i, j]
    return images
