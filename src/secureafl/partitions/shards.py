"""What a partition makes of the training samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int


class Shards(NamedTuple):
    """Who holds what."""

    rows: list[Int[np.ndarray, " samples"]]  # of each client
    group: Int[np.ndarray, " n"]  # label group of each client
