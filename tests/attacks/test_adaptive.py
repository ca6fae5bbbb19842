import numpy as np
import pytest
import torch
from contract.cases import DEFENSE_CASES, SLOW_CASES
from hypothesis import given
from hypothesis import strategies as st
from reference import attacks_adaptive as oracle

from secureafl.attacks.adaptive import Adaptive
from secureafl.attacks.evasion import _most_harmful, ask_defense
from secureafl.attacks.median_push import crafted, damage, honest_stats, smallest_best
from secureafl.core.errors import ConfigError
from secureafl.core.server import Server
from secureafl.core.traits import has_trait
from secureafl.core.trees import clone, name_tensors
from secureafl.core.types import (
    Arrival,
    AttackContext,
    AttackerView,
    ClientGradients,
    Decision,
    ServerSnapshot,
    ServerView,
)
from secureafl.defenses import SecureAfl, TrustClipping
from secureafl.defenses.secure_afl import estimates, last_upload
from secureafl.linalg.quantile import passing_bound
from secureafl.testing.driver import root_data_for
from secureafl.testing.rules import no_host_reads, on_meta

CLIENTS, MALICIOUS, DIM, RATE = 7, 2, 6, 0.05
MEMBERS = torch.arange(CLIENTS) < MALICIOUS
ONE, LAYOUT = torch.ones(1), {"weight": (DIM,)}
CONTEXT = AttackContext(CLIENTS, MALICIOUS, 2, (1,), ONE, ONE, LAYOUT, torch.Generator())
DEFENSES = {
    name: pytest.param(defense, marks=pytest.mark.slow if name in SLOW_CASES else ())
    for name, defense in DEFENSE_CASES.items()
    if name != "trust_clipping"  # trusts or distrusts over time: see test_blending.py
}
for_every_defense = pytest.mark.parametrize("defense", DEFENSES.values(), ids=DEFENSES)
ASKED = {
    name: one
    for name, one in DEFENSES.items()
    if not isinstance(one.values[0], SecureAfl | TrustClipping)
}
for_all_asked = pytest.mark.parametrize("defense", ASKED.values(), ids=ASKED)
seeds = st.integers(0, 10**6)


def stats_of(rows, copies):
    """Honest rows, scattered among the malicious ones' rows, which must not matter."""
    n = len(rows) + copies
    place = np.random.default_rng(len(rows)).permutation(n)
    values, honest = torch.full((n, rows.shape[1]), 7.0, dtype=torch.float64), np.zeros(n, bool)
    values[place[: len(rows)]], honest[place[: len(rows)]] = torch.from_numpy(rows), True
    return honest_stats(values, torch.from_numpy(honest), torch.tensor(copies))


rows_and_copies = st.tuples(st.integers(1, 12), st.integers(1, 8), seeds, st.booleans())


def drawn(honest, copies, seed, rounded):
    rows = np.random.default_rng(seed).normal(0.3, 1, (honest, DIM))
    return (np.round(rows) if rounded else rows), copies  # rounded: many ties and zeros


@given(case=rows_and_copies, gamma=st.floats(0, 10))
def test_one_sort_gives_the_median_under_any_crafted_update(case, gamma):
    rows, copies = drawn(*case)
    stats = stats_of(rows, copies)
    np.testing.assert_allclose(stats.median.numpy(), np.median(rows, axis=0), atol=1e-12)
    np.testing.assert_allclose(
        crafted(stats, gamma).numpy(), oracle.crafted(rows, gamma), atol=1e-12
    )
    expected = oracle.damage(rows, gamma, copies)
    np.testing.assert_allclose(float(damage(stats, gamma)), expected, atol=1e-11)


@given(case=rows_and_copies)
def test_gamma_is_the_smallest_of_the_grid_that_is_nearly_best(case):
    rows, copies = drawn(*case)
    found, expected = (
        float(smallest_best(stats_of(rows, copies))),
        oracle.smallest_best(rows, copies),
    )
    if found != expected:  # both are good enough, up to rounding
        one, other = (oracle.damage(rows, gamma, copies) for gamma in (found, expected))
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9)


