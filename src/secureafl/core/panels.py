"""Panels: of many clients, a few at a time are judged among themselves.

Comparing all with all would cost the cube of their number. A panel is drawn at random, so it has
about as large a share of malicious clients as the whole. While every client uploads once, all
panels sit several times; after each pass the clients are dealt into new ones. Nobody outside the
server knows who sits with whom.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from secureafl.linalg.vectors import choose

if TYPE_CHECKING:
    from jaxtyping import Bool, Int
    from torch import Tensor

LARGEST_PANEL = 128


class Panels(NamedTuple):
    """Who sits with whom, and how clients are dealt anew."""

    order: Int[Tensor, " n"]  # of the clients; a panel is a stretch of it
    deal: Int[Tensor, " n"]  # the order of places in which the next order is read from this one
    arrivals: Int[Tensor, ""]  # so far; they decide whose turn it is


def draw_panels(num_clients: int, device: torch.device) -> Panels:
    """The first order and the way to deal, drawn from torch's default generator."""
    order, deal = (torch.randperm(num_clients).to(device) for _ in range(2))
    return Panels(order, deal, torch.zeros((), dtype=torch.int64, device=device))


def panel_size(num_clients: int) -> int:
    """Clients in a panel: all of them, or as many as panels of about equal size have.

    >>> from secureafl.core.panels import panel_size
    >>> panel_size(50), panel_size(129), panel_size(10_000)
    (50, 65, 127)
    """
    return -(-num_clients // num_panels(num_clients))


def num_panels(num_clients: int) -> int:
    """Panels that sit in a pass."""
    return -(-num_clients // LARGEST_PANEL)


def call_panel(panels: Panels, every: int) -> tuple[Int[Tensor, " p"], Bool[Tensor, ""]]:
    """See `kernels.operations.call_panel`."""
    turn, due = panels.arrivals // every, panels.arrivals % every == 0
    members = sitting(panels, turn)
    deal_anew(panels, turn, due)
    panels.arrivals.add_(1)
    return members, due


def sitting(panels: Panels, turn: Int[Tensor, ""]) -> Int[Tensor, " p"]:
    """The clients of the panel whose turn it is; the last one of a pass is filled from the first.

    >>> from secureafl.core.panels import draw_panels, sitting
    >>> sorted(sitting(draw_panels(3, torch.device("cpu")), torch.tensor(7)).tolist())
    [0, 1, 2]
    """
    clients = len(panels.order)
    size = panel_size(clients)
    if size == clients:
        return panels.order
    start = turn % num_panels(clients) * size
    places = (start + torch.arange(size, device=turn.device)) % clients
    return panels.order.index_select(0, places)


def deal_anew(panels: Panels, turn: Int[Tensor, ""], due: Bool[Tensor, ""]) -> None:
    """Deal clients into new panels, in place, where the pass ended with this turn."""
    count = num_panels(len(panels.order))
    if count > 1:
        ended = due & (turn % count == count - 1)
        dealt = panels.order.index_select(0, panels.deal)
        panels.order.copy_(choose(ended, dealt, panels.order))
