"""FedAsync: mixing two models."""

from reference.arrivals import applied


def discount(kind, staleness, exponent, start, slope):
    """s(tau)."""
    if kind == "polynomial":
        return (staleness + 1) ** -exponent
    if kind == "hinge" and staleness > start:
        return 1 / (slope * (staleness - start) + 1)
    return 1.0


class FedAsyncServer:
    """w <- (1 - a) w + a w_i, where w_i is one step away from the base."""

    def __init__(self, mixing, weighting, exponent, start, slope):
        self.mixing = mixing
        self.rule = weighting, exponent, start, slope

    def receive(self, seen):
        kind, *numbers = self.rule
        share = self.mixing * discount(kind, seen.staleness, *numbers)
        client = seen.base - seen.rate * seen.gradient
        mixture = (1 - share) * seen.weights + share * client
        return applied((seen.weights - mixture) / seen.rate, {"weight": share})
