"""Udacity: the steering angle from what a car's camera sees in Udacity's simulator.

A recording is a folder the simulator wrote: `driving_log.csv` and the pictures in `IMG/`. Each
recording represents the car of one company; its last fifth is test data. Of a picture of 320 x 160
pixels the rows from 60 to 135 are taken, without sky and bonnet, and shrunk to 64 x 64.

Udacity, "Self-driving car simulator", 2016.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from secureafl.core.errors import DataError
from secureafl.core.types import Data
from secureafl.tasks.in_memory import Samples, from_tensors, with_mirrors
from secureafl.tasks.jpegs import SIDE, read_jpegs
from secureafl.tasks.models.resnet import Norm, ResNet20
from secureafl.tasks.places import data_home, require_folder

if TYPE_CHECKING:
    from PIL.Image import Image

_LOG = "driving_log.csv"
_CENTRE, _STEERING = 0, 3  # columns
_TOP, _BOTTOM = 60 / 160, 135 / 160  # of the picture's height
_TEST_SHARE = 0.2
_USUAL = 0.3  # standard deviation of steering angles, which lie between -1 and 1


class Frame(NamedTuple):
    """One camera image and the steering angle at that time."""

    picture: Path
    steering: float


@dataclass(frozen=True)
class Udacity:
    """Regression of the steering angle with ResNet-20."""

    data_dir: str = ""  # folder of recordings, or one recording
    norm: Norm = "batch"
    mirrored: bool = False  # whether mirror images, steered the other way, are trained on as well

    def folder(self) -> Path:
        """Return the folder that holds the recordings."""
        return self._find()[0]

    def load(self) -> Data:
        """Read the data set."""
        folder, logs = self._find()
        recordings = [_read_log(log) for log in logs]
        images, steering = _read_frames(recordings, folder)
        origin = torch.arange(len(logs)).repeat_interleave(torch.tensor([*map(len, recordings)]))
        late = torch.cat([_is_late(len(recording)) for recording in recordings])
        train, test = ((images[part], steering[part]) for part in (~late, late))
        origin = origin[~late]
        if self.mirrored:
            train, origin = _with_mirrors(train), origin.repeat(2)
        return from_tensors(train, test, f"{folder}, {len(logs)} recordings", origin)

    def client_samples(self, folder: Path) -> Samples:
        """Return what a deployed client has in a folder, all of it for training."""
        place, logs = replace(self, data_dir=str(folder))._find()
        samples = _read_frames([_read_log(log) for log in logs], place)
        return _with_mirrors(samples) if self.mirrored else samples

    def model(self) -> nn.Module:
        """Return ResNet-20 with a single output, freshly initialised."""
        return nn.Sequential(ResNet20(1, self.norm), _Eighth(), nn.Flatten(0))

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean squared error in units of the usual deviation, else gradients vanish."""
        return mse_loss(outputs, labels) / _USUAL**2

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return the root mean squared error (RMSE)."""
        return {"rmse": math.sqrt(mse_loss(outputs.double(), labels.double()))}

    def _find(self) -> tuple[Path, list[Path]]:
        home = require_folder(self.data_dir) if self.data_dir else data_home()
        for folder in (home / "udacity", *([home] if self.data_dir else [])):
            logs = (
                [folder / _LOG] if (folder / _LOG).is_file() else sorted(folder.glob(f"*/{_LOG}"))
            )
            if logs:
                return folder, logs
        remedy = "see 'secureafl data udacity', or give its place with --data-dir"
        raise DataError(f"udacity: there is no udacity/*/{_LOG} in {home}; {remedy}")


class _Eighth(nn.Module):
    """Divides the output of the last layer, a sum over 64 features, by 8.

    The squared error of the plain sum is so steep that learning rates which are high enough for
    the other layers do not converge.
    """

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs / 8


def _read_frames(recordings: list[list[Frame]], folder: Path) -> Samples:
    frames = [frame for recording in recordings for frame in recording]
    images = torch.from_numpy(read_jpegs([f.picture for f in frames], folder, _prepared))
    return images, torch.tensor([f.steering for f in frames])


def _with_mirrors(samples: Samples) -> Samples:
    (images, _), (_, steering) = with_mirrors(samples), samples
    return images, torch.cat([steering, -steering])


def _is_late(count: int) -> Tensor:
    """Return a mask of a recording's frames that are test data, the last ones."""
    return torch.arange(count) >= count - max(1, round(_TEST_SHARE * count))


def _read_log(path: Path) -> list[Frame]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error}); fetch the file again") from error
    if rows and [word.strip() for word in rows[0][:1]] == ["center"]:
        rows = rows[1:]  # some recordings name their columns
    frames = [_frame(path, row) for row in rows]
    if len(frames) < 2:
        raise DataError(f"{path}: {len(frames)} frames, too few to train and test; leave it out")
    return frames


def _frame(log: Path, row: list[str]) -> Frame:
    try:
        # The simulator writes whole paths of the machine it ran on, often with backslashes.
        name, steering = PureWindowsPath(row[_CENTRE].strip()).name, float(row[_STEERING])
    except (IndexError, ValueError):
        name, steering = "", math.nan
    if not name or not math.isfinite(steering):
        raise DataError(
            f"{log}: the row {','.join(row)[:80]!r} has no picture and angle; remove it"
        )
    return Frame(log.parent / "IMG" / name, steering)


def _prepared(image: Image) -> Image:
    width, height = image.size
    if (width, height) == (SIDE, SIDE):  # done before
        return image
    box = (0, round(_TOP * height), width, round(_BOTTOM * height))
    return image.resize((SIDE, SIDE), box=box)
