"""ResNet-20 in its form for small images: 3 stages of 3 blocks with 16, 32 and 64 channels.

Where a stage halves the image, the shortcut takes every second pixel and fills the new channels
with zeros (the original's option A), so shortcuts have no parameters. Global average pooling ends
the network, so it takes images of any size.

He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from secureafl.tasks.models.layout import channels_innermost

Norm = Literal["batch", "group"]

_CHANNELS_PER_GROUP = 8
# Momentum of running statistics, which are uploaded as pseudo-gradients (`core.flat_model`). At a
# learning rate of 0.01 a statistic's is then its plain deviation; with the usual 0.1 it would be
# ten times as large and dominate norms and Lipschitz factors. A mean over about 100 uploads also
# suits 50 clients that hold different labels.
_MOMENTUM = 0.01


class ResNet20(nn.Module):
    """ResNet-20, from images of any size to `outputs` numbers each."""

    def __init__(self, outputs: int, norm: Norm = "batch") -> None:
        super().__init__()
        self.first = _convolution(3, 16, 1)
        self.norm = _norm(norm, 16)
        widths = [16] * 3 + [32] * 3 + [64] * 3
        pairs = zip([16, *widths], widths, strict=False)
        self.blocks = nn.Sequential(*(_Block(before, after, norm) for before, after in pairs))
        self.last = nn.Linear(64, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of outputs per image."""
        # With the channels innermost convolutions are faster, on CPUs and on GPUs.
        found = self.blocks(relu(self.norm(self.first(channels_innermost(images)))))
        return self.last(found.mean(dim=(2, 3)))


class _Block(nn.Module):
    def __init__(self, before: int, after: int, norm: Norm) -> None:
        super().__init__()
        self.stride, self.new = after // before, after - before
        self.first, self.first_norm = _convolution(before, after, self.stride), _norm(norm, after)
        self.second, self.second_norm = _convolution(after, after, 1), _norm(norm, after)

    def forward(self, images: Tensor) -> Tensor:
        found = relu(self.first_norm(self.first(images)))
        found = self.second_norm(self.second(found))
        return relu(found + self._shortcut(images))

    def _shortcut(self, images: Tensor) -> Tensor:
        if not self.new:
            return images
        kept = images[:, :, :: self.stride, :: self.stride]
        return pad(kept, (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))


def _convolution(before: int, after: int, stride: int) -> nn.Conv2d:
    made = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(made.weight, nonlinearity="relu")
    return made


def _norm(norm: Norm, channels: int) -> nn.Module:
    if norm == "group":
        return nn.GroupNorm(channels // _CHANNELS_PER_GROUP, channels)
    made = nn.BatchNorm2d(channels, momentum=_MOMENTUM)
    made.num_batches_tracked = None  # not used with a momentum
    return made
