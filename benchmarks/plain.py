"""SecureAFL's server step written straight down in torch: the yardstick, not the product."""

import torch
from torch import Tensor


class Plain:
    """Rows per client, every estimate in memory, a sort over clients; L-BFGS and median."""

    def __init__(self, clients: int, size: int, pairs: int = 3) -> None:
        self.gradient, self.base = torch.zeros(clients, size), torch.zeros(clients, size)
        self.steps = torch.zeros(clients, pairs, size)
        self.changes = torch.zeros(clients, pairs, size)
        self.factors: list[float] = []
        self._fill()

    def _fill(self) -> None:
        """Put something plausible into every buffer."""
        self.gradient.normal_()
        self.steps.normal_()
        self.changes.copy_(self.steps).mul_(0.1)
        self.cross = torch.bmm(self.steps, self.changes.transpose(1, 2)).double()
        self.among = torch.bmm(self.steps, self.steps.transpose(1, 2)).double()

    def step(self, client: int, gradient: Tensor, base: Tensor, weights: Tensor) -> Tensor:
        """The direction for one arrival, once all buffers are filled."""
        step, change = base - self.base[client], gradient - self.gradient[client]
        self.factors.append(float(change.norm() / step.norm()))
        torch.quantile(torch.tensor(self.factors), 0.8)
        values = self._estimates(weights)
        values[client] = gradient
        self.gradient[client], self.base[client] = gradient, base
        self.steps[client] = torch.cat([self.steps[client, 1:], step[None]])
        self.changes[client] = torch.cat([self.changes[client, 1:], change[None]])
        self.cross[client] = (self.steps[client] @ self.changes[client].T).double()
        self.among[client] = (self.steps[client] @ self.steps[client].T).double()
        ordered = values.sort(dim=0).values
        middle = len(values) // 2
        return (ordered[(len(values) - 1) // 2] + ordered[middle]) / 2

    def _estimates(self, weights: Tensor) -> Tensor:
        drift = weights - self.base
        steps, changes, cross, among = self.steps, self.changes, self.cross, self.among
        mu = (cross[:, -1, -1] / among[:, -1, -1])[:, None]
        lower = torch.tril(cross, -1)
        diagonal = torch.diag_embed(cross.diagonal(dim1=1, dim2=2))
        top = torch.cat([-diagonal, lower.transpose(1, 2)], dim=2)
        bottom = torch.cat([lower, mu[:, :, None] * among], dim=2)
        along = torch.cat([changes, steps], dim=1).bmm(drift[:, :, None])[:, :, 0].double()
        along[:, steps.shape[1] :] *= mu
        solved = torch.linalg.solve(torch.cat([top, bottom], dim=1), along).float()
        of_changes, of_steps = solved.chunk(2, dim=1)
        correction = mu.float() * drift - torch.bmm(of_changes[:, None], changes)[:, 0]
        correction -= mu.float() * torch.bmm(of_steps[:, None], steps)[:, 0]
        cap = 0.5 * self.gradient.norm(dim=1) / correction.norm(dim=1)
        return self.gradient + cap.clamp(max=1)[:, None] * correction