@given(case=st.tuples(st.integers(3, 12), st.just(2), seeds, st.just(False)))
def test_the_median_is_pushed_against_its_own_direction(case):
    rows, copies = drawn(*case)
    gamma, before = float(smallest_best(stats_of(rows, copies))), np.median(rows, axis=0)
    after = oracle.median_under(rows, oracle.crafted(rows, gamma), copies)
    assert before @ after < before @ before
    # In no coordinate does it help.
    assert (np.sign(before) * (after - before) <= 1e-12).all()


class Stream:
    """A server, honest clients with quadratic losses, and two attackers among them."""

    def __init__(self, defense, attack, seed, dtype=torch.float32):
        rng = np.random.default_rng(seed)
        self.rng, self.attack, self.defense = rng, attack, defense
        self.centres = torch.from_numpy(1 + 0.3 * rng.normal(size=(CLIENTS, DIM))).to(dtype)
        self.hessian = torch.from_numpy(rng.uniform(0.5, 2, DIM)).to(dtype)
        trusted = root_data_for(defense, self.hessian, self.centres)
        self.server = Server(defense, CLIENTS, RATE, trusted)
        self.state = self.server.start(torch.from_numpy(rng.normal(size=DIM)).to(dtype))
        self.models = [self.state.weights]
        self.colluders = attack.init(CONTEXT)
        self.trained = ClientGradients(
            torch.zeros(CLIENTS, DIM, dtype=dtype), torch.zeros(CLIENTS, dtype=torch.bool), MEMBERS
        )

    def draw(self):
        """Who uploads next, and what it trained."""
        client, lag = int(self.rng.integers(CLIENTS)), int(self.rng.integers(4))
        version = max(0, self.state.round - lag)
        base = self.models[version]
        noise = torch.from_numpy(0.1 * self.rng.normal(size=DIM)).to(base.dtype)
        gradient = self.hessian * (base - self.centres[client]) + noise
        self.trained.gradients[client], self.trained.known[client] = gradient, True
        return Arrival(
            torch.tensor(client), torch.tensor(self.state.round - version), gradient, base
        )

    def view(self, arrival):
        now = torch.tensor(self.state.round)
        server = ServerView(now, self.state.weights, RATE, self.server.root_data)
        snapshot = ServerSnapshot(self.defense, self.state.defense, server)
        number, draws = int(arrival.client), torch.Generator().manual_seed(0)
        return AttackerView(
            self.state.round, number, RATE, draws, lambda *_: None, self.trained, snapshot
        )

    def poisoned(self, arrival):
        view = self.view(arrival)
        update, self.colluders = self.attack.poison_update(self.colluders, arrival, view)
        return update

    def decide(self, arrival, update):
        """The real step; the state is the stream's from now on."""
        numbers = torch.stack([arrival.client, arrival.staleness, torch.tensor(self.state.round)])
        decision, state = self.server.decide(self.state, numbers, update, arrival.base)
        self.state = state._replace(round=state.round + 1)
        self.models.append(state.weights)
        return decision

    def would_accept(self, arrival):
        kept = clone(self.state.defense)
        decision, _ = self.defense.step(kept, arrival, self.view(arrival).snapshot.server)
        return bool(decision.accepted)


