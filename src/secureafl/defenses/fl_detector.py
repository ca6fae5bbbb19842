"""FLDetector: clients whose uploads cannot be predicted from their last ones are left out.

An upload is predicted as the client's last one plus the change that the model's move since then
explains, by an L-BFGS matrix that all clients share. A client's suspicious score is the mean error
of its last predictions, relative to the other clients'. If the scores fall into more than one
cluster by the gap statistic, two-means parts the clients, and uploads of the higher-scored ones
are refused.

Written for synchronous rounds, where all clients upload on each model, and adapted here to single
arrivals: a client's own two base models take the place of two rounds; a pair of the shared matrix
is the sum of all clients' moves and changes over as many arrivals as there are clients; errors are
divided by the mean of all clients' latest. With one upload of each client on each model this is the
original. Clients are judged anew at every upload, where the original removes them and restarts.

Zhang, Cao, Jia, Gong, "FLDetector: defending federated learning against model poisoning attacks via
detecting malicious clients", KDD 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.core.errors import require
from secureafl.core.random import first_draw, random_uniform
from secureafl.core.types import Arrival, Decision, Inner, ServerView
from secureafl.core.uploads import Uploads, no_uploads, with_upload, without_uploads
from secureafl.kernels.operations import lbfgs_shares
from secureafl.kernels.rows import set_row
from secureafl.kernels.tiles import BASE, OWN
from secureafl.linalg.kmeans import upper_cluster
from secureafl.linalg.pairwise import inner_products
from secureafl.linalg.vectors import exact_norm, row, zero_unless

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

_REFERENCES = 10  # sets of evenly spread numbers that the gap statistic compares with
_MIN_CURVATURE = 1e-3  # a pair needs s'y > this * s's, or the matrix has no meaning
_RATED = 3  # predictions before a client's score counts


class State(NamedTuple):
    """What survives an arrival."""

    sent: Uploads  # each client's last upload
    move: Float[Tensor, " d"]  # sum of the clients' moves since the last pair
    change: Float[Tensor, " d"]  # and of their uploads' changes
    arrivals: Int[Tensor, ""]  # since the last pair
    pairs: Float[Tensor, "stored d"]  # steps, then changes; pair number k lies in place k modulo m
    appended: Int[Tensor, ""]  # pairs so far
    error: Float[Tensor, " n"]  # of each client's latest prediction
    errors: Float[Tensor, "n window"]  # of the last ones, relative to the others'
    count: Int[Tensor, " n"]  # predictions of a client so far
    even: Float[Tensor, "references n"]  # never change; what the gap statistic compares with


@dataclass(frozen=True)
class FlDetector:
    """w <- w - eta g, unless the client's score is in the higher cluster.

    Nobody is refused before more than half of the clients have a score.
    """

    window: int = 10  # N, predictions that a score is the mean of
    buffer_size: int = 3  # pairs of the L-BFGS matrix; 10 in the paper

    def __post_init__(self) -> None:
        require(self.window >= 1, "window", self.window, "give 1 prediction or more")
        require(self.buffer_size >= 1, "buffer_size", self.buffer_size, "give 1 or more pairs")

    def init(self, num_clients: int, weights: Float[Tensor, " d"]) -> State:
        count = torch.zeros(num_clients, dtype=torch.int64, device=weights.device)
        error = torch.zeros_like(count, dtype=torch.float64)
        draw = torch.full_like(count[0], first_draw(0, "gap"))
        return State(
            no_uploads(num_clients, weights),
            torch.zeros_like(weights),
            torch.zeros_like(weights),
            torch.zeros_like(count[0]),
            weights.new_zeros(2 * self.buffer_size, weights.numel()),
            torch.zeros_like(count[0]),
            error,
            error[:, None].repeat(1, self.window),
            count,
            random_uniform(draw, _REFERENCES * num_clients).view(_REFERENCES, -1),
        )

    def step(self, state: State, arrival: Arrival, server: ServerView) -> tuple[Decision, State]:
        known = row(state.sent.known, arrival.client)
        move = arrival.base - row(state.sent.base, arrival.client)
        change = arrival.gradient - row(state.sent.gradient, arrival.client)
        error = exact_norm(change - _explained(state, move))
        state = self._rated(state, arrival.client, error, known & (state.appended > 0))
        scores, rated = self._scores(state)
        suspected = _suspected(scores, rated, state.even)
        accepted = ~row(suspected, arrival.client)
        state = _with_move(state, move, change, known & accepted)
        state = state._replace(sent=with_upload(state.sent, arrival))
        shown = {
            "suspicion": row(scores, arrival.client),
            "suspected": suspected.sum(),
        }
        direction = zero_unless(accepted, arrival.gradient)
        return Decision(accepted, accepted.clone(), direction, shown, "suspected"), state

    def forget(self, state: State, client: Int[Tensor, ""]) -> State:
        for table in (state.error, state.errors, state.count):
            table.index_fill_(0, client.view(1), 0)
        return state._replace(sent=without_uploads(state.sent, client))

    def _rated(self, state: State, client: Tensor, error: Tensor, valid: Tensor) -> State:
        """The error joins the client's last ones, relative to the mean of everybody's latest."""
        number = row(state.count, client)
        set_row(state.error, client, error, valid)
        set_row(state.count, client, number + 1, valid)
        mean = state.error.sum() / (state.count > 0).sum().clamp(min=1)
        relative = torch.where(mean > 0, error / mean, 0.0)
        set_row(state.errors.view(-1), client * self.window + number % self.window, relative, valid)
        return state

    def _scores(self, state: State) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
        """Mean relative error of each client, and who has enough of them."""
        held = state.count.clamp(min=1, max=self.window)
        rated = state.count >= min(_RATED, self.window)
        return state.errors.sum(dim=1) / held, rated & (2 * rated.sum() > len(rated))


def _explained(state: State, move: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """B s: the change of an upload that the model's move explains; zero without a pair."""
    rows, size = torch.cat([state.pairs, move[None]]), len(state.pairs) // 2
    # As of a client with an upload and a base of zeros, so that all there is to it is the move.
    gram = torch.nn.functional.pad(inner_products(rows), (OWN, 0, OWN, 0))
    stored, along = gram[None, :-1, :-1].contiguous(), gram[None, -1, :-1].contiguous()
    found = lbfgs_shares(Inner(stored, along, gram[-1, -1]), state.appended[None], size, torch.inf)
    shares = torch.cat([found[0, OWN:], found[0, BASE, None]])
    return shares.to(rows.dtype) @ rows


