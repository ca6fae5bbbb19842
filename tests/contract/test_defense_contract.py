"""What every defence owes the server, for every entry of the tables."""

import numpy as np
import pytest
import safetensors.torch
import torch
from contract.cases import ALIKE, DEFENSE_CASES, ENOUGH, same_decision
from contract.every import for_both_dtypes, for_every_defense, with_every_kernel
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secureafl.core.server import LARGEST_NORM
from secureafl.core.trees import name_tensors, rebuild
from secureafl.testing import check_defense
from secureafl.testing.driver import CLIENTS, DIM, Driver


def spoilt(value):
    def make(weights):
        update = torch.ones_like(weights)
        update[DIM // 2] = value
        return update

    return make


BAD_UPDATES = {
    "nan": (spoilt(torch.nan), "not_finite"),
    "inf": (spoilt(torch.inf), "not_finite"),
    "minus_inf": (spoilt(-torch.inf), "not_finite"),
    "all_nan": (lambda w: torch.full_like(w, torch.nan), "not_finite"),
    "huge": (lambda w: torch.full_like(w, 1e30), "too_large"),
    "just_too_large": (lambda w: torch.full_like(w, 1.01 * LARGEST_NORM / DIM**0.5), "too_large"),
    "longer": (lambda w: w.new_ones(DIM + 1), "wrong_shape"),
    "shorter": (lambda w: w.new_ones(DIM - 1), "wrong_shape"),
    "matrix": (lambda w: w.new_ones(1, DIM), "wrong_shape"),
    "number": (lambda w: w.new_ones(()), "wrong_shape"),
    "empty": (lambda w: w.new_ones(0), "wrong_shape"),
    "half": (lambda w: w.half(), "wrong_type"),
    "other_float": (
        lambda w: w.to(torch.float64 if w.dtype == torch.float32 else torch.float32),
        "wrong_type",
    ),
    "integers": (lambda w: torch.ones(DIM, dtype=torch.int64), "wrong_type"),
    "bools": (lambda w: torch.ones(DIM, dtype=torch.bool), "wrong_type"),
    "complex": (lambda w: w.to(torch.complex64), "wrong_type"),
    "sparse": (lambda w: w.to_sparse(), "wrong_type"),
    "array": (lambda w: w.numpy(), "wrong_type"),
    "list": (lambda w: w.tolist(), "wrong_type"),
    "text": (lambda w: "gradient", "wrong_type"),
    "mapping": (lambda w: {"weights": w}, "wrong_type"),
    "nothing": (lambda w: None, "wrong_type"),
}


def refused(driver, decision, reason, before):
    assert decision.reason == reason
    assert not decision.accepted
    assert not decision.ready
    assert torch.equal(decision.direction, torch.zeros_like(before))
    assert torch.equal(driver.state.weights, before)


@for_every_defense
def test_entry_keeps_the_contract(defense):
    check_defense(defense)


@for_every_defense
@for_both_dtypes
@pytest.mark.parametrize("after", [0, 6])
def test_run_after_bad_uploads_is_the_run_that_never_saw_them(defense, dtype, after):
    spared, hit = Driver(defense, dtype), Driver(defense, dtype)
    for number in range(14):
        if number == after:
            for place, (make, reason) in enumerate(BAD_UPDATES.values()):
                before, version = hit.state.weights, hit.state.round
                decision = hit.receive(place % CLIENTS, version, make(before), before)
                refused(hit, decision, reason, before)
                assert hit.state.round == version + 1
        one, other = spared.honest(number, after), hit.honest(number, after)
        assert same_decision(one, other)
        assert torch.equal(spared.state.weights, hit.state.weights)
        assert torch.isfinite(hit.state.weights).all()


@pytest.mark.parametrize("kind", BAD_UPDATES)
def test_bad_upload_is_refused_with_its_reason(kind):
    make, reason = BAD_UPDATES[kind]
    driver = Driver(DEFENSE_CASES["secure_afl"])
    before = driver.state.weights
    refused(driver, driver.receive(0, 0, make(before), before), reason, before)


def test_update_on_another_device_is_refused():
    driver = Driver(DEFENSE_CASES["async_sgd"])
    before = driver.state.weights
    decision = driver.receive(0, 0, torch.ones(DIM, device="meta"), before)
    refused(driver, decision, "wrong_type", before)


NO_TICKET = [
    (-1, None, "unknown_client"),
    (CLIENTS, None, "unknown_client"),
    (2**70, None, "unknown_client"),
    (0, -1, "unknown_version"),
    (0, 2, "unknown_version"),  # answered already
    (0, 10**9, "unknown_version"),
    (CLIENTS, 10**9, "unknown_client"),
]


@for_every_defense
def test_uploads_without_a_ticket_change_nothing_but_the_round(defense):
    spared, hit = Driver(defense), Driver(defense)
    for number in range(12):
        if number == 6:
            for client, version, reason in NO_TICKET:
                before, now = hit.state.weights, hit.state.round
                update = torch.ones_like(before)
                asked, lent = (now, before) if version is None else (version, None)
                refused(hit, hit.receive(client, asked, update, lent), reason, before)
                assert hit.state.round == now + 1
        assert same_decision(spared.honest(number, 6), hit.honest(number, 6))
    assert torch.equal(spared.state.weights, hit.state.weights)


def storages(tree):
    return {k: t.untyped_storage().data_ptr() for k, t in name_tensors(tree, "s").items()}


@for_every_defense
def test_no_part_of_a_state_shares_memory_with_another_or_with_the_model(defense):
    # A replayed step copies the new state over the old one, part by part, after the model.
    driver = Driver(defense)
    for number in range(12):
        before = driver.state  # kept alive, so that its memory is not used again
        driver.honest(number)
        old, new = (storages(state.defense) for state in (before, driver.state))
        assert len(set(new.values())) == len(new)
        assert before.weights.untyped_storage().data_ptr() not in new.values()
        taken = {place: name for name, place in old.items()}
        assert all(taken.get(place, name) == name for name, place in new.items())


@for_every_defense
def test_direction_stays_what_it_was_when_the_run_goes_on(defense):
    driver = Driver(defense)
    decisions = [driver.honest(number) for number in range(6)]
    copies = [decision.direction.clone() for decision in decisions]
    for number in range(6, 14):
        driver.honest(number)
    for decision, copy in zip(decisions, copies, strict=True):
        assert torch.equal(decision.direction, copy)


@for_every_defense
def test_upload_with_a_gradient_tape_is_taken_without_it(defense):
    driver = Driver(defense)
    for number in range(5):
        update = (torch.ones(DIM, requires_grad=True) * 2).exp()
        decision = driver.receive(number, number, update, driver.state.weights)
        assert not decision.direction.requires_grad
        assert not driver.state.weights.requires_grad
    state = name_tensors(driver.state.defense, "state")
    assert not any(tensor.requires_grad for tensor in state.values())


@for_every_defense
@for_both_dtypes
def test_state_survives_safetensors_and_goes_on_with_the_same_bits(defense, dtype):
    driver = Driver(defense, dtype)
    for number in range(12):
        driver.honest(number)
    # As bytes at once: the state is donated and written in place afterwards.
    saved = safetensors.torch.save(name_tensors(driver.state.defense, "defense"))
    twin = Driver(defense, dtype)
    blank = defense.init(CLIENTS, twin.state.weights)
    restored = rebuild(blank, "defense", safetensors.torch.load(saved))
    assert type(restored) is type(driver.state.defense)
    twin.state = twin.state._replace(
        round=driver.state.round, weights=driver.state.weights.clone(), defense=restored
    )
    twin.models = [(version, weights.clone()) for version, weights in driver.models]
    for number in range(12, 24):
        assert same_decision(driver.honest(number), twin.honest(number))
    assert torch.equal(driver.state.weights, twin.state.weights)


@for_every_defense
def test_one_defense_value_serves_two_runs_at_once(defense):
    alone = Driver(defense, seed=4)
    for number in range(10):
        alone.honest(number)
    together, other = Driver(defense, seed=4), Driver(defense, seed=5)
    for number in range(10):
        together.honest(number)
        other.honest(number)
    assert torch.equal(alone.state.weights, together.state.weights)


@for_every_defense
def test_most_updates_are_accepted_when_nobody_attacks(defense):
    # Without noise: once steps shrink below it, factors grow, and with them what looks unlike.
    setting = {"arrivals": 80, "spread": 0.3} | ALIKE.get(type(defense), {})
    driver = Driver(defense, seed=1, noise=0.0, spread=setting["spread"])
    verdicts = [bool(driver.honest(number).accepted) for number in range(setting["arrivals"])]
    assert np.mean(verdicts) > 0.6


@for_every_defense
def test_honest_clients_reach_their_common_minimum(defense):
    driver = Driver(defense)
    middle = driver.centres.mean(dim=0)
    far = torch.linalg.vector_norm(driver.state.weights - middle)
    for number in range(ENOUGH.get(type(defense), 150)):
        driver.honest(number)
    assert torch.linalg.vector_norm(driver.state.weights - middle) < 0.4 * far


@with_every_kernel
def test_lone_client_is_served(defense, kernels):
    server = Driver(defense).server._replace(num_clients=1)
    driver = Driver(defense)
    driver.server, driver.state = server, server.start(driver.state.weights)
    with kernels():
        for version in range(6):
            driver.receive(0, version, torch.full((DIM,), 0.1 * version), driver.state.weights)
    assert torch.isfinite(driver.state.weights).all()
    assert driver.state.round == 6


exponents = st.sampled_from([-45, -38, -30, -20, -12, -3, 0, 1, 3, 6, 9, 12, 16, 20])
any_uploads = st.lists(
    st.tuples(st.integers(0, CLIENTS - 1), st.integers(0, 3), exponents, st.integers(-3, 3)),
    min_size=1,
    max_size=25,
)


@with_every_kernel
@given(uploads=any_uploads, from_zero=st.booleans())
@settings(max_examples=settings().max_examples // 3)
# A model near zero moves by 1e-31, then a client sends a huge update: curvature beyond float32.
@example([(0, 0, -20, 1), (0, 0, 20, -1), (0, 0, 20, -1), (1, 0, 0, 1)], True)
@example([*((k, 0, -30, 1) for k in (1, 2, 3, 0)), (0, 0, 20, -1), (1, 0, -30, 1)], True)
def test_direction_and_weights_are_finite_whatever_finite_updates_arrive(
    defense, kernels, uploads, from_zero
):
    with kernels():
        check_finite(Driver(defense), uploads, from_zero)


def check_finite(driver, uploads, from_zero):
    if from_zero:
        zero = torch.zeros(DIM)
        driver.state, driver.models = driver.server.start(zero), [(0, zero)]
    for client, lag, exponent, seed in uploads:
        version, base = driver.models[-1 - min(lag, len(driver.models) - 1)]
        update = np.random.default_rng(abs(seed)).normal(size=DIM) * (-1 if seed < 0 else 1)
        update *= 0.99 * min(10.0**exponent, LARGEST_NORM) / np.linalg.norm(update)
        update = torch.from_numpy(update.astype(np.float32))
        decision = driver.receive(client, version, update, base)
        assert decision.reason not in ("too_large", "not_finite") or decision.accepted
        assert torch.isfinite(decision.direction).all()
        assert torch.isfinite(driver.state.weights).all()
