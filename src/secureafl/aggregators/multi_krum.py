"""Multi-Krum: the mean of the n - f clients that Krum scores best.

Scores are Krum's; averaging over all that are not suspected loses less than taking one alone.

Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine learning with adversaries: Byzantine tolerant
gradient descent", NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from secureafl.aggregators.krum import krum_scores, neighbours
from secureafl.core.shares import require_minority
from secureafl.linalg.rows import assumed_malicious, masked, mean_of, smallest

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class MultiKrum:
    """Mean of the n - f updates with the smallest Krum scores."""

    share: float = 0.2  # f / n, clients assumed malicious

    def __post_init__(self) -> None:
        require_minority("share", self.share)

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> tuple[()]:
        return ()

    def aggregate(
        self, state: tuple[()], values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], tuple[()]]:
        count = present.sum()
        malicious = assumed_malicious(count, self.share)
        scores = krum_scores(*neighbours(values, present), present, malicious)
        return mean_of(masked(values, present), smallest(scores, count - malicious)), state
