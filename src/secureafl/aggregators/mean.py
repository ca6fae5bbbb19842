"""Mean of the clients present. Not robust: one client moves it anywhere."""

from dataclasses import dataclass

import torch

from secureafl.linalg.rows import masked, mean_of, weighted_mean


@dataclass(frozen=True)
class Mean:
    """Arithmetic mean; the first ablation variant of the SecureAFL paper."""

    def init(self, num_clients, weights):
        return ()

    def ranks(self, count):
        return torch.zeros_like(count), count - 1

    def aggregate(self, state, values, present):
        return mean_of(masked(values, present), present), state

    def aggregate_weighted(self, state, values, present, samples):
        return weighted_mean(masked(values, present), torch.where(present, samples, 0)), state
