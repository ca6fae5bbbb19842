import pickle

import numpy as np
import pytest
import torch
from data_files import (
    unpacker,
    with_real_data,
    write_cifar10,
    write_cifar10_pickles,
    write_cifar100,
    write_cifar100_pickles,
    write_pickle,
    write_records,
)

from secureafl.core.errors import DataError
from secureafl.tasks import Cifar10, Cifar100
from secureafl.tasks.sources import SOURCES, as_published

TEN = pytest.mark.parametrize("write", [write_cifar10, write_cifar10_pickles])
HUNDRED = pytest.mark.parametrize("write", [write_cifar100, write_cifar100_pickles])


def refusal(task):
    with pytest.raises(DataError) as caught:
        task.load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@TEN
@pytest.mark.parametrize("inside", [True, False])
def test_cifar10_is_read_batch_after_batch(tmp_path, write, inside):
    folder = write(tmp_path)
    data = Cifar10(str(folder if inside else tmp_path)).load()
    assert data.train_inputs.shape == (100, 3, 32, 32)
    assert data.test_inputs.shape == (20, 3, 32, 32)
    assert data.train_inputs.dtype == torch.uint8
    assert data.train_labels.bincount().tolist() == [10] * 10
    second = pickle.loads((write_cifar10_pickles(tmp_path) / "data_batch_2").read_bytes())
    assert torch.equal(data.train_inputs[20:40].flatten(1), torch.from_numpy(second[b"data"]))


@HUNDRED
def test_cifar100_takes_the_fine_labels(tmp_path, monkeypatch, write):
    write(tmp_path)
    monkeypatch.setenv("SECUREAFL_DATA", str(tmp_path))
    data = Cifar100().load()
    assert data.train_labels.tolist() == [k % 100 for k in range(200)]
    assert "200 training, 200 test" in data.source


@pytest.mark.parametrize(
    ("task", "write", "write_pickles"),
    [
        (Cifar10, write_cifar10, write_cifar10_pickles),
        (Cifar100, write_cifar100, write_cifar100_pickles),
    ],
)
def test_both_layouts_hold_the_same_data_and_the_binary_one_is_preferred(
    tmp_path, task, write, write_pickles
):
    pickles = task(str(write_pickles(tmp_path))).load()
    folder = write(tmp_path)
    assert task(str(tmp_path)).folder() == folder
    assert task(str(tmp_path)).load().fingerprint == pickles.fingerprint


@pytest.mark.parametrize(("task", "write"), [(Cifar10, write_cifar10), (Cifar100, write_cifar100)])
def test_mirror_images_follow_the_images(tmp_path, task, write):
    write(tmp_path)
    plain, mirrored = (task(str(tmp_path), mirrored=m).load() for m in (False, True))
    half = len(plain.train_labels)
    assert torch.equal(mirrored.train_inputs[:half], plain.train_inputs)
    for one in (0, half - 1):
        columns = mirrored.train_inputs[half + one].unbind(dim=-1)
        assert torch.equal(torch.stack(columns[::-1], dim=-1), plain.train_inputs[one])
    assert torch.equal(mirrored.train_labels, torch.cat([plain.train_labels] * 2))
    assert torch.equal(mirrored.test_inputs, plain.test_inputs)
    assert mirrored.fingerprint != plain.fingerprint


def test_missing_data_set_is_told_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("SECUREAFL_DATA", str(tmp_path))
    assert "secureafl data cifar10" in refusal(Cifar10())
    assert "no such folder; 'secureafl data' says" in refusal(Cifar10(str(tmp_path / "nowhere")))
    assert "secureafl data cifar100" in refusal(Cifar100(str(tmp_path)))


@TEN
def test_missing_batch_is_named(tmp_path, write):
    next(write(tmp_path).glob("data_batch_4*")).unlink()
    assert "data_batch_4" in refusal(Cifar10(str(tmp_path)))


@TEN
@pytest.mark.parametrize("cut", [0, 1, 100, 30_000])
def test_damaged_batch_is_named(tmp_path, write, cut):
    path = next(write(tmp_path).glob("data_batch_3*"))
    path.write_bytes(path.read_bytes()[:cut])
    assert "data_batch_3" in refusal(Cifar10(str(tmp_path)))


ROWS = np.zeros((4, 3072), np.uint8)


