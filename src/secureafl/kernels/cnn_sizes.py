"""Sizes of the paper's CNN, for the kernels that are written for it."""

SIDE, CHANNELS_1, CHANNELS_2, CLASSES = 28, 30, 50, 10
FEATURES = CHANNELS_2 * 5 * 5  # of an image after the second pooling
LAYER_1, LAYER_2 = CHANNELS_1 * (9 + 1), CHANNELS_2 * (CHANNELS_1 * 9 + 1)  # parameters


def hidden_units(parameters: int) -> int:
    """The size of the hidden layer of a CNN with so many parameters."""
    return (parameters - LAYER_1 - LAYER_2 - CLASSES) // (FEATURES + 1 + CLASSES)
