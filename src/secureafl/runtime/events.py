"""What a run reports of an arrival and of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from secureafl.core.events import ArrivalEvent, EvaluationEvent
from secureafl.core.protocols import Backdoor

if TYPE_CHECKING:
    from torch import Tensor

    from secureafl.core.decisions import HostDecision
    from secureafl.runtime.attackers import Attackers
    from secureafl.runtime.clients import Clients


def arrival_event(
    decision: HostDecision, now: int, client: int, malicious: bool, staleness: int
) -> ArrivalEvent:
    """What became of an upload."""
    accepted, stepped, scores, reason = decision
    numbers = (now, client, malicious, staleness)
    return ArrivalEvent(*numbers, accepted, stepped, reason, _finite(scores))


def evaluation_event(
    now: int, weights: Tensor, clients: Clients, attackers: Attackers | None = None
) -> EvaluationEvent:
    """The model on the test set and, where the attackers of a simulation plant one, a backdoor."""
    labels = clients.data.test_labels
    metrics = dict(clients.task.metrics(clients.test_outputs(weights), labels))
    attack = attackers.attack if attackers else None
    if attackers and isinstance(attack, Backdoor):
        outputs = clients.test_outputs(weights, lambda x: attack.stamp(attackers.state, x))
        others = labels != attack.target_class
        hit = outputs.argmax(dim=1)[others] == attack.target_class
        metrics["asr"] = float(hit.double().mean())
    return EvaluationEvent(now, _finite(metrics))


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    """What JSON can hold."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
