"""Clipping and noise on the clients' side, and what a run reports of them."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from reference.tiny_task import TinyTask
from simulation.small import ROUNDS, run, tiny

from secureafl.core.errors import ConfigError
from secureafl.core.flat_model import flatten
from secureafl.core.privacy import Privacy
from secureafl.experiment import Training
from secureafl.report.page import write_report
from secureafl.runtime.clients import Clients
from secureafl.runtime.exposure import exposure
from secureafl.simulation.run import start_run
from secureafl.simulation.simulator import Simulation
from secureafl.tasks import Cifar10, FashionMnist
from secureafl.tasks.in_memory import from_tensors

TASK, DATA = TinyTask(), TinyTask().load()
DRAW = torch.tensor(11)


def private(**privacy):
    return {"batch_size": 4, "learning_rate": 0.1, "privacy": {"clip": 0.5, "noise": 0.3} | privacy}


def clients(**training):
    torch.manual_seed(0)
    return Clients(TASK, DATA, TASK.model(), Training(**training))


def one_by_one(made, weights, rows):
    return torch.stack([made.gradient(weights, row.view(1)) for row in rows])


def cut(rows, clip):
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * (clip / lengths).clamp(max=1)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_each_samples_gradient_is_cut_before_they_are_added(reduction):
    rows = torch.arange(5)
    made = clients(privacy=Privacy(0.8), batch_size=5, reduction=reduction)
    weights = flatten(made.model)
    each = one_by_one(clients(), weights, rows)
    lengths = torch.linalg.vector_norm(each, dim=1)
    assert (lengths > 0.8).any()
    expected = cut(each, 0.8).sum(dim=0) / (5 if reduction == "mean" else 1)
    torch.testing.assert_close(made.private_update(weights, rows, DRAW), expected)


@pytest.mark.parametrize(
    ("task", "image"), [(FashionMnist(), (1, 28, 28)), (Cifar10(norm="group"), (3, 32, 32))]
)
def test_models_of_images_have_gradients_of_single_samples(task, image):
    torch.manual_seed(0)
    images, labels = torch.randn(3, *image), torch.arange(3)
    data = from_tensors((images, labels), (images, labels), "noise")
    made = Clients(task, data, task.model(), Training(privacy=Privacy(0.5), batch_size=3))
    weights, rows = flatten(made.model), torch.arange(3)
    expected = cut(one_by_one(made, weights, rows), 0.5).mean(dim=0)
    torch.testing.assert_close(made.private_update(weights, rows, DRAW), expected)


def test_without_cutting_it_is_the_plain_update():
    rows = torch.arange(12)
    made = clients(privacy=Privacy(1e6), batch_size=4, local_steps=3)
    weights = flatten(made.model)
    torch.testing.assert_close(
        made.private_update(weights, rows, DRAW), made.update(weights, rows), rtol=1e-5, atol=1e-6
    )


def test_whole_upload_is_cut_and_noised_once():
    rows = torch.arange(12)
    made = clients(privacy=Privacy(0.2, 0.7, unit="upload"), local_steps=3)
    weights = flatten(made.model)
    plain = made.update(weights, rows)
    noise = Privacy(0.2, 0.7).release(torch.zeros(1, len(weights)), DRAW)
    expected = cut(plain[None], 0.2)[0] + noise
    torch.testing.assert_close(made.private_update(weights, rows, DRAW), expected)


def test_every_local_step_has_noise_of_its_own():
    made = clients(privacy=Privacy(1e-9, 1e9), local_steps=2, learning_rate=1e-9, batch_size=2)
    weights = flatten(made.model)
    upload = made.private_update(weights, torch.arange(4), DRAW)
    # Two independent draws of deviation 1 / 2 each.
    assert float(upload.std()) == pytest.approx(0.5**0.5, rel=0.2)
    other = made.private_update(weights, torch.arange(4), DRAW + 1)
    assert abs(float(torch.corrcoef(torch.stack([upload, other]))[0, 1])) < 0.3


def test_private_update_reads_no_number():
    meta = torch.device("meta")
    made = clients(privacy=Privacy(0.5, 0.5))
    data = DATA._replace(
        train_inputs=DATA.train_inputs.to(meta),
        train_labels=DATA.train_labels.to(meta),
        pixel_mean=DATA.pixel_mean.to(meta),
        pixel_std=DATA.pixel_std.to(meta),
    )
    there = Clients(TASK, data, made.model.to(meta), made.training)
    weights = flatten(there.model)
    found = there.private_update(weights, torch.arange(4, device=meta), DRAW.to(meta))
    assert found.shape == weights.shape


@pytest.mark.parametrize("unit", ["example", "upload"])
def test_private_run_is_repeatable_and_restorable(unit):
    made = tiny(training=private(unit=unit), attack="sign_flip")
    one, other, plain = Simulation(made), Simulation(made), Simulation(tiny(attack="sign_flip"))
    events = run(one, 5)
    other.restore(one.snapshot())
    assert run(one) == run(other)
    assert torch.equal(one.weights, other.weights)
    run(plain)
    assert not torch.equal(one.weights, plain.weights)
    assert events[:2] != run(Simulation(tiny(training=private(unit=unit), seed=1)), 5)[:2]


def test_malicious_clients_and_trusted_samples_are_left_without_noise():
    loud = {"clip": 1.0, "noise": 1e6}
    made = tiny(training=private(**loud), attack="sign_flip", malicious=6, defense="async_sgd")
    simulation = Simulation(made)
    run(simulation)
    assert float(simulation.weights.abs().max()) < 1e3
    honest = Simulation(tiny(training=private(**loud), defense="async_sgd"))
    run(honest)
    assert float(honest.weights.abs().max()) > 1e3
    trusted = Simulation(tiny(training=private(**loud), defense="aflguard"))._server.root_data
    assert float(trusted.gradient(honest.weights * 0).abs().max()) < 1e3


@pytest.mark.parametrize("norm", ["batch", "without statistics"])
def test_batch_normalisation_is_refused_where_single_samples_are_protected(norm):
    task = {"kind": "reference.tiny_task:TinyNormed", "norm": norm}
    with pytest.raises(ConfigError, match=r"privacy.unit = 'example': BatchNorm mixes"):
        Simulation(tiny(task=task, training=private()))
    run(Simulation(tiny(task=task, training=private(unit="upload"))), 2)


def squares_by_hand(simulation, client, steps=1):
    """Largest sum of m^2 over any sample of the client's."""
    total = Counter()
    for now in np.flatnonzero(simulation.trace.client == client):
        for batch in simulation._jobs[now, 4:].chunk(steps):
            total.update({row: m**2 for row, m in Counter(batch.tolist()).items()})
    return max(total.values())


