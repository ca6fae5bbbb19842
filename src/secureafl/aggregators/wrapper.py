"""What rules around another rule have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from secureafl.aggregators.median import Median
from secureafl.core.protocols import Aggregator

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


@dataclass(frozen=True)
class Wrapper(ABC):
    """A rule that prepares the updates for another one, and so needs what that one needs."""

    inner: Aggregator = field(default_factory=Median)

    def aggregate(
        self, state: Any, values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], Any]:
        return self.aggregate_with_root(state, values, present, None)

    @abstractmethod
    def aggregate_with_root(
        self,
        state: Any,
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        root_gradient: Float[Tensor, " d"] | None,
    ) -> tuple[Float[Tensor, " d"], Any]:
        """Prepare the updates and call the inner rule."""
