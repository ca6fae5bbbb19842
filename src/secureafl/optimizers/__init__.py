"""How the server turns a step into the model's move; the name in a TOML file is the key here."""

from secureafl.core.protocols import ServerOptimizer
from secureafl.optimizers.adagrad import Adagrad
from secureafl.optimizers.adam import Adam
from secureafl.optimizers.sgd import Sgd
from secureafl.optimizers.yogi import Yogi

OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "adagrad": Adagrad,
    "adam": Adam,
    "sgd": Sgd,
    "yogi": Yogi,
}
