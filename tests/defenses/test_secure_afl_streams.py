"""Random arrivals, all settings: the package's server against the oracle, step by step."""

import numpy as np
import pytest
import torch
from defenses.compared import AGGREGATORS, ESTIMATORS, Comparison, Options
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import always_compiled, always_plain

from secureafl.core.types import Arrival, ServerView
from secureafl.defenses import SecureAfl

options = st.builds(
    Options,
    estimator=st.sampled_from(sorted(ESTIMATORS)),
    aggregator=st.sampled_from(sorted(AGGREGATORS)),
    alpha=st.sampled_from([0.2, 0.5, 0.8, 0.95, 1.0]),
    clip_norm=st.sampled_from([0.5, 50.0]),
    window=st.sampled_from([0, 0, 1, 3]),
    rejected=st.sampled_from(["keep", "forget", "reference"]),
    filter=st.booleans(),
    estimate=st.booleans(),
    use_received=st.booleans(),
    store_received=st.booleans(),
).filter(lambda o: o.store_received if o.use_received else o.estimate)

arrivals = st.lists(
    st.tuples(
        st.integers(0, 3),  # client; often the same twice in a row
        st.integers(0, 4),  # lag; the same base or an older one than last time
        st.sampled_from(["smooth", "smooth", "smooth", "noise", "again", "zero"]),
        # Further apart, factors get beyond what `linalg.lbfgs` allows; the oracle has no bound.
        st.sampled_from([1.0, 1.0, 1.0, 1.0, 1e-2, 1e2]),
    ),
    min_size=1,
    max_size=25,
)


def gradients(rng, stream, dim):
    """A function of (client, base, kind, size) that draws as it goes."""
    hessian, centre = rng.uniform(0.5, 2.0, dim), rng.normal(size=(4, dim))
    last = {}

    def draw(client, base, kind, size):
        made = {
            "smooth": hessian * (base - centre[client]) + 0.02 * rng.normal(size=dim),
            "noise": rng.normal(size=dim),
            "again": last.get(client, np.ones(dim)),
            "zero": np.zeros(dim),
        }[kind] * (1.0 if kind == "again" else size)
        last[client] = made
        return made

    return draw


def run_stream(options, stream, seed, dim, dtype, tolerance):
    rng = np.random.default_rng(seed)
    pair = Comparison(options, 4, rng.normal(size=dim), dtype, tolerance)
    draw = gradients(rng, stream, dim)
    for client, lag, kind, size in stream:
        base = pair.models[max(0, pair.state.round - lag)].double().numpy()
        pair.arrive(client, lag, draw(client, base, kind, size))


@given(
    options=options, stream=arrivals, seed=st.integers(0, 2**32 - 1), dim=st.sampled_from([2, 5, 9])
)
@settings(max_examples=3 * settings().max_examples)
def test_whole_streams_agree_with_the_oracle_in_float64(options, stream, seed, dim):
    run_stream(options, stream, seed, dim, torch.float64, 1e-7)


@given(options=options, stream=arrivals, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=3 * settings().max_examples)
def test_whole_streams_agree_with_the_oracle_in_float32(options, stream, seed):
    stream = [(c, lag, kind, 1.0) for c, lag, kind, _ in stream]
    run_stream(options, stream, seed, 9, torch.float32, 5e-3)


@given(
    options=options,
    stream=arrivals,
    seed=st.integers(0, 2**32 - 1),
    dim=st.sampled_from([9, 16, 100]),
)
@settings(max_examples=3 * settings().max_examples)
def test_whole_streams_agree_with_the_oracle_through_the_compiled_step(options, stream, seed, dim):
    pytest.importorskip("llvmlite")
    stream = [(c, lag, kind, 1.0) for c, lag, kind, _ in stream]
    with always_compiled():
        run_stream(options, stream, seed, dim, torch.float32, 5e-3)


def directions_of_a_large_server(count=12):
    """Of one whose memory is worth the compiled step."""
    clients, size, defense = 8, (1 << 20) // 64 + 3, SecureAfl()
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(size, generator=generator)
    state, directions = defense.init(clients, weights), []
    for t in range(count):
        noise = 0.01 * torch.randn(size, generator=generator)
        arrival = Arrival(torch.tensor(t % 3), torch.tensor(0), weights + noise, weights)
        decision, state = defense.step(state, arrival, ServerView(torch.tensor(t), weights, 0.1))
        weights = weights - 0.1 * decision.direction
        directions.append(decision.direction)
    return torch.stack(directions), state.memory.vectors.numel()


def test_large_server_takes_the_same_steps_with_plain_kernels_up_to_rounding():
    cpu = pytest.importorskip("secureafl.kernels.cpu")
    compiled, numbers = directions_of_a_large_server()
    assert numbers >= cpu.WORTH_IT
    with always_plain():
        plain, _ = directions_of_a_large_server()
    assert plain.any(dim=1).all()
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-4)
    assert not torch.equal(compiled, plain)  # else nothing was compiled
