"""What is told of runs as they go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secureafl.core.events import Event

if TYPE_CHECKING:
    from secureafl.experiment import Experiment


class Callback:
    """Is told what happens in runs; a list of them is given to `run`, `compare` or `fit`.

    Override what you need. Every method is given the run's folder: one callback may be told of
    several runs at a time. A callback watches; whatever it does, the run stays as it is.

    >>> import tempfile
    >>> class Uploads(secureafl.Callback):
    ...     def on_start(self, run, experiment):
    ...         self.uploads = 0
    ...     def on_event(self, run, event):
    ...         self.uploads += isinstance(event, secureafl.ArrivalEvent)
    ...     def on_end(self, run, result):
    ...         print(run.name, self.uploads)
    >>> samples, out = (torch.rand(20, 4), torch.arange(20) % 2), tempfile.mkdtemp() + "/mine"
    >>> _ = secureafl.fit(
    ...     torch.nn.Linear(4, 2), samples, clients=2, rounds=4, out=out, callbacks=[Uploads()]
    ... )
    mine 4
    """

    def on_start(self, run: Path, experiment: Experiment) -> None:
        """A run begins, or goes on: then it is told again from its first round."""

    def on_event(self, run: Path, event: Event) -> None:
        """An upload was decided on, the model was evaluated, or a client forgotten."""

    def on_end(self, run: Path, result: Mapping[str, Any] | None) -> None:
        """The run has finished with this `result.json`, or with None was stopped or failed."""
