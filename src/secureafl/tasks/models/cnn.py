"""The paper's CNN, and wider ones for its table of running times."""

from typing import Literal

from torch import Tensor, nn

from secureafl.tasks.models.layout import channels_innermost

Size = Literal["140k", "500k", "1m"]

# Only the hidden layer grows: 139,960, 500,606 and 999,962 parameters.
_HIDDEN: dict[Size, int] = {"140k": 100, "500k": 386, "1m": 782}


class PaperCnn(nn.Sequential):
    """The paper's CNN, a class of its own so that `tasks.faster` recognises it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return one row of outputs per image."""
        if input.device.type == "cpu":  # a third faster with the channels innermost
            input = channels_innermost(input)
        return super().forward(input)


def paper_cnn(size: Size = "140k") -> PaperCnn:
    """Return the CNN for 28 x 28 grey images; the paper's has 139,960 parameters."""
    hidden = _HIDDEN[size]
    return PaperCnn(
        nn.Conv2d(1, 30, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(30, 50, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(5 * 5 * 50, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )
