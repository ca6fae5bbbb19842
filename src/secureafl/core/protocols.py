"""The shapes of everything that plugs in. Each implementation is one frozen dataclass in one file.

Settings are fields; what changes is the state, which goes in and comes out. State is donated:
after a call only the returned one may be used, so one row may be written in place. A stateless
implementation uses `()`. Inside these methods no Python `if` looks at a tensor, and the shapes in
a state never change: so a whole step can be recorded once on a GPU and replayed. A rule that must
look at numbers on the host (a clustering library, say) sets the class attribute `on_host = True`;
`core.traits` has the other attributes of this kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.types import (
        Arrival,
        AttackContext,
        AttackerView,
        Data,
        Decision,
        Entry,
        Inner,
        SecantProducts,
        ServerView,
    )

# What a plug-in keeps from call to call: a tensor, or a (named) tuple of states; `()` if nothing.
State = TypeVar("State")


@runtime_checkable
class Defense(Protocol[State]):
    """Decides what one arrival does to the model.

    >>> isinstance(secureafl.defenses.Kardam(), secureafl.Defense)
    True
    """

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        """State before the first arrival, on the device of `weights`."""
        ...

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        """Decide on one arrival."""
        ...


@runtime_checkable
class Remembers(Protocol[State]):
    """A defence, estimator or aggregator that remembers its clients one by one.

    Call it through `core.inactivity.forget`, which also takes those that do not.
    """

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        """The state without that client, whose next upload is its first; others' parts stay.

        What has gone into a sum over clients, or into a step, is the server's and stays.
        """
        ...


@runtime_checkable
class Aggregator(Protocol[State]):
    """Makes one vector of those of n clients.

    >>> rule, updates = secureafl.aggregators.Median(), torch.tensor([[1.0], [2.0], [99.0]])
    >>> isinstance(rule, secureafl.Aggregator)
    True
    >>> rule.aggregate((), updates, present=torch.tensor([True, True, True]))[0]
    tensor([2.])
    """

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        """State before the first call."""
        ...

    def aggregate(
        self, state: State, values: Float[Tensor, "n d"], present: Bool[Tensor, " n"]
    ) -> tuple[Float[Tensor, " d"], State]:
        """Aggregate the rows marked present; the others may hold anything finite."""
        ...


@runtime_checkable
class OrderRule(Aggregator[State], Protocol[State]):
    """An aggregator that averages a range of order statistics in every coordinate."""

    def ranks(self, count: Int[Tensor, ""]) -> tuple[Int[Tensor, ""], Int[Tensor, ""]]:
        """First and last order statistic (from 0) that count, of `count` clients."""
        ...


@runtime_checkable
class RootDataRule(Aggregator[State], Protocol[State]):
    """An aggregator that may compare clients with a gradient on the server's own samples.

    One that cannot do without, or is made of such a one, has the trait `needs_root_data`.
    """

    def aggregate_with_root(
        self,
        state: State,
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        root_gradient: Float[Tensor, " d"],
    ) -> tuple[Float[Tensor, " d"], State]:
        """Like `aggregate`, which is used instead where there is no such gradient."""
        ...


@runtime_checkable
class WeightedRule(Aggregator[State], Protocol[State]):
    """An aggregator for which clients may count differently."""

    def aggregate_weighted(
        self,
        state: State,
        values: Float[Tensor, "n d"],
        present: Bool[Tensor, " n"],
        samples: Float[Tensor, " n"],
    ) -> tuple[Float[Tensor, " d"], State]:
        """Like `aggregate` if each client stood for as many as it has samples; float64, not 0."""
        ...


@runtime_checkable
class Estimator(Protocol[State]):
    """Guesses what each client would send on the current model.

    A guess is a combination of vectors remembered of that client: its last upload, the drift of the
    model since then, and more. The estimator decides what more is remembered and, from inner
    products alone, what share each vector has.

    >>> isinstance(secureafl.estimators.Lbfgs(), secureafl.Estimator)
    True
    """

    @property
    def slots(self) -> int:
        """Vectors wanted per client, beside its last upload and the model under that."""
        ...

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        """Notes before the first upload."""
        ...

    def observe(
        self, notes: State, secant: SecantProducts, arrival: Arrival, keep: Bool[Tensor, ""]
    ) -> tuple[Entry, State]:
        """What to remember of one more real upload, and the notes; both only count if `keep`."""
        ...

    def shares(self, notes: State, inner: Inner) -> Float[Tensor, "n parts"]:
        """Of the last upload, of the drift from its base, and of the `slots` more vectors."""
        ...


@runtime_checkable
class ServerOptimizer(Protocol[State]):
    """Turns the step that a defence asks for into the model's move.

    It is asked for steps only; where a defence makes none, its state stays as it is. So it must
    not write to its state in place.

    >>> isinstance(secureafl.optimizers.Adam(), secureafl.ServerOptimizer)
    True
    """

    def init(self, weights: Float[Tensor, " d"]) -> State:
        """State before the first step."""
        ...

    def move(self, state: State, step: Float[Tensor, " d"]) -> tuple[Float[Tensor, " d"], State]:
        """What is taken from the model for a step, which is eta times the defence's direction."""
        ...


