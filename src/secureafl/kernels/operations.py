"""The few hot operations: one name each, whatever runs underneath."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secureafl.kernels.choice import version_for

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.quantile import History
    from secureafl.core.trust import Doubts, Notes, Weighed
    from secureafl.core.types import Arrival, Entry, Inner, News
    from secureafl.core.uploads import Uploads
    from secureafl.kernels.memory import Memory
    from secureafl.kernels.step import Choice, Judged, Step


def meet(memory: Memory, arrival: Arrival) -> News:
    """An upload beside what is remembered of its client."""
    return version_for(memory.vectors).meet(memory, arrival)


def judge(history: History, news: News, radius: float, level: float) -> tuple[Judged, History]:
    """Compare an upload's Lipschitz factor with the `level`-quantile of all so far, its own too.

    A first upload has no factor; its norm is bounded by `radius` instead.
    """
    return version_for(history.ordered).judge(history, news, radius, level)


def place_pair(
    appended: Int[Tensor, " n"],
    client: Int[Tensor, ""],
    news: News,
    keep: Bool[Tensor, ""],
    pairs: int,
    min_curvature: float,
) -> tuple[Int[Tensor, 2], Bool[Tensor, ""]]:
    """Where in its ring of `pairs` a client's step and change go, and whether they are curved.

    `appended`, pairs each client ever gave, counts one more if they are and `keep` holds.
    """
    version = version_for(appended)
    return version.place_pair(appended, client, news, keep, pairs, min_curvature)


def hear(
    known: Bool[Tensor, " n"],
    shares: Float[Tensor, "n slots"],
    client: Int[Tensor, ""],
    heard: Bool[Tensor, ""],
) -> tuple[Bool[Tensor, " n"], Int[Tensor, ""]]:
    """Whose vectors are aggregated, and how many they are: all known, the client only if `heard`.

    The client's own `shares` become those of its upload alone, in place.
    """
    return version_for(shares).hear(known, shares, client, heard)


def after_step(
    memory: Memory, step: Step, learning_rate: float, count: Int[Tensor, ""]
) -> tuple[Bool[Tensor, ""], Memory]:
    """The memory once the model has moved by -learning_rate times the step's direction.

    It does not move, which the flag tells, if `count` is 0 or the direction is longer than any of
    use: the server would not take it, and then the inner products would be wrong.
    """
    return version_for(memory.vectors).after_step(memory, step, learning_rate, count)


def exchange(
    memory: Memory,
    arrival: Arrival,
    entry: Entry,
    weights: Float[Tensor, " d"],
    keep: Bool[Tensor, ""],
) -> Memory:
    """Put the upload and what comes with it in its client's rows where `keep` holds.

    That client's inner products, and the model's with itself, are computed anew.
    """
    return version_for(memory.vectors).exchange(memory, arrival, entry, weights, keep)


def order_step(
    memory: Memory,
    arrival: Arrival,
    entry: Entry,
    keep: Bool[Tensor, ""],
    weights: Float[Tensor, " d"],
    choice: Choice,
) -> tuple[Step, Memory]:
    """`exchange`, then a mean of order statistics over the clients' combinations: in one pass."""
    version = version_for(memory.vectors)
    return version.order_step(memory, arrival, entry, keep, weights, choice)


def lbfgs_shares(
    inner: Inner, appended: Int[Tensor, " n"], pairs: int, max_correction: float
) -> Float[Tensor, "n parts"]:
    """Of every remembered vector in its client's estimate (`kernels.bfgs`)."""
    return version_for(inner.vectors).lbfgs_shares(inner, appended, pairs, max_correction)


def compare(uploads: Uploads, arrival: Arrival) -> News:
    """As `meet`, where the last uploads are all that is remembered."""
    return version_for(arrival.gradient).compare(uploads, arrival)


def take_note(
    notes: Notes,
    known: Bool[Tensor, " n"],
    client: Int[Tensor, ""],
    news: News,
    clip_norm: float,
    shorten: bool,
    memory: float,
) -> Float[Tensor, ""]:
    """Note an upload's length, constancy and bend; what to multiply it with so that it can count.

    Its client is `known` from now on. No first upload is longer than `clip_norm`; to `shorten` is
    to let no client speak louder than the median one.
    """
    return version_for(known).take_note(notes, known, client, news, clip_norm, shorten, memory)


def remember(
    sent: Uploads,
    word: Float[Tensor, "n d"],
    record: Float[Tensor, "n d"],
    arrival: Arrival,
    heard: Bool[Tensor, ""],
    scale: Float[Tensor, ""],
    word_memory: float,
    record_memory: float,
) -> Float[Tensor, " d"]:
    """Put an upload into its client's rows, in place; gives a copy of what is its record then.

    Word and record keep of themselves what their memory says, if the client was `heard` before,
    and take the rest from the upload, scaled.
    """
    rows, memories = (sent, word, record), (word_memory, record_memory)
    return version_for(word).remember(*rows, arrival, heard, scale, *memories)


def weigh(
    notes: Notes,
    known: Bool[Tensor, " n"],
    client: Int[Tensor, ""],
    products: Float[Tensor, " n"],
    doubts: Doubts,
) -> Weighed:
    """What every client's word counts for after one has spoken (`core.trust`).

    `products`: of that one's record with everybody's; they and the age of words are noted.
    """
    return version_for(products).weigh(notes, known, client, products, doubts)


def standing(
    gram: Float[Tensor, "n n"], known: Bool[Tensor, " n"], crowding: float, approval: float
) -> Float[Tensor, " n"]:
    """Weights of the known clients, from the inner products of what they say (`core.trust`)."""
    return version_for(gram).standing(gram, known, crowding, approval)
