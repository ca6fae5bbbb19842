import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import order_rules

from secureafl.aggregators import Mean, Median, TrimmedMean
from secureafl.core.errors import ConfigError

SHARES = (0.0, 0.1, 0.2, 0.25, 0.3, 0.45, 0.49)
RULES = [
    (Mean(), order_rules.mean),
    (Median(), order_rules.median),
    *((TrimmedMean(s), lambda rows, s=s: order_rules.trimmed_mean(rows, s)) for s in SHARES),
]
RULE_NAMES = ["mean", "median", *(f"trimmed_{s}" for s in SHARES)]


def aggregated(rule, values, present):
    state = rule.init(len(values), values[0])
    return rule.aggregate(state, values, present)[0]


@pytest.mark.parametrize(("rule", "oracle"), RULES, ids=RULE_NAMES)
@given(
    n=st.integers(1, 60),
    d=st.sampled_from([1, 3, 7]),
    seed=st.integers(0, 2**32 - 1),
    ties=st.booleans(),
    chance=st.sampled_from([0.2, 0.7, 1.0]),
)
def test_rule_equals_its_numpy_oracle_over_the_clients_present(
    rule, oracle, n, d, seed, ties, chance
):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, d))
    values = np.round(values) if ties else values
    present = rng.random(n) < chance
    present[rng.integers(n)] = True
    found = aggregated(rule, torch.from_numpy(values), torch.from_numpy(present))
    np.testing.assert_allclose(found.numpy(), oracle(values[present]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n", range(1, 61))
def test_trimmed_mean_drops_a_fifth_rounded_up_at_each_end(n):
    values = torch.arange(n, dtype=torch.float64)[:, None] ** 3
    found = aggregated(TrimmedMean(0.2), values, torch.ones(n, dtype=torch.bool))
    expected = order_rules.trimmed_mean(values.numpy(), 0.2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("attackers", range(1, 10))
def test_median_stays_among_honest_values_while_attackers_are_a_minority(attackers):
    honest = torch.linspace(1, 2, 10)[:, None]
    values = torch.cat([honest, torch.full((attackers, 1), 1e12)])
    found = aggregated(Median(), values, torch.ones(len(values), dtype=torch.bool))
    assert 1 <= float(found) <= 2


def test_trimmed_mean_drops_every_attacker_up_to_its_share():
    values = torch.cat([torch.ones(8, 3), torch.full((2, 3), -1e12)])
    found = aggregated(TrimmedMean(0.2), values, torch.ones(10, dtype=torch.bool))
    assert torch.equal(found, torch.ones(3))


@pytest.mark.parametrize("share", [-0.1, 0.5, 1.0])
def test_share_that_leaves_nobody_is_refused(share):
    with pytest.raises(ConfigError, match="share"):
        TrimmedMean(share)