@pytest.mark.parametrize(
    "content",
    [
        {b"data": ROWS, b"labels": [0, 1, 2]},
        {b"data": ROWS, b"labels": [0, 1, 2, 10]},
        {b"data": ROWS, b"labels": [0, 1, 2, -1]},
        {b"data": ROWS, b"labels": [0, 1, 2, "3"]},
        {b"data": ROWS[:, :100], b"labels": [0, 1, 2, 3]},
        {b"data": ROWS},
        {b"labels": [0, 1, 2, 3]},
        {b"data": ROWS[:0], b"labels": []},
        {b"data": ROWS.astype(np.float32), b"labels": [0, 1, 2, 3]},
        {b"data": np.array([None, 1]), b"labels": [0, 1]},
        [1, 2],
    ],
    ids=range(11),
)
def test_pickle_that_is_no_batch_is_refused(tmp_path, content):
    write_pickle(write_cifar10_pickles(tmp_path) / "data_batch_1", content)
    assert "data_batch_1" in refusal(Cifar10(str(tmp_path)))


def test_record_whose_label_is_no_class_is_refused(tmp_path):
    write_records(write_cifar10(tmp_path) / "data_batch_1.bin", ROWS, [0, 1, 2, 10])
    assert "not from 0 to 9" in refusal(Cifar10(str(tmp_path)))


class Hostile:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_pickle_that_asks_for_a_function_is_refused_and_runs_nothing(tmp_path, protocol):
    mark, path = tmp_path / "mark", write_cifar10_pickles(tmp_path) / "data_batch_1"
    calls = (open, str(mark), "w"), (eval, "1"), (np.fromfile, str(path)), (np.load, str(path))
    for call in calls:
        path.write_bytes(pickle.dumps({b"data": Hostile(*call)}, protocol))
        assert "asks for" in refusal(Cifar10(str(tmp_path)))
    assert not mark.exists()


def test_pickled_names_that_are_allowed_reach_nothing_of_numpy(tmp_path):
    path = write_cifar10_pickles(tmp_path) / "data_batch_1"
    for call in ((np.ndarray, (1 << 40,)), (np.dtype, "O"), (np.ndarray,)):
        path.write_bytes(pickle.dumps({b"data": Hostile(*call), b"labels": [0]}, 2))
        assert "data_batch_1: cannot be read" in refusal(Cifar10(str(tmp_path)))


def test_array_stored_by_columns_is_read_right(tmp_path):
    folder = write_cifar10_pickles(tmp_path)
    plain = Cifar10(str(folder)).load()
    for path in folder.iterdir():
        content = pickle.loads(path.read_bytes())
        write_pickle(path, {**content, b"data": np.asfortranarray(content[b"data"])})
    assert torch.equal(Cifar10(str(folder)).load().train_inputs, plain.train_inputs)


@pytest.mark.slow
@with_real_data
def test_real_cifar100_is_complete_and_has_a_known_sample(tmp_path):
    unpacker().cifar100(tmp_path)
    data = Cifar100(str(tmp_path)).load()
    assert data.train_labels.bincount().tolist() == [500] * 100
    assert data.test_labels.bincount().tolist() == [100] * 100
    assert data.train_labels[:5].tolist() == [19, 29, 0, 11, 1]
    assert data.test_labels[:5].tolist() == [49, 33, 72, 51, 71]
    assert int(data.test_inputs[0].sum()) == 559_205
    assert data.pixel_mean.tolist() == pytest.approx([0.5071, 0.4866, 0.4409], abs=1e-4)
    assert data.fingerprint == "c4b08807"


@pytest.mark.slow
@with_real_data
def test_real_cifar10_is_complete_and_in_binary_files_as_published(tmp_path):
    unpacker().cifar10(tmp_path)
    data = Cifar10(str(tmp_path)).load()
    assert data.train_labels.bincount().tolist() == [5000] * 10
    assert data.test_labels.bincount().tolist() == [1000] * 10
    assert data.train_labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert data.pixel_mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    assert data.fingerprint == "f3e684b7"
    folder = tmp_path / "cifar-10-batches-bin"
    for path in (tmp_path / "cifar-10-batches-py").glob("*_batch*"):
        content = pickle.loads(path.read_bytes())
        write_records(folder / f"{path.name}.bin", content[b"data"], content[b"labels"])
    assert as_published(SOURCES["cifar10"], folder)
    assert Cifar10(str(folder)).load().fingerprint == "f3e684b7"
