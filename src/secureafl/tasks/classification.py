"""The loss and the metric that all classification tasks share."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy


class Classification:
    """Base of the tasks with classes: loss and metric.

    >>> outputs, labels = torch.tensor([[2.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1])
    >>> secureafl.Classification().metrics(outputs, labels)
    {'ter': 0.5}
    """

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross entropy of a batch."""
        return cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the test error rate (TER), the share of wrong predictions."""
        return {"ter": float((outputs.argmax(dim=1) != labels).double().mean())}
