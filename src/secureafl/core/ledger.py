"""The models that uploads may still answer to: the only source of their base and staleness."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from secureafl.core.setting_types import whole_number

if TYPE_CHECKING:
    from torch import Tensor


class _Lent(NamedTuple):
    weights: Tensor
    answers: int  # uploads still expected on this version


class Ledger:
    """Models handed out, by version (the round they were made in), while answers are expected.

    >>> ledger = secureafl.Ledger()
    >>> ledger.lend(version=0, weights=torch.zeros(2), answers=1)
    >>> ledger.look_up(0)
    tensor([0., 0.])
    >>> ledger.settle(0)
    >>> ledger.look_up(0) is None  # nobody may answer to it again
    True
    """

    def __init__(self) -> None:
        self._lent: dict[int, _Lent] = {}

    def lend(self, version: int, weights: Tensor, answers: int = 1) -> None:
        """Note that `answers` uploads on this version are expected."""
        earlier = self._lent[version].answers if version in self._lent else 0
        if earlier + answers:
            self._lent[version] = _Lent(weights, earlier + answers)

    def look_up(self, version: object) -> Tensor | None:
        """The model of that version, or None if no answer to it is expected."""
        number = whole_number(version)
        lent = None if number is None else self._lent.get(number)
        return lent.weights if lent else None

    def settle(self, version: int) -> None:
        """One expected answer has come; the model is dropped with the last."""
        weights, answers = self._lent[version]
        if answers > 1:
            self._lent[version] = _Lent(weights, answers - 1)
        else:
            del self._lent[version]

    def models(self) -> dict[int, Tensor]:
        """Every model still lent, by version."""
        return {version: lent.weights for version, lent in self._lent.items()}
