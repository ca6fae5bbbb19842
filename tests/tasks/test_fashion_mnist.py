from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import write_idx, write_set

from secureafl.core.errors import DataError
from secureafl.core.flat_model import flatten
from secureafl.core.protocols import Task
from secureafl.tasks import FashionMnist

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(scope="module")
def embedded():
    return FashionMnist("embedded").load()


def test_embedded_slice_is_balanced_and_what_it_was(embedded):
    assert embedded.train_inputs.shape == (10_000, 1, 28, 28)
    assert embedded.test_inputs.shape == (2_000, 1, 28, 28)
    assert embedded.train_inputs.dtype == embedded.test_inputs.dtype == torch.uint8
    assert embedded.train_labels.bincount().tolist() == [1000] * 10
    assert embedded.test_labels.bincount().tolist() == [200] * 10
    assert int(embedded.train_inputs.sum()) == 573_133_949
    assert int(embedded.test_inputs.sum()) == 114_072_606
    assert embedded.fingerprint == "246da70c"


def test_pixel_statistics_standardise_the_training_images(embedded):
    pixels = embedded.train_inputs.double() / 255
    scaled = (pixels - embedded.pixel_mean[:, None, None]) / embedded.pixel_std[:, None, None]
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scaled.std()) == pytest.approx(1, abs=1e-4)


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="dataset-fashion-mnist is not installed")
def test_full_set_of_debian_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("SECUREAFL_DATA", str(tmp_path))
    data = FashionMnist().load()
    assert data.train_labels.bincount().tolist() == [6000] * 10
    assert data.test_labels.bincount().tolist() == [1000] * 10
    assert "60,000 training, 10,000 test" in data.source
    assert float(data.pixel_mean) == pytest.approx(0.2860, abs=1e-4)


@pytest.mark.parametrize("below", ["FashionMNIST/raw", "."])
def test_given_folder_may_have_torchvisions_layout(tmp_path, below):
    write_set(tmp_path / below)
    data = FashionMnist(str(tmp_path)).load()
    assert len(data.train_labels) == 30
    assert data.source == "data_dir (30 training, 10 test samples)"


@pytest.mark.parametrize("below", ["FashionMNIST/raw", "fashion-mnist"])
def test_data_folder_of_the_environment_is_searched(tmp_path, monkeypatch, below):
    write_set(tmp_path / below)
    monkeypatch.setenv("SECUREAFL_DATA", str(tmp_path))
    assert len(FashionMnist().load().train_labels) == 30


def refusal(task):
    with pytest.raises(DataError) as caught:
        task.load()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_absent_folder_is_named(tmp_path):
    assert "no such folder; 'secureafl data' says" in refusal(
        FashionMnist(str(tmp_path / "nowhere"))
    )


def test_absent_file_is_named(tmp_path):
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert "t10k-labels-idx1-ubyte" in refusal(FashionMnist(str(tmp_path)))


@pytest.mark.parametrize(
    "settings",
    [{"label": 10}, {"label": 255}, {"side": 27}, {"train": 0}, {"test": 0}],
    ids=str,
)
def test_other_data_in_the_same_format_is_refused(tmp_path, settings):
    write_set(tmp_path, **settings)
    assert "not Fashion-MNIST" in refusal(FashionMnist(str(tmp_path)))


def test_more_labels_than_images_are_refused(tmp_path):
    write_set(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(31))
    assert "not Fashion-MNIST" in refusal(FashionMnist(str(tmp_path)))


def test_fingerprint_tells_data_sets_apart(tmp_path, embedded):
    write_set(tmp_path / "a")
    write_set(tmp_path / "b")
    write_idx(tmp_path / "b" / "t10k-labels-idx1-ubyte", np.zeros(10))
    found = {FashionMnist(str(tmp_path / name)).load().fingerprint for name in "ab"}
    assert len(found | {embedded.fingerprint}) == 3


def test_cnn_has_the_papers_number_of_parameters():
    model = FashionMnist().model()
    assert flatten(model).numel() == 139_960
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_loss_is_a_mean_and_the_metric_an_error_rate():
    task = FashionMnist()
    assert isinstance(task, Task)
    outputs, labels = torch.eye(10)[:4] * 5, torch.tensor([0, 1, 2, 9])
    twice = task.loss(outputs.repeat(2, 1), labels.repeat(2))
    torch.testing.assert_close(task.loss(outputs, labels), twice)
    assert task.metrics(outputs, labels) == {"ter": 0.25}
