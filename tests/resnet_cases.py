"""What gradients of ResNet-20 by hand-written kernels are compared on, and how."""

import torch
from torch.nn.functional import cross_entropy

from secureafl.core.flat_model import count_statistics, flatten
from secureafl.tasks.models.resnet import ResNet20


def case_of(images, height, width, outputs, device="cuda"):
    """A model a few steps from where models begin, so that no factor is 1 and no shift is 0."""
    torch.manual_seed(images)
    model = ResNet20(outputs).to(device)
    weights = flatten(model)
    weights += 0.1 * torch.randn_like(weights) * weights.abs().clamp(min=0.1)
    inputs = torch.randn(images, 3, height, width, device=device)
    return model, weights, inputs, torch.randint(outputs, (images,), device=device)


def evaluation_of(images, height, width, outputs, device="cuda"):
    """A model with running statistics far from where models begin, one of them a poisoned one."""
    model, weights, inputs, _ = case_of(images, height, width, outputs, device)
    statistics = weights[-count_statistics(model) :]
    statistics += 0.3 * torch.randn_like(statistics)
    statistics[20] = -0.4  # a variance
    return model, weights, inputs


def loss_for(labels):
    return lambda outputs: cross_entropy(outputs, labels)


def error(found, expected):
    """Of gradients, relative to their norm, and of statistics."""
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True)]
