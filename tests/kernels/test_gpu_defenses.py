"""Every defence with a GPU's kernels against the same in plain torch."""

import pytest
import torch
from emulated_cuda import GPU

from secureafl.core.server import Server, Upload
from secureafl.core.traits import has_trait
from secureafl.defenses import DEFENSES
from secureafl.kernels.dispatch import using_kernels
from secureafl.testing.driver import QuadraticRootData

pytestmark = pytest.mark.usefixtures("gpu")
CLIENTS, DIM, ARRIVALS = 9, 70, 60


def play(defense):
    """The model after each of some arrivals, and what was decided; two clients send nonsense."""
    random = torch.Generator().manual_seed(7)
    hessian = torch.rand(DIM, generator=random).add(0.5).to(GPU)
    centres = (1 + 0.3 * torch.randn(CLIENTS, DIM, generator=random)).to(GPU)
    root_data = QuadraticRootData(hessian, centres) if needs(defense) else None
    torch.manual_seed(7)
    server = Server(defense, CLIENTS, 0.05, root_data, seed=7)
    state = server.start(torch.randn(DIM, generator=random).to(GPU))
    models, decided = [state.weights.clone()], []
    for number in range(ARRIVALS):
        client = int(torch.randint(CLIENTS, (), generator=random))
        version = max(0, number - int(torch.randint(3, (), generator=random)))
        gradient = hessian * (models[version] - centres[client])
        gradient = gradient + 0.1 * torch.randn(DIM, generator=random).to(GPU)
        gradient = {0: -5 * gradient, 1: 1e20 * gradient}.get(client, gradient)
        state.ledger.lend(version, models[version])
        decision, state = server.receive(state, Upload(client, version, gradient))
        decided.append((bool(decision.accepted), bool(decision.ready)))
        models.append(state.weights.clone())
    return torch.stack(models).cpu(), decided


def needs(defense):
    return has_trait(defense, "needs_root_data")


@pytest.mark.parametrize("name", DEFENSES)
def test_a_defence_decides_the_same_with_kernels(name):
    with using_kernels("reference"):
        expected, as_expected = play(DEFENSES[name]())
    found, decided = play(DEFENSES[name]())
    assert decided == as_expected
    assert (expected[-1] != expected[0]).any(), "the model moves"
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
