"""The values that travel between the layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch

from secureafl.core.trees import clone

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor


class Arrival(NamedTuple):
    """One cleaned upload, as a defence sees it.

    >>> zero = torch.tensor(0)
    >>> arrival = secureafl.Arrival(zero, zero, gradient=torch.ones(3), base=torch.zeros(3))
    >>> arrival.gradient.sum()
    tensor(3.)
    """

    client: Int[Tensor, ""]  # i
    staleness: Int[Tensor, ""]  # tau, from the server's own ledger, never from the client
    gradient: Float[Tensor, " d"]  # g_i
    base: Float[Tensor, " d"]  # w^{t-tau}, the model this client was given


class Decision(NamedTuple):
    """What a defence makes of one arrival.

    >>> yes, direction = torch.tensor(True), torch.ones(3)
    >>> secureafl.Decision(yes, yes, direction, {"norm": direction.norm()}, "norm").ready
    tensor(True)
    """

    accepted: Bool[Tensor, ""]
    ready: Bool[Tensor, ""]  # False while there is nothing to step with
    direction: Float[Tensor, " d"]  # w <- w - eta * direction, if ready and no optimiser changes it
    scores: dict[str, Tensor]  # what the decision rests on: for report and dashboard
    reason: str  # why, should `accepted` turn out False
    bounded: bool = False  # whether the direction, if ready, is surely not beyond LARGEST_NORM


@runtime_checkable
class RootData(Protocol):
    """Clean samples of the server's own, and what a model makes of them.

    >>> class OneSample:
    ...     labels = torch.tensor([0])
    ...     def gradient(self, weights, rows=None): return weights - 1
    ...     def outputs(self, weights): return weights[None, :2]
    >>> isinstance(OneSample(), secureafl.RootData)
    True
    """

    labels: Int[Tensor, " samples"]

    def gradient(
        self, weights: Float[Tensor, " d"], rows: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " d"]:
        """Mean gradient over all samples, or these, on the scale of the clients' uploads."""
        ...

    def outputs(self, weights: Float[Tensor, " d"]) -> Float[Tensor, "samples classes"]:
        """What the model says to each sample."""
        ...


class ServerView(NamedTuple):
    """What a defence may know of the server.

    >>> server = secureafl.ServerView(torch.tensor(0), torch.zeros(3), learning_rate=0.1)
    >>> server.root_data is None
    True
    """

    round: Int[Tensor, ""]  # t, arrivals so far
    weights: Float[Tensor, " d"]  # w^t
    learning_rate: float  # eta
    root_data: RootData | None = None  # the server's own clean samples, where it has some
    samples: Float[Tensor, " n"] | None = None  # each client's, if that is how much it counts
    plain: bool = True  # whether w <- w - eta * direction; if not, an optimiser decides the move


class SecantProducts(NamedTuple):
    """An upload beside the last one remembered of the same client, in float64.

    The step s is its base model minus the last one's, the change y its gradient minus the last.

    >>> s, y = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 2.0])
    >>> products = secureafl.SecantProducts(torch.tensor(True), s @ s, s @ y, y @ y, y @ y)
    >>> products.sy / products.ss  # curvature along the step
    tensor(0.5000)
    """

    known: Bool[Tensor, ""]  # whether there was one; if not, s and y mean nothing
    ss: Float[Tensor, ""]  # s's
    sy: Float[Tensor, ""]  # s'y
    yy: Float[Tensor, ""]  # y'y
    squared: Float[Tensor, ""]  # of the gradient with itself


Part = Literal["upload", "step", "change"]


class Entry(NamedTuple):
    """What an estimator wants remembered with an upload, beside its gradient and base.

    >>> nothing_more = secureafl.Entry(torch.tensor([], dtype=torch.int64), (), torch.tensor(True))
    >>> nothing_more.parts
    ()
    """

    places: Int[Tensor, " k"]  # among the estimator's own vectors
    parts: tuple[Part, ...]  # what goes there
    keep: Bool[Tensor, ""]


class Inner(NamedTuple):
    """Inner products of what is remembered (last upload, base, more), float64; a row per client.

    The last upload's are only those with itself; the others are 0, for nothing uses them.

    >>> rows, model = torch.eye(3)[:2].expand(4, 2, 3).double(), torch.ones(3).double()
    >>> inner = secureafl.Inner(rows @ rows.mT, rows @ model, model @ model)
    >>> inner.vectors.shape, inner.model.shape
    (torch.Size([4, 2, 2]), torch.Size([4, 2]))
    """

    vectors: Float[Tensor, "n parts parts"]  # of a client's vectors with each other
    model: Float[Tensor, "n parts"]  # of a client's vectors with the model
    squared: Float[Tensor, ""]  # of the model with itself


# What an attack may know beside its own client's data and model, from little to everything:
# nothing; what its colluders trained; what everybody trained; that and all of the server.
Knowledge = Literal["own", "colluders", "everybody", "defense"]