@pytest.mark.parametrize("steps", [1, 2])
def test_exposure_follows_from_how_often_a_sample_was_used(steps):
    # Shards of 15 samples, so a batch of 20 holds some of them twice.
    training = private() | {"batch_size": 20, "local_steps": steps}
    simulation = Simulation(tiny(training=training, partition="iid", rounds=40))
    spent, privacy = simulation.privacy, Privacy(0.5, 0.3)
    for client in range(6):
        squares = squares_by_hand(simulation, client, steps)
        assert squares > 1
        assert spent["clients"][client] == pytest.approx(privacy.epsilon(squares), abs=1e-4)
    assert spent["epsilon"] == max(spent["clients"])
    assert spent["clients"][spent["client"]] == spent["epsilon"]


def test_exposure_of_whole_uploads_counts_them():
    client = np.array([0, 1, 1, 2, 1])
    batches = np.arange(5 * 3).reshape(5, 1, 3)
    protected = np.array([True, True, False, True])
    privacy = Privacy(1.0, 2.0, unit="upload")
    spent = exposure(privacy, client, batches, protected)
    expected = [privacy.epsilon(1), privacy.epsilon(3), None, 0.0]
    assert spent["clients"] == [e if e is None else pytest.approx(e, abs=1e-4) for e in expected]
    assert (spent["client"], spent["uploads"]) == (1, 3)


def test_result_and_report_tell_what_was_spent(tmp_path):
    made = tiny(training=private(), attack="sign_flip")
    for _ in start_run(made, tmp_path / "run", 1e9):
        pass
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    spent = result["privacy"]
    assert spent == Simulation(made).privacy
    assert [e is None for e in spent["clients"]] == [
        k in result["malicious_clients"] for k in range(6)
    ]
    page = write_report([tmp_path / "run"], tmp_path / "report").read_text()
    assert f"epsilon {spent['epsilon']:.3g} at delta 1e-05" in page
    assert "one sample" in page


def test_run_without_privacy_says_so():
    simulation = Simulation(tiny())
    assert simulation.privacy is None
    assert len(run(simulation)) >= ROUNDS
