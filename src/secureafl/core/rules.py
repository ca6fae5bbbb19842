"""Calling an aggregator with what it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from secureafl.core.protocols import Aggregator, TrustedRule

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def apply_rule(
    rule: Aggregator,
    state: Any,
    values: Float[Tensor, "n d"],
    present: Bool[Tensor, " n"],
    trusted_gradient: Float[Tensor, " d"] | None,
) -> tuple[Float[Tensor, " d"], Any]:
    """Aggregate; a rule that can use the trusted gradient gets it, where there is one."""
    if trusted_gradient is not None and isinstance(rule, TrustedRule):
        return rule.aggregate_trusted(state, values, present, trusted_gradient)
    return rule.aggregate(state, values, present)