class AttackContext(NamedTuple):
    """What an attack may know before training starts.

    >>> context = secureafl.AttackContext(
    ...     num_clients=10, num_malicious=2, num_classes=10, input_shape=(1, 28, 28),
    ...     pixel_mean=torch.zeros(1), pixel_std=torch.ones(1),
    ...     layout={"weight": (10, 784), "bias": (10,)}, generator=torch.Generator(),
    ... )
    >>> context.num_parameters
    7850
    """

    num_clients: int
    num_malicious: int
    num_classes: int  # 0: the labels are numbers, the task a regression
    input_shape: tuple[int, ...]
    pixel_mean: Float[Tensor, " c"]  # inputs are standardised with these, per channel
    pixel_std: Float[Tensor, " c"]
    layout: dict[str, tuple[int, ...]]  # of the model's flat vector, in order: shapes by name
    generator: torch.Generator  # for what is drawn once per run, such as a trigger

    @property
    def num_parameters(self) -> int:
        """d, the length of models and gradients."""
        return sum(math.prod(shape) for shape in self.layout.values())


class ClientGradients(NamedTuple):
    """What an attack sees of the clients: the gradient each trained for its last upload.

    The present upload counts already. Of malicious clients it is the gradient before
    `poison_update`. Read only: the next upload changes it in place.

    >>> known, malicious = torch.tensor([True, True, False]), torch.tensor([False, True, False])
    >>> clients = secureafl.ClientGradients(torch.ones(3, 2), known, malicious)
    >>> clients.gradients[clients.known & ~clients.malicious]
    tensor([[1., 1.]])
    """

    gradients: Float[Tensor, "n d"]  # finite; 0 where unknown
    known: Bool[Tensor, " n"]  # those that trained already, and that the attack may see
    malicious: Bool[Tensor, " n"]


class ServerSnapshot(NamedTuple):
    """All of the server, for an attack that knows the defence. Read only: nothing is copied.

    >>> defense, weights = secureafl.defenses.AsyncSgd(), torch.zeros(3)
    >>> server = secureafl.ServerView(torch.tensor(0), weights, learning_rate=0.1)
    >>> secureafl.ServerSnapshot(defense, defense.init(10, weights), server).defense
    AsyncSgd()
    """

    defense: Any  # the server's `core.protocols.Defense`, a file that imports this one
    state: Any
    server: ServerView

    def decide(self, arrival: Arrival) -> Decision:
        """What the defence would decide on an upload; its state stays as it is."""
        return self.defense.step(clone(self.state), arrival, self.server)[0]


class AttackerView(NamedTuple):
    """What an attack may know at one upload.

    >>> view = secureafl.AttackerView(
    ...     round=7, attacker_index=0, learning_rate=0.1, generator=torch.Generator(),
    ...     train=lambda weights, batch: weights,
    ... )
    >>> view.clients is None  # an attack that knows only its own client is shown no other
    True
    """

    round: int
    attacker_index: int  # number of the uploading client among the malicious ones, from 0
    learning_rate: float  # eta
    generator: torch.Generator  # fresh for each round
    # Gradient of this client at other weights, on the k-th further batch of its own (from 0), which
    # `poison_batch` changed. On the scale of uploads, like the gradient it trained.
    train: Callable[[Float[Tensor, " d"], int], Float[Tensor, " d"]]
    clients: ClientGradients | None = None  # for attacks that know "colluders" or more
    snapshot: ServerSnapshot | None = None  # for attacks that know "defense"
    # Where the defence is asked on a GPU: calls a function with what decides on an update, and with
    # tensors. The first call of each function is recorded; later ones, of the same shapes, replay.
    recorded: Callable[..., Any] | None = None

    def ask(self, arrival: Arrival) -> Decision:
        """What the defence would decide on this upload with another gradient.

        Its state stays as it is. For attacks that know "defense"; valid until they ask again.
        """
        if self.recorded is not None:
            return self.recorded(_decision_on, arrival.gradient)
        assert self.snapshot is not None
        return self.snapshot.decide(arrival)


def _decision_on(decide: Callable[[Tensor], Decision], update: Tensor) -> Decision:
    return decide(update)


class RecordableView(NamedTuple):
    """As much of an `AttackerView` as stays the same, or in the same place, from upload to upload.

    It is all that an attack with `recordable = True` is shown where its upload is recorded.
    """

    attacker_index: int
    learning_rate: float
    clients: ClientGradients | None
    # Of no more batches than the attack's `further_batches`.
    train: Callable[[Float[Tensor, " d"], int], Float[Tensor, " d"]]


class Data(NamedTuple):
    """A data set in memory; images stay bytes until a batch is drawn.

    >>> samples = torch.rand(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> data = secureafl.from_tensors(samples, samples, "six points")
    >>> data.source
    'six points (6 training, 6 test samples)'
    """

    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    pixel_mean: Float[Tensor, " c"]
    pixel_std: Float[Tensor, " c"]
    source: str  # where it was found, for people
    fingerprint: str  # checksum, so that a resumed run refuses other data
    train_origin: Int[Tensor, " samples"] | None = None  # which recording, say, each is of
