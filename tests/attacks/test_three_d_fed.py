import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import attacks_three_d_fed as oracle

from secureafl.attacks.indicator import (
    ACCEPTED,
    CLIPPED,
    REJECTED,
    UNREAD,
    marked,
    no_marks,
    read,
    write,
)
from secureafl.attacks.three_d_fed import ThreeDFed
from secureafl.core.errors import ConfigError
from secureafl.core.types import Arrival, AttackContext, AttackerView, ClientGradients

LAYOUT = {"0": (6, 5), "1": (6,), "2": (8, 6), "3": (8,), "4": (4, 8), "5": (4,)}
MIDDLE, LAST, DIM, CLASSES, RATE = slice(36, 84), slice(92, 124), 128, 4, 0.05
WIDTH = 8  # of a row of the last layer
seeds = st.integers(0, 10**6)


def context(attackers=5, classes=CLASSES, layout=LAYOUT, seed=0):
    one = torch.ones(1)
    draws = torch.Generator().manual_seed(seed)
    return AttackContext(20, attackers, classes, (1, 8, 8), one, one, layout, draws)


class Members:
    """Malicious clients and the server they write to."""

    def __init__(self, attack, attackers=5, serve=lambda upload: upload, seed=0, dtype=None):
        self.attack, self.serve, self.attackers = attack, serve, attackers
        self.rng, self.dtype = np.random.default_rng(seed), dtype or torch.float64
        self.state, self.round = attack.init(context(attackers)), 0
        self.weights = self.normal()
        self.table = ClientGradients(
            torch.zeros(attackers + 2, DIM, dtype=self.dtype),
            torch.zeros(attackers + 2, dtype=torch.bool),
            torch.arange(attackers + 2) < attackers,
        )

    def normal(self):
        return torch.from_numpy(self.rng.normal(size=DIM)).to(self.dtype)

    def gradient(self):
        """Hardly anything in the middle layer, as where many weights are idle."""
        gradient = self.normal()
        gradient[MIDDLE] *= 1e-3
        return gradient

    def upload(self, attacker_index, staleness=0, base=None, gradient=None):
        """One upload of a attacker on the current model; the server does with it what it does."""
        base = self.weights if base is None else base
        gradient = self.gradient() if gradient is None else gradient
        self.table.gradients[attacker_index], self.table.known[attacker_index] = gradient, True
        draws = torch.Generator().manual_seed(self.round)
        seen = AttackerView(self.round, attacker_index, RATE, draws, lambda *_: None, self.table)
        trained = Arrival(torch.tensor(attacker_index), torch.tensor(staleness), gradient, base)
        update, self.state = self.attack.poison_update(self.state, trained, seen)
        self.weights = self.weights - RATE * self.serve(update)
        self.round += 1
        return update

    def status(self, attacker_index):
        return int(self.state.marks.status[attacker_index])


@given(
    attackers=st.integers(1, 12),
    size=st.integers(1, 6),
    std=st.sampled_from([0.01, 0.05]),
    seed=seeds,
)
def test_masks_of_a_group_sum_to_zero_over_each_pass(attackers, size, std, seed):
    noisy, plain = (
        Members(ThreeDFed(group_size=size, mask_std=s), attackers, seed=seed) for s in (std, 0.0)
    )
    masked = noisy.state.masked
    order = np.random.default_rng(seed).permutation(np.repeat(np.arange(attackers), 2 * size))
    passes = {}
    for attacker_index in map(int, order):
        mask = (noisy.upload(attacker_index) - plain.upload(attacker_index))[masked]
        plain.weights = noisy.weights  # so that both read the same from their marks
        group = attacker_index // size
        passes.setdefault(group, []).append(mask)
        count = min(size, attackers - group * size)
        if len(passes[group]) % count == 0:
            total = torch.stack(passes[group][-count:]).sum(dim=0)
            largest = torch.stack(passes[group][-count:]).abs().max()
            assert float(total.abs().max()) <= 1e-9 * max(1.0, float(largest))
            assert count == 1 or largest > 0


