"""The step of trust clipping: what is kept of clients, and what their uploads may do.

Operations on what a server keeps, in the order of an arrival. They are here as plain torch;
`kernels.operations` chooses faster versions where there are some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.curvature import (
    CurvatureStats,
    curvature_weights,
    no_curvature,
    update_curvature,
)
from secureafl.core.panels import LARGEST_PANEL
from secureafl.core.server import LARGEST_NORM
from secureafl.linalg.rows import TINY, lower_median, rise
from secureafl.linalg.sketch import Sketch, sketched
from secureafl.linalg.vectors import exact_norm, exactly_scaled, row, set_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from secureafl.core.types import Arrival

CREDIT = 2.0  # standard errors that a client's curvature is given: innocent until shown otherwise
ROUNDING = 1e-4  # of an upload: a change since the last one that is no longer says nothing
ALONE = 0.1  # of a move: where no more is left without the client's own step, it says nothing
GROWTH = 1.5  # of a client's mean distance so far: what counts of a distance that is longer
CUT, SPARED = 0.25, 0.35  # of what clipping leaves of the median client's: no weight, full weight
NEWS = 0.25  # share of a judgement in a client's trust: who sits with whom is chance
FORGIVING = 0.02  # the same, with neighbours, for the better of who does not count: camps pause
PACE, SAVED = 1.5, 5.0  # steps earned while each other client uploads once; the most that is kept
WARM_UP = 5  # uploads of the median client, until steps have their full length
COUNTED = 0.5  # of a typical client's weight: with less, an upload is reported as not accepted
RATE, SHORTEST = 0.01, 0.5  # of the mean trust, per step; and what it is at least taken for
TOWARDS = 0.5  # what the centre goes towards clipped uploads while every client uploads once


class Records(NamedTuple):
    """What is known of each client; row k is client k's. Sketches are rows of k numbers.

    All rows of a client that is not known are 0.
    """

    known: Bool[Tensor, " n"]
    norms: Float[Tensor, " n"]  # of the last uploads, float64 as all numbers but sketches
    distances: Float[Tensor, " n"]  # of the last uploads from the centre, as far as they count
    usual: Float[Tensor, " n"]  # mean of the distances so far
    recent: Float[Tensor, " n"]  # moving average of their roots
    uploads: Float[Tensor, " n"]  # made so far
    kept: Float[Tensor, " n"]  # moving average of the share of a distance that clipping leaves
    curvature: CurvatureStats  # along the move without what lies along the client's last upload
    whole: CurvatureStats  # the same along the whole move, the client's own step included
    last: Float[Tensor, "n k"]  # the last clipped upload
    base: Float[Tensor, "n k"]  # the model under it
    history: Float[Tensor, "n k"]  # moving average of clipped uploads


class Standing(NamedTuple):
    """What clients may do now."""

    trust: Float[Tensor, " n"]  # moving average of judgements; 1 before a client's first
    earned: Float[Tensor, " n"]  # steps a client may make
    mean_trust: Float[Tensor, ""]  # moving average over steps


class Weights(NamedTuple):
    """What an upload may do."""

    trust: Float[Tensor, ""]
    pace: Float[Tensor, ""]
    counts: Bool[Tensor, ""]  # whether the upload is reported as accepted
    ready: Bool[Tensor, ""]  # whether the model may move


class Shares(NamedTuple):
    """Shares of the centre and of the upload."""

    direction: Float[Tensor, " 2"]  # in the step
    centre: Float[Tensor, " 2"]  # in the next centre


def no_records(num_clients: int, size: int, weights: Float[Tensor, " d"]) -> Records:
    """The records before the first upload, with sketches of `size` numbers."""
    zeros = torch.zeros(num_clients, dtype=torch.float64, device=weights.device)
    rows = weights.new_zeros(num_clients, min(size, weights.numel()))
    curvature, whole = (no_curvature(num_clients, weights.device) for _ in range(2))
    norms, distances, usual, recent, uploads, kept = (zeros.clone() for _ in range(6))
    lengths = norms, distances, usual, recent
    numbers = zeros.bool(), *lengths, uploads, kept
    return Records(*numbers, curvature, whole, rows, rows.clone(), rows.clone())


def full_standing(num_clients: int, device: torch.device) -> Standing:
    """The standing before the first upload: all are trusted, and may make one step."""
    ones = torch.ones(num_clients, dtype=torch.float64, device=device)
    return Standing(ones, ones.clone(), ones.new_ones(()))


def remember_upload(
    records: Records,
    sketch: Sketch,
    centre: Float[Tensor, " d"],
    arrival: Arrival,
    momentum: float,
) -> Float[Tensor, " 3"]:
    """See `kernels.operations.remember_upload`."""
    client, away = arrival.client, arrival.gradient - centre
    yes, known_before = torch.ones_like(records.known[0]), row(records.known, client)
    distance = exact_norm(away)
    set_row(records.known, client, yes, yes)
    set_row(records.norms, client, exact_norm(arrival.gradient), yes)
    _measure(records, client, distance, momentum)
    share = torch.minimum(distance, lower_median(records.recent, records.known) ** 2)
    share = torch.where(distance > 0, share / distance.clamp(min=TINY), 1)
    size = records.last.shape[1]
    upload = sketched(sketch, centre + exactly_scaled(away, share), size)
    base = sketched(sketch, arrival.base, size)
    _compare(records, client, known_before, upload, base, momentum)
    _average(records, client, upload, base, share, momentum)
    return torch.stack([distance, away.double() @ centre.double(), exact_norm(centre)])


def _measure(
    records: Records, client: Int[Tensor, ""], distance: Float[Tensor, ""], momentum: float
) -> None:
    """Put a distance into the client's records, as far as it counts.

    Where a model is being destroyed honest gradients explode, and the radius must not follow. Of
    roots, because single distances are far from usual more often upwards than downwards.
    """
    uploads, usual = row(records.uploads, client), row(records.usual, client)
    counted = torch.where(uploads > 0, torch.minimum(distance, GROWTH * usual), distance)
    yes = torch.ones_like(records.known[0])
    set_row(records.distances, client, counted, yes)
    set_row(records.usual, client, usual + (counted - usual) / (uploads + 1), yes)
    before = (uploads / (uploads + 1)).clamp(max=momentum)
    recent = torch.lerp(counted.sqrt(), row(records.recent, client), before)
    set_row(records.recent, client, recent, yes)


def _compare(
    records: Records,
    client: Int[Tensor, ""],
    known_before: Bool[Tensor, ""],
    upload: Float[Tensor, " k"],
    base: Float[Tensor, " k"],
    momentum: float,
) -> None:
    """Add the cosines between the model's move and the upload's change to the statistics.

    The client's own step holds the noise of its last upload, which the next one does not have; so
    the two agree, whatever the curvature: the more, the more of an upload is noise. So there is one
    cosine with all of the move, which is small for uploads with less noise than others', and one
    without what lies along the last upload, which is of the curvature alone.
    """
    moved, last = (base - row(records.base, client)).double(), row(records.last, client).double()
    changed = upload.double() - last
    others = moved - moved @ last / (last @ last).clamp(min=TINY) * last
    told = known_before & (exact_norm(changed) > ROUNDING * exact_norm(upload))
    by_others = exact_norm(others) > ALONE * exact_norm(moved)
    for statistics, move, seen in (
        (records.curvature, others, told & by_others),
        (records.whole, moved, told),
    ):
        lengths = exact_norm(move) * exact_norm(changed)
        seen = seen & (lengths > 0)
        cosine = move @ changed / torch.where(seen, lengths, 1)
        update_curvature(statistics, client, cosine, seen, momentum)


def _average(
    records: Records,
    client: Int[Tensor, ""],
    upload: Float[Tensor, " k"],
    base: Float[Tensor, " k"],
    share: Float[Tensor, ""],
    momentum: float,
) -> None:
    uploads = row(records.uploads, client)
    # A plain mean of the first uploads, so that the very first does not count for long.
    before = (uploads / (uploads + 1)).clamp(max=momentum)
    history = torch.lerp(upload, row(records.history, client), before.to(upload.dtype))
    kept = torch.lerp(share, row(records.kept, client), before)
    for rows, value in (
        (records.last, upload),
        (records.base, base),
        (records.history, history),
        (records.kept, kept),
        (records.uploads, uploads + 1),
    ):
        set_row(rows, client, value, torch.ones_like(records.known[0]))


def judge_clients(
    records: Records,
    trust: Float[Tensor, " n"],
    members: Int[Tensor, " p"],
    due: Bool[Tensor, ""],
    momentum: float,
    neighbours: bool,
    peer_weights: Callable[..., Float[Tensor, " p"]],
) -> None:
    """See `kernels.operations.judge_clients`, and for the last `kernels.reference.peer_weights`."""
    weights = torch.minimum(
        *(
            curvature_weights(statistics, momentum, records.known, CREDIT)
            for statistics in (records.curvature, records.whole)
        )
    )
    median = lower_median(records.kept, records.known)
    weights = weights * rise(records.kept / median.clamp(min=TINY), CUT, SPARED)
    # Who was seen through is left out: it must not explain others, nor make their groups large.
    left = records.known & (weights > 0)
    so_far = trust if neighbours else None
    by_peers = peer_weights(records.history, members, left, due, so_far)
    weights = weights.index_select(0, members) * by_peers
    before = trust.index_select(0, members)
    judged = due & records.known.index_select(0, members)
    forgiven = (weights > before) & (before < COUNTED)
    news = torch.where(forgiven, FORGIVING if neighbours else NEWS, NEWS)
    trust.index_copy_(0, members, before + torch.where(judged, news * (weights - before), 0))


def take_step(
    records: Records,
    standing: Standing,
    centre: Float[Tensor, " d"],
    arrival: Arrival,
    position: Float[Tensor, " 3"],
) -> tuple[Weights, Float[Tensor, " d"]]:
    """See `kernels.operations.take_step`."""
    weights, shares = weigh_step(records, standing, arrival.client, position)
    return weights, move_centre(centre, arrival.gradient, shares)


def weigh_step(
    records: Records, standing: Standing, client: Int[Tensor, ""], position: Float[Tensor, " 3"]
) -> tuple[Weights, Shares]:
    """What a client's upload at this position may do; the standing is brought up to date."""
    trust, pace = row(standing.trust, client), _spend_pace(records, standing, client)
    # By pace: who uploads often and may not spend must not make the others' steps longer.
    standing.mean_trust.lerp_(trust, RATE * pace)
    (radius, stretch), distance = _radius(records), position[0]
    length = torch.minimum(distance, radius) / distance.clamp(min=TINY)
    factor = _warm_up(records) * trust * pace / standing.mean_trust.clamp(min=SHORTEST)
    moves = stretch * factor * _norm_after(position, length) <= LARGEST_NORM
    ready = (factor > 0) & (2 * records.known.sum() > len(records.known)) & moves
    towards = torch.where(ready, TOWARDS / len(records.known) * trust * pace * length, 0)
    direction = stretch * factor * torch.stack([1 - length, length])
    centre = _next_centre(records, position, towards)
    return Weights(trust, pace, trust * pace >= COUNTED, ready), Shares(direction, centre)


