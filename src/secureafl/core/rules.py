"""Calling an aggregator with what it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from secureafl.core.protocols import Aggregator, RootDataRule, WeightedRule
from secureafl.linalg.vectors import row

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


def apply_rule(
    rule: Aggregator,
    state: Any,
    values: Float[Tensor, "n d"],
    present: Bool[Tensor, " n"],
    root_gradient: Float[Tensor, " d"] | None,
    samples: Float[Tensor, " n"] | None = None,
) -> tuple[Float[Tensor, " d"], Any]:
    """Aggregate; a rule that can use the trusted gradient gets it, where there is one.

    Where clients count by their samples, the rule must know of it (`Server.start` sees to that).
    """
    if samples is not None:
        assert isinstance(rule, WeightedRule)
        return rule.aggregate_weighted(state, values, present, samples)
    if root_gradient is not None and isinstance(rule, RootDataRule):
        return rule.aggregate_with_root(state, values, present, root_gradient)
    return rule.aggregate(state, values, present)


def own_weight(samples: Float[Tensor, " n"], client: Int[Tensor, ""]) -> Float[Tensor, ""]:
    """How much one client's upload counts where uploads are applied one by one; 1 on average."""
    return row(samples, client) / samples.mean()
