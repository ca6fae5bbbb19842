"""SecureAFL: asynchronous federated learning that stands poisoning.

Everything a plug-in, a task or a training loop of your own needs is here by name; the built-in
plug-ins are in `secureafl.defenses`, `secureafl.attacks` and so on, and `secureafl.testing` checks
your own. Names are loaded on first use, so that `secureafl --help` and the reports start without
torch. Examples in docstrings assume `import secureafl, torch`.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secureafl import aggregators as aggregators
    from secureafl import arrivals as arrivals
    from secureafl import attacks as attacks
    from secureafl import defenses as defenses
    from secureafl import estimators as estimators
    from secureafl import optimizers as optimizers
    from secureafl import partitions as partitions
    from secureafl import tasks as tasks
    from secureafl import testing as testing
    from secureafl import tracking as tracking
    from secureafl.arrivals.trace import Trace as Trace
    from secureafl.attacks.trigger import TriggerAttack as TriggerAttack
    from secureafl.core.errors import ConfigError as ConfigError
    from secureafl.core.errors import DataError as DataError
    from secureafl.core.errors import RunError as RunError
    from secureafl.core.errors import SecureAflError as SecureAflError
    from secureafl.core.errors import require as require
    from secureafl.core.events import ArrivalEvent as ArrivalEvent
    from secureafl.core.events import EvaluationEvent as EvaluationEvent
    from secureafl.core.events import ForgottenEvent as ForgottenEvent
    from secureafl.core.flat_model import call_flat as call_flat
    from secureafl.core.flat_model import flatten as flatten
    from secureafl.core.ledger import Ledger as Ledger
    from secureafl.core.protocols import Aggregator as Aggregator
    from secureafl.core.protocols import ArrivalModel as ArrivalModel
    from secureafl.core.protocols import Attack as Attack
    from secureafl.core.protocols import Backdoor as Backdoor
    from secureafl.core.protocols import Defense as Defense
    from secureafl.core.protocols import Estimator as Estimator
    from secureafl.core.protocols import Partition as Partition
    from secureafl.core.protocols import ServerOptimizer as ServerOptimizer
    from secureafl.core.protocols import Task as Task
    from secureafl.core.schedule import Schedule as Schedule
    from secureafl.core.server import Server as Server
    from secureafl.core.server import ServerState as ServerState
    from secureafl.core.server import Upload as Upload
    from secureafl.core.shares import require_minority as require_minority
    from secureafl.core.shares import whole_clients as whole_clients
    from secureafl.core.types import Arrival as Arrival
    from secureafl.core.types import AttackContext as AttackContext
    from secureafl.core.types import AttackerView as AttackerView
    from secureafl.core.types import ClientGradients as ClientGradients
    from secureafl.core.types import Data as Data
    from secureafl.core.types import Decision as Decision
    from secureafl.core.types import Entry as Entry
    from secureafl.core.types import Inner as Inner
    from secureafl.core.types import RootData as RootData
    from secureafl.core.types import SecantProducts as SecantProducts
    from secureafl.core.types import ServerSnapshot as ServerSnapshot
    from secureafl.core.types import ServerView as ServerView
    from secureafl.experiment import Evaluation as Evaluation
    from secureafl.experiment import Experiment as Experiment
    from secureafl.experiment import Training as Training
    from secureafl.experiment import from_mapping as from_mapping
    from secureafl.experiment import read_experiment as read_experiment
    from secureafl.kernels.rows import set_row as set_row
    from secureafl.library.export import export_model as export_model
    from secureafl.library.fitting import fit as fit
    from secureafl.library.redteaming import RedTeamResult as RedTeamResult
    from secureafl.library.redteaming import red_team as red_team
    from secureafl.library.results import RunResult as RunResult
    from secureafl.library.results import RunResults as RunResults
    from secureafl.library.running import compare as compare
    from secureafl.library.running import run as run
    from secureafl.library.running import run_grid as run_grid
    from secureafl.linalg.rows import lower_median as lower_median
    from secureafl.linalg.rows import masked as masked
    from secureafl.linalg.rows import mean_of as mean_of
    from secureafl.linalg.rows import median_of as median_of
    from secureafl.linalg.vectors import choose as choose
    from secureafl.linalg.vectors import clipped as clipped
    from secureafl.linalg.vectors import computed_if as computed_if
    from secureafl.linalg.vectors import cosine as cosine
    from secureafl.linalg.vectors import exact_norm as exact_norm
    from secureafl.linalg.vectors import exactly_scaled as exactly_scaled
    from secureafl.linalg.vectors import norm as norm
    from secureafl.linalg.vectors import row as row
    from secureafl.partitions.shards import Shards as Shards
    from secureafl.runs.query import results_table as results_table
    from secureafl.runtime.trained_model import TrainedModel as TrainedModel
    from secureafl.runtime.trained_model import load_model as load_model
    from secureafl.simulation.simulator import simulate as simulate
    from secureafl.tasks.classification import Classification as Classification
    from secureafl.tasks.in_memory import from_datasets as from_datasets
    from secureafl.tasks.in_memory import from_tensors as from_tensors
    from secureafl.tracking.callback import Callback as Callback

__version__ = "0.2.0"

# What is public, by the module it is in.
_NAMES = {
    "core.errors": "ConfigError DataError RunError SecureAflError require",
    "core.events": "ArrivalEvent EvaluationEvent ForgottenEvent",
    "core.flat_model": "call_flat flatten",
    "core.ledger": "Ledger",
    "core.protocols": (
        "Aggregator ArrivalModel Attack Backdoor Defense Estimator Partition ServerOptimizer Task"
    ),
    "core.schedule": "Schedule",
    "core.server": "Server ServerState Upload",
    "core.shares": "require_minority whole_clients",
    "core.types": (
        "Arrival AttackContext AttackerView ClientGradients Data Decision Entry Inner "
        "RootData SecantProducts ServerSnapshot ServerView"
    ),
    "experiment": "Evaluation Experiment Training from_mapping read_experiment",
    "kernels.rows": "set_row",
    "library.export": "export_model",
    "library.fitting": "fit",
    "library.redteaming": "RedTeamResult red_team",
    "library.results": "RunResult RunResults",
    "library.running": "compare run run_grid",
    "linalg.rows": "lower_median masked mean_of median_of",
    "linalg.vectors": "choose clipped computed_if cosine exact_norm exactly_scaled norm row",
    "arrivals.trace": "Trace",
    "attacks.trigger": "TriggerAttack",
    "partitions.shards": "Shards",
    "runs.query": "results_table",
    "runtime.trained_model": "TrainedModel load_model",
    "simulation.simulator": "simulate",
    "tasks.classification": "Classification",
    "tasks.in_memory": "from_datasets from_tensors",
    "tracking.callback": "Callback",
}
_HOMES = {name: f"secureafl.{module}" for module, names in _NAMES.items() for name in names.split()}
_FOLDERS = [
    "aggregators",
    "arrivals",
    "attacks",
    "defenses",
    "estimators",
    "optimizers",
    "partitions",
    "tasks",
    "testing",
    "tracking",
]

__all__ = sorted([*_HOMES, *_FOLDERS])


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return importlib.import_module(f"secureafl.{name}")
    if name not in _HOMES:
        # Python suggests a name that is like it.
        told = f"module 'secureafl' has no attribute '{name}'"
        raise AttributeError(told, name=name, obj=sys.modules[__name__])
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