@runtime_checkable
class Attack(Protocol[State]):
    """What malicious clients do to their data and to their uploads.

    Its class says with a plain attribute, `knows = "colluders"`, what it must see beside its own
    client's data and model; it is shown no more than that.

    >>> attack = secureafl.attacks.SignFlip(factor=2.0)
    >>> isinstance(attack, secureafl.Attack), attack.knows
    (True, 'own')
    """

    knows: str  # one of `Knowledge`, which the simulator checks

    def init(self, context: AttackContext) -> State:
        """State shared by all malicious clients."""
        ...

    def poison_batch(
        self, state: State, inputs: Tensor, labels: Tensor, attacker_index: Int[Tensor, ""]
    ) -> tuple[Tensor, Tensor]:
        """The batch that malicious client number `attacker_index` trains on."""
        ...

    def poison_update(
        self, state: State, arrival: Arrival, view: AttackerView
    ) -> tuple[Float[Tensor, " d"], State]:
        """What is uploaded instead of the gradient trained on the (poisoned) batch."""
        ...


@runtime_checkable
class Backdoor(Attack[State], Protocol[State]):
    """An attack with a trigger, so that its success rate can be measured.

    >>> isinstance(secureafl.attacks.Scaling(), secureafl.Backdoor)
    True
    """

    target_class: int

    def stamp(self, state: State, inputs: Tensor) -> Tensor:
        """Test inputs with the trigger on them."""
        ...


@runtime_checkable
class Task(Protocol):
    """Data, model, loss and metrics.

    >>> isinstance(secureafl.tasks.FashionMnist(), secureafl.Task)
    True
    """

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
    """Deals the training samples out to clients.

    >>> isinstance(secureafl.partitions.Dirichlet(), secureafl.Partition)
    True
    """

    def deal(
        self,
        labels: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        origin: Int[np.ndarray, " samples"] | None = None,
    ) -> Any:
        """Rows of each client and the group it belongs to (`secureafl.Shards`).

        No row may be dealt twice, and no client be left without; rows may be left out. `origin`
        says which recording, say, each sample is of, where the task knows.
        """
        ...


@runtime_checkable
class ArrivalModel(Protocol):
    """Draws who uploads when, and from which model, before training starts.

    >>> isinstance(secureafl.arrivals.Uniform(), secureafl.ArrivalModel)
    True
    """

    def draw(self, rounds: int, malicious: Bool[np.ndarray, " n"], rng: np.random.Generator) -> Any:
        """The whole schedule, a `Trace`; `malicious` says which clients are."""
        ...
