"""The shapes of everything that plugs in. Each implementation is one frozen dataclass in one file.

Settings are fields; what changes is the state, which goes in and comes out. State is donated:
after a call only the returned one may be used, so one row may be written in place. A stateless
implementation uses `()`. Inside these methods no Python `if` looks at a tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.types import Arrival, AttackerView, Data, Decision, Scene, ServerView
    from secureafl.core.uploads import Uploads


@runtime_checkable
class Defense(Protocol):
    """Decides what one arrival does to the model."""

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Any:
        """State before the first arrival, on the device of `weights`."""
        ...

    def step(self, state: Any, arrival: Arrival, server: ServerView) -> tuple[Decision, Any]:
        """Judge one arrival."""
        ...


@runtime_checkable
class Aggregator(Protocol):
    """Makes one vector of those of n clients."""

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Any:
        """State before the first call."""
        ...

    def aggregate(
        self, state: Any, values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], Any]:
        """Aggregate the rows marked present; the others may hold anything finite."""
        ...


@runtime_checkable
class Estimator(Protocol):
    """Guesses what each client would send on the current model."""

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> Any:
        """Memory before the first upload."""
        ...

    def remember(
        self, memory: Any, before: Uploads, arrival: Arrival, keep: Bool[Tensor, ""]
    ) -> Any:
        """Take in one real upload (if `keep`); `before` does not hold it yet."""
        ...

    def estimate(
        self, memory: Any, uploads: Uploads, weights: Float[Tensor, " d"]
    ) -> Float[Tensor, "n d"]:
        """One row per client; rows of clients never heard of are ignored. Freshly allocated."""
        ...


@runtime_checkable
class Attack(Protocol):
    """What malicious clients do to their data and to their uploads."""

    def init(self, scene: Scene) -> Any:
        """State shared by all malicious clients."""
        ...

    def poison_batch(self, state: Any, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The batch a malicious client trains on."""
        ...

    def poison_update(
        self, state: Any, trained: Arrival, seen: AttackerView
    ) -> tuple[Float[Tensor, " d"], Any]:
        """What is uploaded instead of the gradient trained on the (poisoned) batch."""
        ...


@runtime_checkable
class Backdoor(Attack, Protocol):
    """An attack with a trigger, so that its success rate can be measured."""

    target_class: int

    def stamp(self, state: Any, inputs: Tensor) -> Tensor:
        """Test inputs with the trigger on them."""
        ...


@runtime_checkable
class Task(Protocol):
    """Data, model, loss and metrics."""

    def load(self) -> Data:
        """Read the data set."""
        ...

    def model(self) -> torch.nn.Module:
        """A freshly initialised model."""
        ...

    def loss(self, outputs: Tensor, labels: Tensor) -> Float[Tensor, ""]:
        """Mean loss of a batch."""
        ...

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Metrics of a whole test set, the main one first."""
        ...


@runtime_checkable
class Partition(Protocol):
    """Deals the training samples out to clients."""

    def deal(
        self, labels: Int[np.ndarray, " samples"], num_clients: int, rng: np.random.Generator
    ) -> Any:
        """Rows of each client and the group it belongs to (`partitions.shards.Shards`)."""
        ...


@runtime_checkable
class ArrivalModel(Protocol):
    """Draws who uploads when, and from which model, before training starts."""

    def draw(self, rounds: int, num_clients: int, rng: np.random.Generator) -> Any:
        """The whole schedule (`arrivals.trace.Trace`)."""
        ...
