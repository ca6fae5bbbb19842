"""SecureAFL: asynchronous federated learning that stands poisoning.

Names are loaded on first use, so that `secureafl --help` and the reports start without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secureafl.core.errors import SecureAflError as SecureAflError
    from secureafl.core.events import ArrivalEvent as ArrivalEvent
    from secureafl.core.events import EvaluationEvent as EvaluationEvent
    from secureafl.core.events import ForgottenEvent as ForgottenEvent
    from secureafl.experiment import Experiment as Experiment
    from secureafl.experiment import from_mapping as from_mapping
    from secureafl.experiment import read_experiment as read_experiment
    from secureafl.runs.query import results_table as results_table
    from secureafl.simulation.simulator import simulate as simulate

__version__ = "0.2.0"

_HOMES = {
    "ArrivalEvent": "secureafl.core.events",
    "EvaluationEvent": "secureafl.core.events",
    "Experiment": "secureafl.experiment",
    "ForgottenEvent": "secureafl.core.events",
    "SecureAflError": "secureafl.core.errors",
    "from_mapping": "secureafl.experiment",
    "read_experiment": "secureafl.experiment",
    "results_table": "secureafl.runs.query",
    "simulate": "secureafl.simulation.simulator",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'secureafl' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
