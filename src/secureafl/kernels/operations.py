"""The hot operations of the server step, each run by the version that fits the tensor's device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secureafl.kernels.dispatch import version_for

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.clipping import Records, Standing, Weights
    from secureafl.core.panels import Panels
    from secureafl.core.types import Arrival, Entry, Inner, SecantProducts
    from secureafl.core.uploads import Uploads
    from secureafl.kernels.memory import Memory
    from secureafl.kernels.step import FilterResult, Selection, Step
    from secureafl.linalg.quantile import History
    from secureafl.linalg.sketch import Sketch


def tiled_secant_products(memory: Memory, arrival: Arrival) -> SecantProducts:
    """Inner products of an upload, and of the changes since the last one stored of its client."""
    return version_for(memory.vectors).tiled_secant_products(memory, arrival)


def filter_update(
    history: History, secant: SecantProducts, radius: float, level: float
) -> tuple[FilterResult, History]:
    """Compare an upload's Lipschitz factor with the `level`-quantile of all so far, its own too.

    A first upload has no factor; its norm is bounded by `radius` instead.
    """
    return version_for(history.ordered).filter_update(history, secant, radius, level)


def place_pair(
    appended: Int[Tensor, " n"],
    client: Int[Tensor, ""],
    secant: SecantProducts,
    keep: Bool[Tensor, ""],
    pairs: int,
    min_curvature: float,
) -> tuple[Int[Tensor, " 2"], Bool[Tensor, ""]]:
    """Places of a client's step and change in its ring of `pairs`, and whether s'y is large enough.

    `appended` counts the pairs each client ever stored: one more if it is and `keep` holds.
    """
    version = version_for(appended)
    return version.place_pair(appended, client, secant, keep, pairs, min_curvature)


def select_participants(
    known: Bool[Tensor, " n"],
    shares: Float[Tensor, "n slots"],
    client: Int[Tensor, ""],
    included: Bool[Tensor, ""],
) -> tuple[Bool[Tensor, " n"], Int[Tensor, ""]]:
    """Mark and count the clients whose vectors are aggregated.

    These are all known clients, and the one that uploaded only if `included`. Its own `shares`
    become those of its upload alone, in place.
    """
    return version_for(shares).select_participants(known, shares, client, included)


def after_step(
    memory: Memory, step: Step, learning_rate: float, count: Int[Tensor, ""]
) -> tuple[Bool[Tensor, ""], Memory]:
    """The memory once the model has moved by -learning_rate times the step's direction.

    The flag says whether it has. It does not move if `count` is 0 or the direction is longer than
    the server accepts; inner products updated for such a step would be wrong.
    """
    return version_for(memory.vectors).after_step(memory, step, learning_rate, count)


def store_upload(
    memory: Memory,
    arrival: Arrival,
    entry: Entry,
    weights: Float[Tensor, " d"],
    keep: Bool[Tensor, ""],
) -> Memory:
    """Store an upload and the estimator's entry in its client's rows where `keep` holds.

    That client's inner products, and the model's with itself, are computed anew.
    """
    return version_for(memory.vectors).store_upload(memory, arrival, entry, weights, keep)


def order_step(
    memory: Memory,
    arrival: Arrival,
    entry: Entry,
    keep: Bool[Tensor, ""],
    weights: Float[Tensor, " d"],
    selection: Selection,
) -> tuple[Step, Memory]:
    """`store_upload`, then a mean of order statistics over the clients, in one pass over memory."""
    version = version_for(memory.vectors)
    return version.order_step(memory, arrival, entry, keep, weights, selection)


def lbfgs_shares(
    inner: Inner, appended: Int[Tensor, " n"], pairs: int, max_correction: float
) -> Float[Tensor, "n parts"]:
    """Share of every stored vector in its client's L-BFGS estimate g + B (w - base).

    The correction B (w - base) is capped at `max_correction` times the norm of g. `appended` counts
    the pairs each client ever stored; the last `pairs` of them lie in a ring.
    """
    return version_for(inner.vectors).lbfgs_shares(inner, appended, pairs, max_correction)


def secant_products(uploads: Uploads, arrival: Arrival) -> SecantProducts:
    """As `tiled_secant_products`, where only the last uploads are stored."""
    return version_for(arrival.gradient).secant_products(uploads, arrival)


def remember_upload(
    records: Records,
    sketch: Sketch,
    centre: Float[Tensor, " d"],
    arrival: Arrival,
    momentum: float,
) -> Float[Tensor, " 3"]:
    """Put an upload into its client's records (`core.clipping`), in place, clipped to the median.

    The client is known from now on. Returned is where the upload lies before clipping, in float64:
    its distance ||a|| from the centre c, then a'c and ||c||.
    """
    version = version_for(records.last)
    return version.remember_upload(records, sketch, centre, arrival, momentum)


def call_panel(panels: Panels, every: int) -> tuple[Int[Tensor, " p"], Bool[Tensor, ""]]:
    """The clients of the panel whose turn it is, and whether they are judged at this arrival.

    That is so at one arrival of `every`. Arrivals are counted, and clients are dealt into new
    panels after the last one of a pass, in place.
    """
    return version_for(panels.order).call_panel(panels, every)


def judge_clients(
    records: Records,
    trust: Float[Tensor, " n"],
    members: Int[Tensor, " p"],
    due: Bool[Tensor, ""],
    momentum: float,
    neighbours: bool,
) -> None:
    """Bring the trust in the members, in place, up to date with their records, if that is `due`.

    With `neighbours` they are judged by `core.neighbours` too.
    """
    version_for(records.last).judge_clients(records, trust, members, due, momentum, neighbours)


def take_step(
    records: Records,
    standing: Standing,
    centre: Float[Tensor, " d"],
    arrival: Arrival,
    position: Float[Tensor, " 3"],
) -> tuple[Weights, Float[Tensor, " d"]]:
    """What an upload at this position may do, and the step's direction, which is bounded.

    The standing is brought up to date, and the centre moves on, in place.
    """
    return version_for(centre).take_step(records, standing, centre, arrival, position)
