"""Root data for somebody who asks about one model again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from secureafl.core.types import RootData


class RememberedRootData:
    """As the root data, but what all samples say of one model is computed once.

    That model must not change as long as this is used. Everybody gets a copy, to do with as with
    what was computed for them.
    """

    def __init__(self, root_data: RootData, weights: Float[Tensor, " d"]) -> None:
        self.labels = root_data.labels
        self._root_data, self._weights = root_data, weights
        self._gradient: Tensor | None = None
        self._outputs: Tensor | None = None

    def gradient(
        self, weights: Float[Tensor, " d"], rows: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " d"]:
        """See `RootData`."""
        # Whether rows are those of last time only their values tell, at which a GPU cannot look.
        if weights is not self._weights or rows is not None:
            return self._root_data.gradient(weights, rows)
        if self._gradient is None:
            self._gradient = self._root_data.gradient(weights)
        return self._gradient.clone()

    def outputs(self, weights: Float[Tensor, " d"]) -> Float[Tensor, "samples classes"]:
        """See `RootData`."""
        if weights is not self._weights:
            return self._root_data.outputs(weights)
        if self._outputs is None:
            self._outputs = self._root_data.outputs(weights)
        return self._outputs.clone()
