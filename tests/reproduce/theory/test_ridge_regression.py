"""The problem's constants, each against another way to get it."""

import numpy as np
import pytest
import torch

from secureafl.core.errors import ConfigError
from secureafl.reproduce.theory.problem import InOrder, Objective, RidgeRegression

TASK = RidgeRegression(seed=3, clients=6, parameters=4, points=9, batches=8)
HONEST = np.array([True, False, True, True, False, True])


@pytest.fixture(scope="module")
def objective():
    return Objective(TASK.measurements(), HONEST)


def loss_and_gradient(weights, rows):
    """What the task itself says of some mini-batches."""
    data, model = TASK.load(), TASK.model()
    model.weight.data = torch.as_tensor(weights, dtype=torch.float32)
    loss = TASK.loss(model(data.train_inputs[rows]), data.train_labels[rows])
    (gradient,) = torch.autograd.grad(loss, model.weight)
    return loss.item(), gradient.double().numpy()


def client_losses(weights):
    """Of each client, over all its mini-batches."""
    labels, rng = TASK.load().train_labels.numpy(), np.random.default_rng(0)
    for rows in InOrder().deal(labels, TASK.clients, rng).rows:
        yield loss_and_gradient(weights, rows)


@pytest.mark.parametrize("seed", range(3))
def test_closed_forms_are_what_the_clients_compute(objective, seed):
    weights = np.random.default_rng(seed).normal(size=4) * 3
    losses, gradients = zip(*client_losses(weights), strict=True)
    expected = objective.hessian @ weights - objective.pulls
    np.testing.assert_allclose(gradients, expected, rtol=1e-4, atol=1e-5)
    assert objective.value(weights) == pytest.approx(np.array(losses)[HONEST].mean(), rel=1e-5)


def test_smoothness_is_the_steepest_change_of_a_gradient(objective):
    rng = np.random.default_rng(1)
    steps = rng.normal(size=(5000, 4))
    growth = np.linalg.norm(steps @ objective.hessian, axis=1) / np.linalg.norm(steps, axis=1)
    assert growth.max() <= objective.smoothness * (1 + 1e-12)
    assert growth.max() == pytest.approx(objective.smoothness, rel=0.01)
    assert np.linalg.eigvalsh(objective.hessian)[0] >= TASK.ridge


@pytest.mark.parametrize("scale", [0.1, 1, 100])
def test_heterogeneity_is_the_same_at_every_model(objective, scale):
    weights = scale * np.random.default_rng(2).normal(size=4)
    gradients = np.array([g for _, g in client_losses(weights)])[HONEST]
    apart = np.square(gradients - gradients.mean(axis=0)).sum(axis=1).mean()
    assert np.sqrt(apart) == pytest.approx(objective.heterogeneity, rel=1e-3)


def test_every_mini_batch_is_sigma_away_from_its_client(objective):
    """Monte Carlo over what clients draw: the mean square is sigma's, and the mean is 0."""
    weights = np.random.default_rng(4).normal(size=4)
    true = objective.hessian @ weights - objective.pulls
    rng, errors = np.random.default_rng(0), []
    for _ in range(300):
        client = rng.choice(np.flatnonzero(HONEST))
        row = client * TASK.batches + rng.integers(TASK.batches)
        errors.append(loss_and_gradient(weights, [row])[1] - true[client])
    lengths = np.linalg.norm(errors, axis=1)
    np.testing.assert_allclose(lengths, objective.noise, rtol=1e-4)
    assert objective.noise == pytest.approx(TASK.noise)
    assert np.linalg.norm(np.mean(errors, axis=0)) < 4 * TASK.noise / np.sqrt(300)


def test_optimum_is_where_the_gradient_vanishes_and_the_gap_is_measured_from_there(objective):
    best = objective.optimum
    assert np.linalg.norm(objective.hessian @ best - objective.pulls[HONEST].mean(axis=0)) < 1e-12
    weights = np.arange(4.0)
    above = objective.value(weights) - objective.value(best)
    assert objective.gap(weights) == pytest.approx(above)
    assert objective.gap(best) == 0


def test_attackers_have_no_part_in_the_objective(objective):
    measured = TASK.measurements()
    measured.targets[~HONEST] = 1e6
    changed = Objective(measured, HONEST)
    for name in ("heterogeneity", "noise", "smoothness"):
        assert getattr(changed, name) == getattr(objective, name)
    np.testing.assert_array_equal(changed.optimum, objective.optimum)


def test_same_seed_same_data():
    again, other = (RidgeRegression(seed=s, clients=6).load().fingerprint for s in (3, 4))
    assert RidgeRegression(seed=3, clients=6).load().fingerprint == again != other


@pytest.mark.parametrize(
    "setting", [{"batches": 3}, {"points": 5}, {"noise": -1.0}, {"parameters": 0}, {"clients": 0}]
)
def test_impossible_settings_are_refused_by_name(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        RidgeRegression(**setting)
