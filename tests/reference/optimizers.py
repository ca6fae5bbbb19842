"""The server optimisers coordinate by coordinate, from the formulas of FedAvgM and FedOpt."""

import math


class Sgd:
    def __init__(self, size, learning_rate, momentum):
        self.rate, self.momentum = learning_rate, momentum
        self.sums = [0.0] * size

    def move(self, step):
        self.sums = [self.momentum * m + s for m, s in zip(self.sums, step, strict=True)]
        return [self.rate * m for m in self.sums]


class Adaptive:
    """Algorithm 2 of FedOpt; `rule` is one of its three lines for v."""

    def __init__(self, rule, size, learning_rate, beta1, adaptivity, beta2=None):
        self.rule, self.rate, self.beta1, self.beta2 = rule, learning_rate, beta1, beta2
        self.tau = adaptivity
        self.m, self.v = [0.0] * size, [adaptivity**2] * size

    def move(self, step):
        for k, d in enumerate(step):
            self.m[k] = self.beta1 * self.m[k] + (1 - self.beta1) * d
            self.v[k] = self._second(self.v[k], d * d)
        both = zip(self.m, self.v, strict=True)
        return [self.rate * m / (math.sqrt(v) + self.tau) for m, v in both]

    def _second(self, v, square):
        if self.rule == "adagrad":
            return v + square
        if self.rule == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        towards = math.copysign(1, v - square) if v != square else 0
        return v - (1 - self.beta2) * square * towards
