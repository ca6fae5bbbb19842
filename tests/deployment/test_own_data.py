"""A deployed client's own samples and own task: what is read, compared and refused."""

import hashlib
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from reference.tiny_task import TinyTask
from typer.testing import CliRunner

from secureafl.cli.app import app
from secureafl.core.errors import ConfigError, DataError
from secureafl.deployment.own_task import task_checksum
from secureafl.deployment.samples import InputFacts, read_client_data
from secureafl.deployment.trainer import ClientOptions, Trainer
from secureafl.deployment.worker import PROTOCOL, Job, TrainerCache, options_from
from secureafl.experiment import from_mapping, write_experiment
from secureafl.tasks import Cifar10, FashionMnist

SERVER = TinyTask().load()
FACTS = InputFacts.of(SERVER)
INPUTS, LABELS = SERVER.train_inputs[:12].numpy(), SERVER.train_labels[:12].numpy()
EXPERIMENT = {
    "task": {"kind": "reference.tiny_task:TinyTask"},
    "clients": 3,
    "threads": 1,
    "device": "cpu",
    "training": {"batch_size": 4},
}
WEIGHTS = np.linspace(-0.1, 0.1, 111).astype(np.float32)


def archive(folder, **arrays):
    np.savez(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def test_facts_travel_as_text():
    assert InputFacts.from_json(FACTS.to_json()) == FACTS
    assert (FACTS.dtype, FACTS.shape, FACTS.classes) == ("uint8", (1, 6, 6), 3)
    with pytest.raises(ConfigError, match="does not say"):
        InputFacts.from_json("{}")


def test_arrays_of_a_file_are_training_samples_with_the_servers_standardisation(tmp_path):
    data = read_client_data(TinyTask(), archive(tmp_path, inputs=INPUTS, labels=LABELS), FACTS)
    np.testing.assert_array_equal(data.train_inputs, INPUTS)
    np.testing.assert_array_equal(data.train_labels, LABELS)
    assert len(data.test_inputs) == len(data.test_labels) == 0
    assert torch.equal(data.pixel_mean, SERVER.pixel_mean)
    assert torch.equal(data.pixel_std, SERVER.pixel_std)


def test_client_trains_on_its_own_file_as_on_the_same_samples_dealt_to_it(tmp_path):
    made = from_mapping({**EXPERIMENT, "training": {"batch_size": 12}})
    own = archive(tmp_path, inputs=INPUTS, labels=LABELS)
    update = Trainer(made, ClientOptions(data=str(own)), FACTS).train(WEIGHTS, 1, 0).update
    weight, bias = WEIGHTS[:108].reshape(3, 36), WEIGHTS[108:]
    inputs = ((INPUTS.reshape(12, 36) / 255 - 0.3) / 0.2).astype(np.float64)
    logits = inputs @ weight.T + bias
    error = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(3)[LABELS]
    expected = np.concatenate([(error.T @ inputs / 12).ravel(), error.mean(0)])
    np.testing.assert_allclose(update, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"inputs": INPUTS.astype(np.float32)}, "float32 .* here, and uint8"),
        ({"inputs": INPUTS[:, :, :5]}, r"\(1, 5, 6\) here, and uint8 \(1, 6, 6\)"),
        ({"labels": LABELS + 1}, "labels from 1 to 3; the server's run has 0 to 2"),
        ({"labels": LABELS.astype(np.float32)}, "in the server's run they are classes"),
        ({"labels": LABELS[:5]}, "12 inputs and 5 labels"),
        ({"inputs": np.array([None] * 12)}, r"numpy\.savez\(FILE, inputs"),
    ],
)
def test_samples_of_another_kind_are_refused_in_one_line(tmp_path, arrays, said):
    place = archive(tmp_path, **{"inputs": INPUTS, "labels": LABELS, **arrays})
    with pytest.raises(DataError, match=said):
        read_client_data(TinyTask(), place, FACTS)


