"""The server: a pure step without sockets, clocks or threads.

A round is written once, in `Server.stages`: the upload is validated, the defence decides, the
outcome is committed. The simulator and a deployment are two drivers of it, so every defence and
every check exists once. A driver that need not wait for a GPU calls `Server.receive`.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from secureafl.core.errors import ConfigError, require
from secureafl.core.inactivity import forget
from secureafl.core.ledger import Ledger
from secureafl.core.protocols import Defense
from secureafl.core.remembered import RememberedRootData
from secureafl.core.setting_types import fitted, whole_number
from secureafl.core.traits import has_trait
from secureafl.core.trees import choose_state, name_tensors
from secureafl.core.types import Arrival, Decision, RootData, ServerSnapshot, ServerView
from secureafl.linalg.vectors import choose, norm

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.core.protocols import ServerOptimizer
    from secureafl.core.schedule import Schedule

# No update or step of use is longer. The bound keeps sums, differences and inner products of
# updates inside float32; longer products are guarded where they are made.
LARGEST_NORM = 1e18
NORM = "norm"  # a score of every valid upload, whatever the defence

# Reasons for which an upload answers to no model that was lent, so that none is settled.
_UNEXPECTED = ("unknown_client", "unknown_version")
_WEIGHING = (
    "use async_sgd, fed_buff, or secure_afl with mean, median, trimmed_mean or geometric_median"
)


class Upload(NamedTuple):
    """What came in, not validated.

    >>> secureafl.Upload(client=3, version=0, update=torch.ones(2)).client
    3
    """

    client: int  # NumPy's whole numbers, and those of any other library, will do
    version: int  # of the model it answers to, as noted in the ledger's own ticket
    update: object


class ServerState(NamedTuple):
    """All that survives an arrival.

    >>> server = secureafl.Server(secureafl.defenses.FedBuff(), num_clients=2, learning_rate=0.5)
    >>> state = server.start(torch.zeros(3))
    >>> state.round, state.weights
    (0, tensor([0., 0., 0.]))
    """

    round: int  # t
    weights: Float[Tensor, " d"]  # w^t
    defense: Any
    ledger: Ledger
    optimizer: Any = ()


def name_state(state: ServerState) -> dict[str, Tensor]:
    """The tensors in a state, by the names they have in a checkpoint."""
    lent = {f"ledger.{version}": model for version, model in state.ledger.models().items()}
    return {**name_changing(state), **lent}


def name_changing(state: ServerState) -> dict[str, Tensor]:
    """The tensors that `Server.decide` changes: all but the models that were lent."""
    return {
        "weights": state.weights,
        **name_tensors(state.defense, "defense"),
        **name_tensors(state.optimizer, "optimizer"),
    }


class Engine(Protocol):
    """Carries out the arithmetic of a round: at once, or recorded on a GPU and read later."""

    def measure(self, update: Tensor) -> tuple[Float[Tensor, ""], Callable[[], float]]:
        """The norm of an update on its device, and what reads it once it is computed."""
        ...

    def decide(
        self, state: ServerState, upload: Upload, update: Tensor, base: Tensor
    ) -> tuple[Decision, ServerState]:
        """What `Server.decide` makes of an upload."""
        ...


class Server(NamedTuple):
    """The fixed part of a server.

    An own loop lends the current model, trains, and hands the upload in:

    >>> server = secureafl.Server(secureafl.defenses.AsyncSgd(), num_clients=2, learning_rate=0.5)
    >>> state = server.start(torch.zeros(3))
    >>> state.ledger.lend(state.round, state.weights)
    >>> upload = secureafl.Upload(client=1, version=state.round, update=torch.ones(3))
    >>> decision, state = server.receive(state, upload)
    >>> bool(decision.accepted), state.round, state.weights
    (True, 1, tensor([-0.5000, -0.5000, -0.5000]))
    """

    defense: Defense
    num_clients: int
    learning_rate: float  # eta
    root_data: RootData | None = None
    samples: Float[Tensor, " n"] | None = None  # of each client, float64, if it counts by them
    seed: int | None = None  # of what a defence draws and clients must not know; None: the system's
    optimizer: ServerOptimizer | None = None  # None: w <- w - eta * direction
    schedule: Schedule | None = None  # of the optimiser's moves; None: constant
    statistics: int = 0  # of the vector's last numbers; they are no optimiser's business

    def start(self, weights: Float[Tensor, " d"]) -> ServerState:
        """State before the first arrival."""
        self._check(weights)
        if self.root_data is None and has_trait(self.defense, "needs_root_data"):
            name = type(self.defense).__name__
            raise ConfigError(f"{name} needs root data: give Server(..., root_data=...)")
        if self.samples is not None and not getattr(self.defense, "weighs", False):
            name = type(self.defense).__name__
            raise ConfigError(
                f"client_weighting = 'samples': {name} cannot weigh its clients; {_WEIGHING}"
            )
        with torch.random.fork_rng(devices=[]):
            seed = secrets.randbits(63) if self.seed is None else operator.index(self.seed)
            torch.default_generator.manual_seed(seed)
            state = self.defense.init(self.num_clients, weights)
        return ServerState(0, weights, state, Ledger(), self._start_optimizer(weights))

    def _check(self, weights: object) -> None:
        fitted(Defense, self.defense, "defense")
        fitted(float, self.learning_rate, "learning_rate")
        number = whole_number(self.num_clients)
        right = number is not None and number >= 1
        require(right, "num_clients", self.num_clients, "give a whole number of clients, 1 or more")
        form = type(weights).__name__
        if isinstance(weights, Tensor):
            if weights.dim() == 1 and weights.is_floating_point():
                return
            form = f"{form}, {weights.dtype} {tuple(weights.shape)}"
        remedy = "give all floats of a model in one row: secureafl.flatten(module)"
        raise ConfigError(f"weights: of type {form}; {remedy}")

    def _start_optimizer(self, weights: Tensor) -> Any:
        return () if self.optimizer is None else self.optimizer.init(self._learnt(weights))

    def _learnt(self, vector: Tensor) -> Tensor:
        return vector[: vector.numel() - self.statistics]

    def receive(self, state: ServerState, upload: Upload) -> tuple[Decision, ServerState]:
        """One round, at once. Every arrival is a round, whatever becomes of it."""
        stages = self.stages(state, upload, _AtOnce(self))
        while True:
            try:
                next(stages)
            except StopIteration as done:
                return done.value

    def stages(
        self, state: ServerState, upload: Upload, engine: Engine
    ) -> Generator[None, None, tuple[Decision, ServerState]]:
        """One round: validate, decide, commit.

        At each `yield` the engine may still be computing; what is read of it comes after.
        """
        upload = _with_plain_numbers(upload)
        base, update = state.ledger.look_up(upload.version), upload.update
        reason = self.validate_form(state, upload, base)
        if reason:
            return self.refuse(state, upload, reason)
        assert isinstance(update, Tensor)
        assert base is not None
        update = update.detach() if update.requires_grad else update
        length, read_length = engine.measure(update)
        yield
        reason = validate_norm(read_length(), update)
        if reason:
            return self.refuse(state, upload, reason)
        decision, state = engine.decide(state, upload, update, base)
        yield
        decision = decision._replace(scores={**decision.scores, NORM: length})
        return decision, self.commit(state, upload)

    def validate_form(self, state: ServerState, upload: Upload, base: Tensor | None) -> str:
        """Why this upload is not one, whatever numbers it holds; empty if it is."""
        update, weights = upload.update, state.weights
        if not isinstance(upload.client, int) or not 0 <= upload.client < self.num_clients:
            return "unknown_client"
        if base is None:
            return "unknown_version"
        if not isinstance(update, Tensor) or _form(update) != _form(weights):
            return "wrong_type"
        return "wrong_shape" if update.shape != weights.shape else ""

    def decide(
        self, state: ServerState, numbers: Int[Tensor, " 3"], update: Tensor, base: Tensor
    ) -> tuple[Decision, ServerState]:
        """The defence's step and the model's move; `numbers` are client, staleness and round.

        Nothing here looks at a tensor's value, so a GPU can record it.
        """
        decision, after = self.judge(state, numbers, update, base)
        if self.optimizer is not None:
            return self._optimize(after, decision, self.optimizer, numbers[2])
        weights = moved(state.weights, decision, self.learning_rate)
        return decision, after._replace(weights=weights)

    def judge(
        self, state: ServerState, numbers: Int[Tensor, " 3"], update: Tensor, base: Tensor
    ) -> tuple[Decision, ServerState]:
        """As `decide`, but the model stays where it is."""
        client, staleness, now = numbers.unbind()
        arrival = Arrival(client, staleness, update, base)
        view = self._view(now, state.weights)
        decision, defense = self.defense.step(state.defense, arrival, view)
        if not (decision.bounded or decision.direction is update):  # an update was validated
            short = norm(decision.direction) <= LARGEST_NORM
            decision = decision._replace(ready=decision.ready & short)
        return decision, state._replace(defense=defense)

    def _optimize(
        self, state: ServerState, decision: Decision, optimizer: ServerOptimizer, now: Tensor
    ) -> tuple[Decision, ServerState]:
        """Move the model as the optimiser says; without a step, model and optimiser stay."""
        step = self.learning_rate * decision.direction
        move, after = optimizer.move(state.optimizer, self._learnt(step))
        if self.schedule is not None:
            move = move * self.schedule.factor(now)
        if self.statistics:
            move = torch.cat([move, step[-self.statistics :]])
        ready = decision.ready & (norm(move) <= LARGEST_NORM)
        return decision._replace(ready=ready), state._replace(
            weights=choose(ready, state.weights - move, state.weights),
            optimizer=choose_state(ready, after, state.optimizer),
        )

    def commit(self, state: ServerState, upload: Upload) -> ServerState:
        """Settle the ledger and count the round."""
        state.ledger.settle(upload.version)
        return state._replace(round=state.round + 1)

    def refuse(
        self, state: ServerState, upload: Upload, reason: str
    ) -> tuple[Decision, ServerState]:
        """A round whose upload reaches no arithmetic."""
        no = torch.zeros((), dtype=torch.bool, device=state.weights.device)
        decision = Decision(no, no, torch.zeros_like(state.weights), {}, reason)
        if reason in _UNEXPECTED:
            return decision, state._replace(round=state.round + 1)
        return decision, self.commit(state, upload)

    def forget(self, state: ServerState, client: int) -> ServerState:
        """Without what the defence remembers of a client; should it return, it is a new one."""
        number = torch.tensor(client).to(state.weights.device, non_blocking=True)
        return state._replace(defense=forget(self.defense, state.defense, number))

    def snapshot(self, state: ServerState, now: Int[Tensor, ""] | None = None) -> ServerSnapshot:
        """All of the server, for an attack that knows the defence; nothing is copied.

        `now` is the round, where it is not the state's. To be used while the model stays as it is.
        """
        if now is None:
            now = torch.tensor(state.round).to(state.weights.device, non_blocking=True)
        seen = self._view(now, state.weights)
        if self.root_data is not None:
            seen = seen._replace(root_data=RememberedRootData(self.root_data, state.weights))
        return ServerSnapshot(self.defense, state.defense, seen)

    def _view(self, now: Int[Tensor, ""], weights: Tensor) -> ServerView:
        given = (self.learning_rate, self.root_data, self.samples, self.optimizer is None)
        return ServerView(now, weights, *given)


class _AtOnce(NamedTuple):
    """The engine of `Server.receive`."""

    server: Server

    def measure(self, update: Tensor) -> tuple[Float[Tensor, ""], Callable[[], float]]:
        length = norm(update)
        return length, lambda: float(length)

    def decide(
        self, state: ServerState, upload: Upload, update: Tensor, base: Tensor
    ) -> tuple[Decision, ServerState]:
        numbers = (upload.client, state.round - upload.version, state.round)
        return self.server.decide(state, torch.tensor(numbers, device=base.device), update, base)


def _with_plain_numbers(upload: Upload) -> Upload:
    """The upload with its numbers as Python's; what is no whole number stays, to be refused."""
    client, version = whole_number(upload.client), whole_number(upload.version)
    return upload._replace(
        client=upload.client if client is None else client,
        version=upload.version if version is None else version,
    )


def moved(weights: Float[Tensor, " d"], decision: Decision, rate: float) -> Float[Tensor, " d"]:
    """The weights after a plain step, or as they are where the decision is not ready for one."""
    ahead = torch.add(weights, decision.direction, alpha=-rate)
    return choose(decision.ready, ahead, weights)


def validate_norm(length: float, update: Tensor) -> str:
    """Why an update of this norm must not reach any arithmetic; empty if it may.

    NaN and infinity in any coordinate show up in the norm: one pass for all checks.
    """
    if length <= LARGEST_NORM:
        return ""
    return "too_large" if torch.isfinite(update).all() else "not_finite"


def _form(tensor: Tensor) -> tuple[torch.dtype, torch.layout, torch.device]:
    return tensor.dtype, tensor.layout, tensor.device
