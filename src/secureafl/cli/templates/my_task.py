"""The data and the model: change both to your own."""

from dataclasses import dataclass

import torch
from torch import nn

import secureafl


@dataclass(frozen=True)
class MyTask(secureafl.Classification):
    """Points of the plane: inside a ring, on it, or outside."""

    hidden: int = 32  # a setting: [task] hidden = 64, or --set task.hidden=64

    def load(self) -> secureafl.Data:
        """Return training and test samples; read your own files here."""
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(2500, 2, generator=generator)
        radius = inputs.norm(dim=1)
        labels = (radius > 0.8).long() + (radius > 1.4).long()
        train, test = (inputs[:2000], labels[:2000]), (inputs[2000:], labels[2000:])
        return secureafl.from_tensors(train, test, "rings")

    def model(self) -> nn.Module:
        """Return a freshly initialised model; any torch module will do."""
        return nn.Sequential(nn.Linear(2, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 3))