def test_file_without_the_two_arrays_names_those_it_has(tmp_path):
    with pytest.raises(DataError, match="There are x, y"):
        read_client_data(TinyTask(), archive(tmp_path, x=INPUTS, y=LABELS), FACTS)


def test_folder_is_read_by_the_task_or_the_method_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no client_samples\(folder\); add one, or give"):
        read_client_data(TinyTask(), tmp_path, FACTS)

    class Reads(TinyTask):
        def client_samples(self, folder):
            return INPUTS[: int((folder / "count").read_text())], LABELS[:5]

    (tmp_path / "count").write_text("5")
    assert len(read_client_data(Reads(), tmp_path, FACTS).train_labels) == 5


def test_built_in_tasks_need_no_test_data_of_a_client(tmp_path):
    for path in (Path(FashionMnist(data_dir="embedded").folder())).glob("train-*"):
        (tmp_path / path.name).symlink_to(path)
    images, labels = FashionMnist(data_dir="/nowhere").client_samples(tmp_path)
    assert images.shape == (len(labels), 1, 28, 28)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(bytes([number]) + bytes(3072))
    images, labels = Cifar10().client_samples(tmp_path)
    assert labels.tolist() == [1, 2, 3, 4, 5]


TASK = """
from dataclasses import dataclass
from reference.tiny_task import TinyTask
@dataclass(frozen=True)
class Mine(TinyTask):
    pass
"""


@pytest.fixture
def own_task(tmp_path, monkeypatch):
    """A task in a file of its own, and a request for it."""
    (tmp_path / "some_task_of_mine.py").write_text(textwrap.dedent(TASK))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kind = "some_task_of_mine:Mine"
    text = write_experiment(from_mapping({**EXPERIMENT, "task": {"kind": kind}}))
    checksum = hashlib.sha256(textwrap.dedent(TASK).encode()).hexdigest()
    return kind, Job(text, 0, 0, PROTOCOL, FACTS.to_json(), checksum)


def answer(job, **options):
    return TrainerCache(options_from(options)).train(job, WEIGHTS)[0]


def test_task_of_ones_own_is_trained_where_its_operator_named_it(own_task):
    kind, job = own_task
    assert np.isfinite(answer(job, task=kind)).all()


def test_task_that_was_not_named_is_refused_with_the_option(own_task):
    kind, job = own_task
    with pytest.raises(ConfigError, match=f"join with --task {kind}"):
        answer(job)
    with pytest.raises(ConfigError, match="and this client was started for 'other:Task'"):
        answer(job, task="other:Task")


def test_run_of_the_packages_own_task_is_not_for_a_client_that_named_another(own_task):
    kind, job = own_task
    with pytest.raises(ConfigError, match="the run has the task 'fashion_mnist'"):
        answer(job._replace(experiment='task = "fashion_mnist"'), task=kind)


def test_task_file_that_differs_from_the_servers_is_refused_with_both_checksums(own_task):
    kind, job = own_task
    said = f"some_task_of_mine.py differs .*SHA-256 {job.task_checksum[:12]} here and 000000"
    with pytest.raises(ConfigError, match=said):
        answer(job._replace(task_checksum="0" * 64), task=kind)


def test_model_of_another_size_is_told_in_one_line(own_task):
    kind, job = own_task
    with pytest.raises(ConfigError, match="model has 110 numbers, and the one of the task here 11"):
        TrainerCache(options_from({"task": kind})).train(job, WEIGHTS[:110])


def test_only_files_of_ones_own_have_a_checksum():
    assert task_checksum(FashionMnist()) == ""
    assert len(task_checksum(TinyTask())) == 64


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "/nowhere"], "no such folder or file"),
        (["--task", "no_such_module:Task"], "no no_such_module.py in"),
    ],
)
def test_what_join_is_given_is_looked_at_before_anything_starts(words, said):
    done = CliRunner().invoke(app, ["join", "--server", "127.0.0.1:1", *words])
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