@pytest.mark.parametrize(
    "rejected",
    ["keep", *(pytest.param(r, marks=pytest.mark.slow) for r in ("forget", "reference"))],
)
@given(
    seed=seeds,
    alpha=st.sampled_from([0.05, 0.3, 0.5, 0.8, 0.99, 1.0]),
    window=st.sampled_from([0, 1, 3, 10]),
    clip_norm=st.sampled_from([0.5, 50.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_every_upload_passes_the_filter_of_secure_afl(
    rejected, seed, alpha, window, clip_norm, dtype
):
    defense = SecureAfl(alpha=alpha, window=window, clip_norm=clip_norm, rejected=rejected)
    stream = Stream(defense, Adaptive(), seed, dtype)
    for _ in range(40):
        arrival = stream.draw()
        malicious = bool(MEMBERS[arrival.client])
        update = stream.poisoned(arrival) if malicious else arrival.gradient
        first = not last_upload(stream.state.defense, arrival)[2]
        decision = stream.decide(arrival, update)
        assert torch.isfinite(update).all()
        if malicious:
            assert decision.accepted
            assert not first or float(update.norm()) <= clip_norm * (1 + 1e-6)


@pytest.mark.slow
@given(seed=seeds, alpha=st.sampled_from([0.1, 0.5, 0.8]))
def test_the_way_to_the_target_is_as_long_as_the_formula_says(seed, alpha):
    stream = Stream(SecureAfl(alpha=alpha), Adaptive(), seed, torch.float64)
    for _ in range(30):
        arrival = stream.draw()
        state, honest = stream.state.defense, stream.trained.known & ~MEMBERS
        if not MEMBERS[arrival.client]:
            stream.decide(arrival, arrival.gradient)
            continue
        update = stream.poisoned(arrival)
        last, base, known = last_upload(state, arrival)
        moved = float((arrival.base - base).norm())
        if known and moved and honest.any():
            rows = estimates(stream.defense, state, stream.state.weights)[honest].numpy()
            target = oracle.crafted(rows, oracle.smallest_best(rows, MALICIOUS))
            bound = float(passing_bound(state.factors, alpha))
            expected = oracle.toward(last.numpy(), target, bound, moved)
            size = np.abs(target - last.numpy()).max()
            np.testing.assert_allclose(update.numpy(), expected, atol=2e-3 * size + 1e-12, rtol=0)
        stream.decide(arrival, update)


@for_every_defense
def test_upload_is_accepted_whenever_the_honest_gradient_is(defense):
    stream, uploads = Stream(defense, Adaptive(), 1), 0
    for _ in range(40):
        arrival = stream.draw()
        update = arrival.gradient
        if MEMBERS[arrival.client]:
            honest, update = stream.would_accept(arrival), stream.poisoned(arrival)
            uploads += not torch.equal(update, arrival.gradient)
        decision = stream.decide(arrival, update)
        if MEMBERS[arrival.client] and honest:
            assert decision.accepted
    assert uploads > 0


@for_every_defense
def test_asking_changes_nothing_at_the_server(defense):
    stream = Stream(defense, Adaptive(), 5)
    for _ in range(40):
        arrival = stream.draw()
        seen = stream.view(arrival)
        shown = (seen.clients, seen.snapshot.state, stream.state.weights, tuple(arrival))
        before = name_tensors(clone(shown), "")
        update = stream.poisoned(arrival) if MEMBERS[arrival.client] else arrival.gradient
        after = name_tensors(shown, "")
        assert all(torch.equal(before[name], after[name]) for name in before)
        stream.decide(arrival, update)


answers = st.tuples(
    st.booleans(), st.booleans(), st.sampled_from([-np.inf, -1.0, 0.0, 1.0, 2.0, np.inf, np.nan])
)


@pytest.mark.parametrize("look", [True, False])
@given(answers=st.lists(answers, min_size=10, max_size=10))
def test_choice_is_that_of_asking_one_after_the_other(look, answers):
    asked = []

    def decide(update):
        accepted, ready, harm = answers[len(asked)]
        asked.append(update.clone())
        update.zero_()  # it was made for this question alone
        direction = torch.tensor([-harm, 0], dtype=torch.float64)
        return Decision(torch.tensor(accepted), torch.tensor(ready), direction, {}, "")

    given = torch.tensor([5.0, 5.0]), 10 * torch.eye(2), torch.ones(2)
    found, expected = _most_harmful(decide, *given, look=look), oracle.most_harmful(answers)
    torch.testing.assert_close(found, given[0] if expected is None else asked[expected])
    last = [number for number, (yes, ready, _) in enumerate(answers) if yes and not ready]
    assert len(asked) == (last[0] + 1 if look and last else 10)
    assert len({tuple(update.tolist()) for update in asked}) == len(asked)


def in_one_piece(view, arrival):
    """The view of an attack whose questions are recorded, as on a GPU."""

    def decide(update):
        return view.snapshot.decide(arrival._replace(gradient=update))

    return view._replace(recorded=lambda function, *given: function(decide, *given))


@for_all_asked
def test_upload_is_the_same_if_no_answer_is_looked_at(defense):
    stream, uploads = Stream(defense, Adaptive(), 1), 0
    for _ in range(40):
        arrival = stream.draw()
        update = arrival.gradient
        if MEMBERS[arrival.client]:
            update, view = stream.poisoned(arrival), in_one_piece(stream.view(arrival), arrival)
            again, _ = stream.attack.poison_update(stream.colluders, arrival, view)
            assert torch.equal(again, update)
            uploads += not torch.equal(update, arrival.gradient)
        stream.decide(arrival, update)
    assert uploads > 0


@for_all_asked
def test_recorded_questions_need_nothing_from_the_host(defense):
    if has_trait(defense, "buffering"):
        pytest.skip("each answer is looked at")
    stream, weights = Stream(defense, Adaptive(), 2), torch.zeros(DIM, device="meta")
    arrival = stream.draw()
    root_data = root_data_for(defense, weights, weights.expand(CLIENTS, DIM))
    server = ServerView(on_meta(arrival.client), weights, RATE, root_data)
    snapshot = ServerSnapshot(defense, on_meta(stream.state.defense), server)
    view, arrival = stream.view(arrival)._replace(snapshot=snapshot), on_meta(arrival)
    with no_host_reads("ask_defense"):
        found = ask_defense(in_one_piece(view, arrival), arrival, weights.expand(2, DIM), weights)
    assert found.shape == weights.shape


def test_model_under_secure_afl_ends_further_from_the_minimum():
    distances = []
    for attacked in (False, True):
        stream = Stream(SecureAfl(), Adaptive(), 3)
        for _ in range(300):
            arrival = stream.draw()
            poisons = attacked and MEMBERS[arrival.client]
            stream.decide(arrival, stream.poisoned(arrival) if poisons else arrival.gradient)
        best = stream.centres[~MEMBERS].mean(dim=0)
        distances.append(float((stream.state.weights - best).norm()))
    assert distances[1] > 1.5 * distances[0]


@pytest.mark.parametrize("kind", ["async_sgd", "secure_afl"])
def test_before_any_honest_client_trained_the_honest_gradient_is_uploaded(kind):
    stream = Stream(DEFENSE_CASES[kind], Adaptive(), 0)
    arrival = stream.draw()
    stream.trained.known[:] = MEMBERS
    torch.testing.assert_close(stream.poisoned(arrival), arrival.gradient)


def test_without_a_test_the_boldest_lie_is_uploaded():
    stream = Stream(DEFENSE_CASES["async_sgd"], Adaptive(), 0)
    for _ in range(20):
        arrival = stream.draw()
        stream.decide(arrival, arrival.gradient)
    rows = stream.trained.gradients[~MEMBERS & stream.trained.known].numpy()
    expected = oracle.crafted(rows, 10.0)
    np.testing.assert_allclose(stream.poisoned(arrival).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_share_of_the_deviations_is_a_smaller_push():
    stream = Stream(DEFENSE_CASES["async_sgd"], Adaptive(**Adaptive.presets["stealth"]), 0)
    for _ in range(20):
        arrival = stream.draw()
        stream.decide(arrival, arrival.gradient)
    rows = stream.trained.gradients[~MEMBERS & stream.trained.known].numpy()
    expected = oracle.crafted(rows, 10.0 * stream.attack.strength)
    np.testing.assert_allclose(stream.poisoned(arrival).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strength", [0.0, -1.0, 1.5])
def test_strength_that_is_no_share_is_refused(strength):
    with pytest.raises(ConfigError):
        Adaptive(strength=strength)
