"""Sageflow for one upload: entropy filter, loss weight, staleness weight."""

import numpy as np
from reference.arrivals import applied, refused


def probabilities(outputs):
    """Softmax of each row."""
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def mean_entropy(outputs):
    """Of what a model says to each sample; 0 log 0 is 0."""
    return np.mean([-sum(p * np.log(p) for p in row if p > 0) for row in probabilities(outputs)])


def mean_loss(outputs, labels):
    """Cross entropy: log of the summed powers, less the label's own output."""
    top = outputs.max(axis=1)
    logs = top + np.log(np.exp(outputs - top[:, None]).sum(axis=1))
    return np.mean(logs - outputs[np.arange(len(labels)), labels])


class SageflowServer:
    """`outputs(weights)` are those of the trusted samples."""

    def __init__(
        self, outputs, labels, threshold, slack, loss_exponent, staleness_exponent, scaled=False
    ):
        self.outputs, self.labels, self.scaled = outputs, labels, scaled
        self.threshold, self.slack = threshold, slack
        self.loss_exponent, self.staleness_exponent = loss_exponent, staleness_exponent

    def receive(self, seen):
        before = self.outputs(seen.weights)
        after = self.outputs(seen.weights - seen.rate * seen.gradient)
        fixed = self.threshold
        if self.scaled:  # as a share of an untrained model's entropy, with ten classes' for 1
            fixed *= np.log(before.shape[1]) / np.log(10)
        threshold = max(fixed, mean_entropy(before) + self.slack)
        loss = mean_loss(after, self.labels)
        ratio = min(1.0, mean_loss(before, self.labels) / loss)
        weight = ratio**self.loss_exponent / (1 + seen.staleness) ** self.staleness_exponent
        entropy = mean_entropy(after)
        scores = {"entropy": entropy, "threshold": threshold, "loss": loss, "weight": weight}
        if entropy >= threshold:
            return refused(seen, scores)
        return applied(weight * seen.gradient, scores)
