"""Checks for plug-ins of your own, as scikit-learn's `check_estimator`: one line per mistake.

Call them in a test; they need no data, no GPU and about a second:

    def test_my_defense_keeps_the_contract():
        secureafl.testing.check_defense(NormBound())

The package's own contract tests run the same functions over every built-in plug-in.
"""

from secureafl.testing.attack import check_attack
from secureafl.testing.defense import check_defense
from secureafl.testing.optimizer import check_optimizer
from secureafl.testing.rules import ContractError
from secureafl.testing.task import check_task

__all__ = [
    "ContractError",
    "check_attack",
    "check_defense",
    "check_optimizer",
    "check_task",
]