def _spend_pace(records: Records, standing: Standing, client: Int[Tensor, ""]) -> Float[Tensor, ""]:
    """What the client may spend on this step, at most 1; the others earn, in place."""
    if len(standing.earned) == 1:
        return standing.earned[0].clone()  # nobody else uploads, so it could never earn a step
    saved = row(standing.earned, client)
    spent = saved.clamp(max=1)
    others = (records.known.sum() - 1).clamp(min=1)
    standing.earned.add_(PACE / others).clamp_(max=SAVED)
    set_row(standing.earned, client, saved - spent, torch.ones_like(records.known[0]))
    return spent


def _warm_up(records: Records) -> Float[Tensor, ""]:
    """What steps are shortened to while there are few uploads to judge clients by.

    The first gradients are long as well, and agree: steps of full length lead far away. By the
    median client's uploads, so that no fast minority ends it. With more clients than a panel has,
    it takes no more arrivals than with one panel.
    """
    panels = max(1.0, len(records.known) / LARGEST_PANEL)
    return (_median_of_all(records.uploads) * panels / WARM_UP).clamp(max=1)


def _radius(records: Records) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The distance uploads are clipped to, and by how much steps are stretched in return.

    The stretch keeps the mean length of a step where clipping shortens honest uploads: the mean of
    distances up to two radii over that of distances up to one.
    """
    distances = records.distances
    radius = torch.minimum(_median_of_all(records.recent) ** 2, _median_of_all(records.norms))
    longer, shorter = (torch.minimum(distances, k * radius).sum() for k in (2, 1))
    return radius, torch.where(shorter > 0, longer / shorter.clamp(min=TINY), 1)


def _median_of_all(values: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The lower median of all clients; those that are not known count with their 0."""
    return values.sort().values[(len(values) - 1) // 2]


def _next_centre(
    records: Records, position: Float[Tensor, " 3"], towards: Float[Tensor, ""]
) -> Float[Tensor, " 2"]:
    """Shares of the centre and of the upload in the next centre, which goes `towards` the upload.

    It stays within twice the median client's norm, wherever those who are trusted lead it.
    """
    norm = _norm_after(position, towards)
    longest = 2 * _median_of_all(records.norms)
    shrink = torch.where((towards > 0) & (norm > longest), longest / norm.clamp(min=TINY), 1)
    return torch.stack([shrink * (1 - towards), shrink * towards])


def _norm_after(position: Float[Tensor, " 3"], share: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """||c + share * a||, what is a share of the way from the centre to the upload."""
    distance, along, centre = position.unbind()
    return (centre**2 + 2 * share * along + (share * distance) ** 2).clamp(min=0).sqrt()


def move_centre(
    centre: Float[Tensor, " d"], upload: Float[Tensor, " d"], shares: Shares
) -> Float[Tensor, " d"]:
    """The step's direction; the centre moves on, in place."""
    of_centre, of_upload = shares.direction.unbind()
    direction = exactly_scaled(centre, of_centre) + exactly_scaled(upload, of_upload)
    of_centre, of_upload = shares.centre.unbind()
    centre.copy_(exactly_scaled(centre, of_centre) + exactly_scaled(upload, of_upload))
    return direction
