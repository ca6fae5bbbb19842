"""The values that travel between the layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.protocols import Trusted


class Arrival(NamedTuple):
    """One cleaned upload, as a defence sees it."""

    client: Int[Tensor, ""]  # i
    staleness: Int[Tensor, ""]  # tau, from the server's own ledger, never from the client
    gradient: Float[Tensor, " d"]  # g_i
    base: Float[Tensor, " d"]  # w^{t-tau}, the model this client was given


class Decision(NamedTuple):
    """What a defence makes of one arrival."""

    accepted: Bool[Tensor, ""]
    ready: Bool[Tensor, ""]  # False while there is nothing to step with
    direction: Float[Tensor, " d"]  # w <- w - eta * direction, if ready
    scores: dict[str, Tensor]  # what the decision rests on: for report and dashboard
    reason: str  # why, should `accepted` turn out False
    bounded: bool = False  # whether `ready` already excludes directions beyond LARGEST_NORM


class ServerView(NamedTuple):
    """What a defence may know of the server."""

    round: Int[Tensor, ""]  # t, arrivals so far
    weights: Float[Tensor, " d"]  # w^t
    learning_rate: float  # eta
    trusted: Trusted | None = None  # the server's own clean samples, where it has some


class News(NamedTuple):
    """An upload beside the last one remembered of the same client, in float64.

    The step s is its base model minus the last one's, the change y its gradient minus the last.
    """

    known: Bool[Tensor, ""]  # whether there was one; if not, s and y mean nothing
    step_step: Float[Tensor, ""]  # s's
    step_change: Float[Tensor, ""]  # s'y
    change_change: Float[Tensor, ""]  # y'y
    squared: Float[Tensor, ""]  # of the gradient with itself


Part = Literal["upload", "step", "change"]


class Entry(NamedTuple):
    """What an estimator wants remembered with an upload, beside its gradient and base."""

    places: Int[Tensor, " k"]  # among the estimator's own vectors
    parts: tuple[Part, ...]  # what goes there
    keep: Bool[Tensor, ""]


class Inner(NamedTuple):
    """Inner products of what is remembered (last upload, base, more), float64; a row per client.

    The last upload's are only those with itself, the others 0: nobody asks.
    """

    vectors: Float[Tensor, "n parts parts"]  # of a client's vectors with each other
    model: Float[Tensor, "n parts"]  # of a client's vectors with the model
    squared: Float[Tensor, ""]  # of the model with itself


class Scene(NamedTuple):
    """What an attack may know before training starts."""

    num_malicious: int
    num_classes: int
    input_shape: tuple[int, ...]
    pixel_mean: Float[Tensor, " c"]  # inputs are standardised with these, per channel
    pixel_std: Float[Tensor, " c"]
    generator: torch.Generator  # for what is drawn once per run, such as a trigger


class AttackerView(NamedTuple):
    """What an attack may know at one upload."""

    round: int
    weights: Float[Tensor, " d"]  # w^t
    generator: torch.Generator  # fresh for each round


class Data(NamedTuple):
    """A data set in memory; images stay bytes until a batch is drawn."""

    train_inputs: Tensor
    train_labels: Tensor
    test_inputs: Tensor
    test_labels: Tensor
    pixel_mean: Float[Tensor, " c"]
    pixel_std: Float[Tensor, " c"]
    source: str  # where it was found, for people
    fingerprint: str  # checksum, so that a resumed run refuses other data