def _suspected(
    scores: Float[Tensor, " n"], rated: Bool[Tensor, " n"], even: Float[Tensor, "references n"]
) -> Bool[Tensor, " n"]:
    """The clients in the higher of two clusters, if the gap statistic finds more than one.

    It compares how much tighter two clusters are than one with the same of evenly spread numbers.
    """
    low = torch.where(rated, scores, torch.inf).amin()
    width = torch.where(rated, scores, -torch.inf).amax() - low
    # To 12 digits: rounding must not tell equal scores apart.
    scaled = torch.where(rated & (width > 0), (scores - low) / width, 0).round(decimals=12)
    sets = torch.cat([scaled[None], even])
    upper, two = upper_cluster(sets, rated.expand_as(sets), 2)
    one = torch.where(rated, sets - _mean(sets, rated), 0).square().sum(dim=1)
    tighter = one.log() - two.log()  # of two clusters than of one
    error = two[1:].log().std(correction=0) * (1 + 1 / len(even)) ** 0.5
    several = tighter[0] - tighter[1:].mean() > error
    return upper[0] & several


def _mean(sets: Float[Tensor, "k n"], rated: Bool[Tensor, " n"]) -> Float[Tensor, "k 1"]:
    return torch.where(rated, sets, 0).sum(dim=1, keepdim=True) / rated.sum().clamp(min=1)


def _with_move(state: State, move: Tensor, change: Tensor, keep: Tensor) -> State:
    """Add a client's move and change; after n arrivals their sums are a pair."""
    move = torch.where(keep, state.move + move, state.move)
    change = torch.where(keep, state.change + change, state.change)
    arrivals = state.arrivals + 1
    done = arrivals >= len(state.count)
    squared, along = move.double() @ move.double(), move.double() @ change.double()
    useful = done & (along > _MIN_CURVATURE * squared) & (squared > 0)
    size = len(state.pairs) // 2
    for place, newest in ((0, move), (size, change)):
        set_row(state.pairs, place + state.appended % size, newest, useful)
    return state._replace(
        move=torch.where(done, 0, move),
        change=torch.where(done, 0, change),
        arrivals=torch.where(done, 0, arrivals),
        appended=state.appended + useful,
    )
