"""How a silent client's update is guessed; the name in a TOML file is the key here."""

from secureafl.core.protocols import Estimator
from secureafl.estimators.history_mean import HistoryMean
from secureafl.estimators.last_update import LastUpdate
from secureafl.estimators.lbfgs import Lbfgs

ESTIMATORS: dict[str, type[Estimator]] = {
    "history_mean": HistoryMean,
    "last_update": LastUpdate,
    "lbfgs": Lbfgs,
}