def test_masks_are_those_of_the_formula_and_differ_from_pass_to_pass():
    noisy, plain = (Members(ThreeDFed(mask_std=s)) for s in (0.05, 0.0))
    masked = noisy.state.masked
    noises = []
    for turn in range(10):
        draws = torch.Generator().manual_seed(turn)
        noise = torch.empty(len(masked), dtype=torch.float64).normal_(generator=draws)
        noises.append(0.05 / RATE * noise.numpy())
    found = []
    for turn in range(10):
        found.append((noisy.upload(turn % 5) - plain.upload(turn % 5))[masked])
        plain.weights = noisy.weights
    np.testing.assert_allclose(torch.stack(found).numpy(), oracle.masks(noises, 5), atol=1e-9)
    assert not torch.equal(found[0], found[5])


def test_noise_is_on_the_last_layer_but_not_on_the_target_classes_row():
    for target in range(CLASSES):
        attack = ThreeDFed(target_class=target, masked_classes=2)
        rows = (attack.init(context()).masked - LAST.start) // WIDTH
        assert len(rows.unique()) == 2
        assert len(rows) == 2 * WIDTH
        assert target not in rows
        assert 0 <= int(rows.min()) <= int(rows.max()) < CLASSES


@given(seed=seeds, factor=st.sampled_from([1.0, 5.0, 30.0]), size=st.floats(0, 100))
def test_upload_is_no_longer_than_the_factor_allows(seed, factor, size):
    play = Members(ThreeDFed(factor=factor, mask_std=0.0), seed=seed)
    for attacker_index in range(5):
        gradient = play.normal() * (size if attacker_index == 2 else 1)
        colluders = play.table.gradients[play.table.known].numpy()
        update = play.upload(attacker_index, gradient=gradient)
        # The table shows this gradient as well.
        colluders = [*colluders, gradient.numpy()]
        expected, benign = oracle.backdoor(gradient.numpy(), colluders, factor, 1.0)
        place = int(play.state.marks.places[attacker_index, 0])
        expected[place] = factor * min(0.5, 10 / np.sqrt(DIM)) * benign
        np.testing.assert_allclose(update.numpy(), expected, rtol=1e-9, atol=1e-12)
        update[place] = 0
        assert float(update.norm()) <= factor * benign * (1 + 1e-9)


def test_mark_is_in_the_middle_layer_and_no_two_members_share_a_place():
    play, places = Members(ThreeDFed(mask_std=0.0)), set()
    for attacker_index in range(5):
        gradient = play.normal()
        last = int(play.state.marks.places[attacker_index, 0])
        play.upload(attacker_index, gradient=gradient)
        own = play.state.marks.places[attacker_index].tolist()
        candidates = range(MIDDLE.start, MIDDLE.stop)
        known = play.table.gradients[play.table.known].numpy()
        assert own[0] == oracle.marked_place(known, candidates, attacker_index, 5, last)
        assert places.isdisjoint(own)
        places.update(own)
    assert all(MIDDLE.start <= place < MIDDLE.stop for place in places)


def served(kind):
    clip = {"applied": 1.0, "ignored": 0.0, "clipped": 0.3}[kind]
    return lambda upload: clip * upload


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("drift", [0.0, 0.01])
@pytest.mark.parametrize(("kind", "expected"), [("applied", ACCEPTED), ("ignored", REJECTED)])
def test_mark_tells_what_the_server_did(kind, expected, drift, dtype):
    play = Members(ThreeDFed(), serve=served(kind), dtype=dtype)
    for attacker_index in range(5):
        play.upload(attacker_index)
        assert play.status(attacker_index) == UNREAD
    # What honest clients do meanwhile: alike in coordinates that matter little.
    play.weights = play.weights - drift * RATE
    for attacker_index in range(5):
        play.upload(attacker_index)
        assert play.status(attacker_index) == expected


def test_clipped_upload_is_told_from_one_that_was_taken_whole():
    play = Members(ThreeDFed())
    for turn in range(10):
        play.serve = served("clipped" if turn == 3 else "applied")
        play.upload(turn % 5)
    expected = [ACCEPTED, ACCEPTED, ACCEPTED, CLIPPED, ACCEPTED]
    assert [play.status(attacker_index) for attacker_index in range(5)] == expected


