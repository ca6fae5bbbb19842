"""Sageflow: the server tries each upload out on clean samples of its own.

A step after which the model is unsure about the samples (high entropy) is refused; one after which
its loss is higher counts less, and so does a stale one. The original averages groups of models
round by round; here each upload is a group of its own. Labels must be classes.

Park, Han, Choi, Moon, "Sageflow: robust federated learning against both stragglers and
adversaries", NeurIPS 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from secureafl.core.errors import require
from secureafl.core.types import Arrival, Decision, ServerView
from secureafl.linalg.vectors import exactly_scaled

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


@dataclass(frozen=True)
class Sageflow:
    """Entropy filter, loss weight and staleness weight of one upload.

    An untrained model is unsure of everything (entropy ln z with z classes), so a fixed threshold
    would refuse everything for ever. Until the model itself is below the threshold, an upload only
    must not raise the entropy by more than a slack.
    """

    entropy_threshold: float = 1.0  # E_th
    entropy_slack: float = 0.05  # how much an upload may raise the entropy while it is above
    loss_exponent: float = 1.0  # delta
    staleness_exponent: float = 0.5  # lambda
    scale_with_classes: bool = False  # take E_th for that of ten classes: times ln z / ln 10

    needs_root_data = True

    def __post_init__(self) -> None:
        names = "entropy_threshold", "entropy_slack", "loss_exponent", "staleness_exponent"
        for name in names:
            require(getattr(self, name) >= 0, name, getattr(self, name), "give 0 or more")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def step(
        self, state: tuple[()], arrival: Arrival, server: ServerView
    ) -> tuple[Decision, tuple[()]]:
        assert server.root_data is not None
        tried = server.weights - server.learning_rate * arrival.gradient
        outputs, labels = server.root_data.outputs, server.root_data.labels
        now = outputs(server.weights)
        entropy_now, loss_now = _entropy_and_loss(now, labels)
        entropy, loss = _entropy_and_loss(outputs(tried), labels)
        # fmax: a model that overflows on the samples (NaN) must not set the threshold.
        unit = math.log(now.shape[1], 10) if self.scale_with_classes else 1.0
        fixed = torch.full_like(entropy_now, self.entropy_threshold * unit)
        threshold = torch.fmax(entropy_now + self.entropy_slack, fixed)
        accepted = entropy < threshold
        worse = torch.where(loss > loss_now, loss_now / loss, 1.0) ** self.loss_exponent
        fresh = (1.0 + arrival.staleness.double()) ** -self.staleness_exponent
        weight = worse * fresh
        direction = torch.where(accepted, exactly_scaled(arrival.gradient, weight), 0)
        scores = {"entropy": entropy, "threshold": threshold, "loss": loss, "weight": weight}
        return Decision(accepted, accepted, direction, scores, "entropy"), state


def _entropy_and_loss(
    outputs: Float[Tensor, "samples z"], labels: Int[Tensor, " samples"]
) -> tuple[Float[Tensor, ""], ...]:
    """Mean entropy of a model's outputs on the root data, and their cross entropy."""
    outputs = outputs.double()
    entropy = torch.special.entr(outputs.softmax(dim=1)).sum(dim=1).mean()
    return entropy, cross_entropy(outputs, labels)
