"""What every defence forgets with a client, and what it keeps."""

import torch
from contract.every import for_every_defense, with_every_kernel

from secureafl.core.inactivity import forget
from secureafl.core.trees import name_tensors
from secureafl.defenses import SecureAfl
from secureafl.testing.driver import CLIENTS, DIM, Driver


def client_axes(tensor):
    """Which axes of a state count clients, two where it is about pairs; no other is as long."""
    return [axis for axis, size in enumerate(tensor.shape) if size == CLIENTS]


def parts_of(tensor, client):
    """What a state has of one client, along each axis."""
    return [tensor.select(axis, client) for axis in client_axes(tensor)]


def part_without(tensor, client):
    """What a state has of the others, among themselves."""
    others = torch.tensor([k for k in range(CLIENTS) if k != client])
    for axis in client_axes(tensor):
        tensor = tensor.index_select(axis, others)
    return tensor


@with_every_kernel
def test_forgotten_client_leaves_no_trace_and_others_keep_all_of_theirs(defense, kernels):
    driver, client = Driver(defense), 2
    blank = {k: t.clone() for k, t in name_tensors(driver.state.defense, "").items()}
    with kernels():
        for number in range(20):
            driver.honest(number)
        before = {k: t.clone() for k, t in name_tensors(driver.state.defense, "").items()}
        driver.state = driver.server.forget(driver.state, client)
        after = name_tensors(driver.state.defense, "")
    for name, tensor in after.items():
        found, expected = parts_of(tensor, client), parts_of(blank[name], client)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
        assert torch.equal(part_without(tensor, client), part_without(before[name], client))


@with_every_kernel
def test_everybody_forgotten_is_nobody_ever_heard_of_and_the_run_goes_on(defense, kernels):
    driver = Driver(defense)
    with kernels():
        for number in range(20):
            driver.honest(number)
        for client in range(CLIENTS):
            driver.state = driver.server.forget(driver.state, client)
        decisions = [driver.honest(number) for number in range(20, 40)]
    assert torch.isfinite(driver.state.weights).all()
    if isinstance(defense, SecureAfl):
        # A first upload has no Lipschitz factor, and passes.
        assert decisions[0].accepted
        assert decisions[0].scores["lipschitz"].isnan()


@for_every_defense
def test_forgetting_never_looks_at_a_number_and_keeps_its_shapes(defense):
    weights = torch.zeros(DIM, device="meta")
    state = defense.init(CLIENTS, weights)
    shapes = [(t.shape, t.dtype) for t in name_tensors(state, "").values()]
    after = forget(defense, state, torch.zeros((), dtype=torch.int64, device="meta"))
    assert type(after) is type(state)
    assert [(t.shape, t.dtype) for t in name_tensors(after, "").values()] == shapes
