"""What an aggregator asks for, and calling it accordingly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from secureafl.core.protocols import Aggregator, TrustedRule

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def runs_on_host(rule: Aggregator) -> bool:
    """Whether the rule reads numbers back, so that a step with it cannot be recorded."""
    return getattr(rule, "on_host", False)


def needs_trusted(rule: Aggregator) -> bool:
    """Whether the rule compares clients with a gradient on the server's own samples."""
    return isinstance(rule, TrustedRule) and rule.needs_trusted


def apply_rule(
    rule: Aggregator,
    state: Any,
    values: Float[Tensor, "n d"],
    present: Bool[Tensor, " n"],
    trusted_gradient: Float[Tensor, " d"] | None,
) -> tuple[Float[Tensor, " d"], Any]:
    """Aggregate; a rule that needs the trusted gradient gets it."""
    if isinstance(rule, TrustedRule) and rule.needs_trusted and trusted_gradient is not None:
        return rule.aggregate_trusted(state, values, present, trusted_gradient)
    return rule.aggregate(state, values, present)
