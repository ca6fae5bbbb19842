"""A schedule of arrivals, fixed before training so that every defence faces the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float, Int


class Trace(NamedTuple):
    """The schedule of arrivals; entry t of each array belongs to the t-th."""

    client: Int[np.ndarray, " rounds"]
    version: Int[np.ndarray, " rounds"]  # t - tau: the round whose model the client was given
    time: Float[np.ndarray, " rounds"]  # when it arrives, in units of a typical job
