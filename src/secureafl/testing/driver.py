"""A real server with honest clients whose losses are quadratic: what defences are tried on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from secureafl.core.server import Server, Upload
from secureafl.core.traits import has_trait

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from secureafl.core.protocols import Defense
    from secureafl.core.types import Decision

CLIENTS, DIM, RATE = 5, 7, 0.05


class QuadraticRootData:
    """Root data of the clients' own kind: one sample of each client, labels taking turns.

    A sample's own class gains as the model comes near that client's centre.
    """

    def __init__(self, hessian: Float[Tensor, " d"], centres: Float[Tensor, "n d"]) -> None:
        self.hessian, self.centres = hessian, centres
        self.labels = torch.arange(len(centres), device=centres.device) % 3

    def gradient(
        self, weights: Float[Tensor, " d"], rows: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " d"]:
        """Gradient of the mean loss of all clients, or of these."""
        centres = self.centres if rows is None else self.centres.index_select(0, rows)
        return self.hessian * (weights - centres.mean(dim=0))

    def outputs(self, weights: Float[Tensor, " d"]) -> Float[Tensor, "n 3"]:
        """Three classes, of which the sample's own falls with its client's loss."""
        losses = (self.hessian * (weights - self.centres) ** 2).sum(dim=1) / 2
        own = torch.arange(3, device=losses.device) == self.labels[:, None]
        return torch.where(own, 3 - losses[:, None], 0)


def root_data_for(
    defense: Defense, hessian: Float[Tensor, " d"], centres: Float[Tensor, "n d"]
) -> QuadraticRootData | None:
    """Root data, if the defence needs some."""
    return QuadraticRootData(hessian, centres) if has_trait(defense, "needs_root_data") else None


class Driver:
    """A server with honest clients that share a quadratic loss, each with its own centre."""

    def __init__(
        self,
        defense: Defense,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        noise: float = 0.05,
        spread: float = 0.3,
    ) -> None:
        self.noise, self.seed = noise, seed
        rng = np.random.default_rng(seed)
        self.centres = torch.from_numpy(1 + spread * rng.normal(size=(CLIENTS, DIM))).to(dtype)
        self.hessian = torch.from_numpy(rng.uniform(0.5, 2, DIM)).to(dtype)
        root_data = root_data_for(defense, self.hessian, self.centres)
        self.server = Server(defense, CLIENTS, RATE, root_data, seed=seed)
        self.state = self.server.start(torch.from_numpy(rng.normal(size=DIM)).to(dtype))
        self.models = [(0, self.state.weights)]  # (version, weights) after each arrival

    def receive(
        self, client: int, version: int, update: object, base: Tensor | None = None
    ) -> Decision:
        """Any upload; with a `base`, one answer to it is expected first."""
        if base is not None:
            self.state.ledger.lend(version, base)
        decision, self.state = self.server.receive(self.state, Upload(client, version, update))
        self.models.append((self.state.round, self.state.weights))
        return decision

    def honest(self, number: int, newest_only_before: int = 0) -> Decision:
        """The number-th honest arrival; who, how stale and which noise depend on it alone.

        No model from before the arrival `newest_only_before` is answered to, so that staleness
        does not depend on refused uploads that came just then.
        """
        rng = np.random.default_rng((self.seed, number))
        client, lag = int(rng.integers(CLIENTS)), int(rng.integers(3))
        lag = max(0, min(lag, number - newest_only_before))
        version, base = self.models[-1 - lag]
        noise = torch.from_numpy(self.noise * rng.normal(size=DIM)).to(base.dtype)
        update = self.hessian * (base - self.centres[client]) + noise
        return self.receive(client, version, update, base)