def test_model_older_than_the_upload_tells_nothing():
    play = Members(ThreeDFed())
    old = play.weights
    play.upload(0)
    play.upload(0, staleness=1, base=old)
    assert play.status(0) == UNREAD


def test_model_that_moved_by_noise_of_the_server_tells_nothing():
    play = Members(ThreeDFed())
    play.upload(0)
    play.weights = play.weights + 100 * play.normal()
    play.upload(0)
    assert play.status(0) == UNREAD


@given(seed=seeds, share=st.floats(0, 1), drift=st.floats(-0.1, 0.1))
def test_share_that_is_read_is_the_one_of_the_formula(seed, share, drift):
    rng = np.random.default_rng(seed)
    base, upload = torch.from_numpy(rng.normal(size=(2, 30)))
    marks, value = no_marks(torch.arange(30), 2), torch.tensor(3.0, dtype=torch.float64)
    marks = write(marks, 1, upload[1::2].abs(), base, value, now=4)
    sent = marked(upload, marks, 1)
    after = base - RATE * share * sent + drift
    after[marks.places[1, 1:]] = base[marks.places[1, 1:]] + drift
    places = marks.places[1].numpy()
    before, new = base.numpy()[places], after.numpy()[places]
    expected = oracle.share_of_mark(before[0], new[0], before[1:], new[1:], 3.0, RATE)
    assert expected == pytest.approx(share, abs=1e-9)
    marks = read(marks, 1, after, torch.tensor(5), RATE)
    assert float(marks.shares[1]) == pytest.approx(share, abs=1e-9)


def test_group_grows_careful_when_refused_and_bold_again_when_accepted():
    play = Members(ThreeDFed(group_size=2), attackers=4, serve=served("ignored"))
    for turn in range(8):
        play.upload(turn % 2)
    refused = play.state.strength.tolist()
    assert refused[0] < 0.1
    assert refused[1] == 1  # the other group has heard nothing
    play.serve = served("applied")
    for turn in range(30):
        play.upload(turn % 2)
    assert float(play.state.strength[0]) == 1


def test_last_of_a_refused_group_becomes_a_decoy_until_one_is_accepted():
    play = Members(ThreeDFed(group_size=3), attackers=5, serve=served("ignored"))
    for _ in range(2):
        longest = [float(play.upload(attacker_index).abs().max()) for attacker_index in range(5)]
    benign = float(play.table.gradients[:5].norm(dim=1).median())
    decoys = [value > 5 * benign for value in longest]
    # Members 2 and 4 are the last of their groups; the noise of the others has shrunk by now.
    assert decoys[2]
    assert decoys[4]
    turns = play.state.turns.clone()
    play.upload(2)
    assert torch.equal(play.state.turns, turns)  # a decoy carries no noise
    play.serve = served("applied")
    for attacker_index in (0, 1, 0, 1):
        play.upload(attacker_index)
    play.upload(2)
    assert int(play.state.turns[0]) == int(turns[0]) + 5


def test_lone_member_is_no_decoy():
    play = Members(ThreeDFed(), attackers=1, serve=served("ignored"))
    for _ in range(4):
        update = play.upload(0)
    assert float(update.norm()) < 40 * float(play.table.gradients[0].norm())
    assert int(play.state.turns[0]) == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreeDFed(factor=0.5),
        lambda: ThreeDFed(mask_std=-1.0),
        lambda: ThreeDFed(group_size=0),
        lambda: ThreeDFed(masked_classes=0),
        lambda: ThreeDFed(mark=0.0),
        lambda: ThreeDFed().init(context(classes=0)),
        lambda: ThreeDFed().init(context(layout={"bias": (30,)})),
        lambda: ThreeDFed().init(context(layout={"weight": (3, 30)})),
    ],
)
def test_setting_that_cannot_work_is_refused_before_training(make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert "\n" not in str(caught.value)
