import dataclasses
import itertools
from typing import ClassVar, get_args

import numpy as np
import pytest
import torch
from attacking import Crowd, arrival, context, crafted, generator, lone, uploads_its_own, view
from hypothesis import given
from hypothesis import strategies as st
from reference import attacks_composed as oracle
from simulation.small import run, tiny

from secureafl.attacks import Composed, ComposedBackdoor, InnerProduct, parts
from secureafl.core.errors import ConfigError
from secureafl.core.types import AttackerView
from secureafl.linalg.vectors import cosine
from secureafl.simulation.simulator import Simulation
from secureafl.testing.rules import on_meta

CLIENTS, ATTACKERS, SIZE, UPLOADS = 6, 2, 7, 7
COVERS, LENGTHS = get_args(parts.Cover), get_args(parts.Length)
TIMINGS, COLLUSIONS = get_args(parts.Timing), get_args(parts.Collusion)
MALICIOUS = np.arange(CLIENTS) >= CLIENTS - ATTACKERS


class Stage:
    """Uploads of the attackers in turn, by the attack and by its oracle."""

    def __init__(self, attack, seed=0, dtype=torch.float64):
        self.attack, self.dtype, self.rng = attack, dtype, np.random.default_rng(seed)
        self.state = attack.init(context(clients=CLIENTS, malicious=ATTACKERS, size=SIZE))
        private = self.state.memory.private.double().numpy()
        target = getattr(self.state, "reference", torch.zeros(0)).numpy().copy()
        self.oracle = oracle.Composed(attack, ATTACKERS, private, target)
        self.centres = self.rng.normal(size=(CLIENTS, SIZE))

    def turn(self, number):
        """One upload as it was found and as it should be; ever more clients have trained."""
        attacker, rng = number % ATTACKERS, self.rng
        own, base, poisoned = rng.normal(size=(3, SIZE))
        rows = self.centres + rng.normal(size=(CLIENTS, SIZE))
        crowd = Crowd(rows, np.arange(CLIENTS) < number, MALICIOUS)
        fresh = torch.empty(SIZE, dtype=self.dtype).normal_(generator=generator(number)).numpy()
        expected = self.oracle.upload(attacker, own, base, crowd.honest, poisoned, fresh)

        def train(weights, batch):
            assert bool(self.state.poisoning), "the batch is clean"
            return torch.from_numpy(poisoned).to(self.dtype)

        seen = AttackerView(number, attacker, 0.1, generator(number), train, crowd.seen(self.dtype))
        own, base = (torch.from_numpy(v).to(self.dtype) for v in (own, base))
        found, self.state = self.attack.poison_update(self.state, arrival(own, base), seen)
        assert not self.state.poisoning
        return found, expected


def assert_as_its_oracle(attack, **given):
    stage = Stage(attack, **given)
    for number in range(UPLOADS):
        found, expected = stage.turn(number)
        assert found.dtype == stage.dtype
        tolerance = 1e-9 if stage.dtype == torch.float64 else 1e-4
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("aim", get_args(parts.Aim))
@pytest.mark.parametrize("cover", COVERS)
def test_every_composition_does_what_its_oracle_does(aim, cover, step):
    """Or one in four: those of each aim and cover begin with another."""
    first = (get_args(parts.Aim).index(aim) + COVERS.index(cover)) % step
    rest = [*itertools.product(LENGTHS, TIMINGS, COLLUSIONS)][first::step]
    for length, timing, collusion in rest:
        attack = Composed(cover, 0.6, 0.3, length, 1.5, timing, 2, collusion, groups=3, aim=aim)
        assert_as_its_oracle(attack)


@given(
    seed=st.integers(0, 2**32 - 1),
    share=st.floats(0.01, 1),
    curvature=st.sampled_from([0.0, 0.3, 5.0]),
    factor=st.sampled_from([0.1, 1.0, 8.0]),
    period=st.integers(1, 4),
    groups=st.integers(2, 9),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    choices=st.tuples(*map(st.sampled_from, (COVERS, LENGTHS, TIMINGS, COLLUSIONS))),
)
def test_strengths_do_what_their_oracle_does(
    seed, share, curvature, factor, period, groups, dtype, choices
):
    cover, length, timing, collusion = choices
    attack = ComposedBackdoor(
        cover, share, curvature, length, factor, timing, period, collusion, groups
    )
    assert_as_its_oracle(attack, seed=seed, dtype=dtype)


def uploads(attack, count=UPLOADS, **given):
    stage = Stage(attack, **given)
    return [stage.turn(number)[0] for number in range(count)]


@pytest.mark.parametrize("settings", [*Composed.presets.values(), {"share": 1.0, "cover": "own"}])
def test_upload_is_as_long_as_the_median_honest_gradient(settings):
    crowd = lone(np.random.default_rng(0).normal(size=(5, 12)), malicious=[4])
    attack = dataclasses.replace(Composed(**settings), timing="always", collusion="same")
    found = crafted(attack, crowd, own=torch.ones(12).double())
    expected = np.median(np.linalg.norm(crowd.honest, axis=1))
    assert np.linalg.norm(found) == pytest.approx(expected)


@pytest.mark.parametrize("settings", [{"share": 1.0, "cover": "own"}, {"cover": "none"}])
def test_upload_without_a_cover_points_where_the_aim_does(settings):
    crowd = lone([[3.0, 4.0], [9.0, 2.0]])
    found = crafted(Composed(**settings), crowd, own=torch.ones(2).double())
    assert cosine(torch.from_numpy(found), torch.tensor([-12.0, -6.0])) == pytest.approx(1)


def test_first_upload_without_a_cover_points_where_that_of_inner_product_does():
    crowd = lone(np.random.default_rng(0).normal(size=(5, 12)), malicious=[4])
    one, other = (
        torch.from_numpy(crafted(attack, crowd)) for attack in (Composed(), InnerProduct())
    )
    assert cosine(one, other) == pytest.approx(1)


def test_orthogonal_cover_leaves_the_aim_its_share():
    own = torch.tensor([0.0, 1.0]).double()
    found = crafted(Composed("own", share=0.6), lone([[5.0, 0.0]]), own=own)
    assert found == pytest.approx([-3, 4])


@pytest.mark.parametrize("groups", [2, 3, 4])
def test_parts_of_groups_are_orthogonal_and_add_up_to_the_aim(groups):
    aim = torch.randn(1000, generator=generator())
    pieces = torch.stack([parts.own_coordinates(aim, k, groups) for k in range(groups)])
    assert torch.equal(pieces.sum(dim=0), aim)
    assert torch.equal(pieces @ pieces.T, (pieces @ pieces.T).diag().diag())
    assert (pieces != 0).sum(dim=1).min() > 0.8 * 1000 / groups
    assert torch.equal(parts.own_coordinates(aim, groups + 1, groups), pieces[1])


@pytest.mark.parametrize(
    ("timing", "pattern"),
    [("always", "111111"), ("late", "001111"), ("early", "110000"), ("on_off", "110011")],
)
def test_timing_counts_a_clients_own_uploads(timing, pattern):
    times = [bool(parts.is_time(timing, 2, torch.tensor(number))) for number in range(6)]
    assert times == [mark == "1" for mark in pattern]


def test_whoever_waits_for_fast_moves_attacks_about_half_of_the_time():
    attack, plain = Composed(timing="moving"), Composed()
    pairs = zip(uploads(attack, 400), uploads(plain, 400), strict=True)
    attacking = [torch.equal(one, other) for one, other in pairs]
    assert 0.35 < np.mean(attacking) < 0.65


def test_camouflage_is_the_mean_under_private_directions_with_curvature():
    attack = Composed(**Composed.presets["camouflage"])
    assert (attack.aim, attack.cover, attack.share, attack.curvature) == (
        "mean", "private", 0.7, 0.3
    )  # fmt: skip
    memory = attack.init(context(malicious=3, size=4000)).memory
    directions = torch.nn.functional.normalize(memory.private)
    assert torch.allclose(directions @ directions.T, torch.eye(3), atol=0.1)


def test_curvature_is_added_along_the_models_move():
    attack = Composed(curvature=1.0)
    stage = Stage(attack)
    state, seen = stage.state, lone([[1.0] + [0.0] * 6]).seen()
    for base in (torch.zeros(7), torch.tensor([0.0, 0, 0, 5, 0, 0, 0])):
        given = arrival(torch.ones(7).double(), base.double())
        found, state = attack.poison_update(state, given, view(trained=seen))
    assert found.tolist() == pytest.approx([-(0.5**0.5), 0, 0, 0.5**0.5, 0, 0, 0])


def test_only_one_of_several_attackers_is_sacrificed():
    crowd = lone([[3.0, 0.0], [0.0, 4.0]])
    attack, own = Composed(collusion="sacrificed"), torch.ones(2).double()
    lengths = {}
    for malicious, index in ((1, 0), (2, 0), (2, 1)):
        state = attack.init(context(clients=2, malicious=malicious, size=2))
        seen = view(index, trained=crowd.seen())
        found = attack.poison_update(state, arrival(own), seen)[0]
        lengths[malicious, index] = float(found.norm())
    assert lengths == pytest.approx({(1, 0): 3.5, (2, 0): 35, (2, 1): 3.5})


@pytest.mark.parametrize("cover", COVERS)
@pytest.mark.parametrize("attack", [Composed, ComposedBackdoor])
def test_own_gradient_is_uploaded_while_no_honest_client_is_known(attack, cover):
    assert uploads_its_own(attack(cover), lone([[1.0, 2.0], [3.0, 4.0]], malicious=[0, 1]))


def test_memory_holds_vectors_of_each_client_only_where_a_setting_needs_them():
    def rows(**settings):
        memory = Composed(**settings).init(context(malicious=3, size=5)).memory
        return len(memory.private), len(memory.received)

    assert rows() == rows(cover="own", collusion="groups") == (0, 0)
    assert rows(cover="private") == (3, 0)
    assert rows(curvature=0.3) == rows(timing="moving") == (0, 3)


def test_batches_are_poisoned_only_while_the_flag_holds():
    images, labels = (
        torch.randn(6, 1, 8, 8, generator=generator()),
        torch.tensor([1, 0, 2, 0, 1, 2]),
    )
    for attack in (Composed(aim="label"), Composed(aim="one_class"), ComposedBackdoor()):
        state = attack.init(context(classes=3))
        found = attack.poison_batch(state, images, labels, torch.tensor(0))
        assert torch.equal(found[0], images)
        assert torch.equal(found[1], labels)
        state.poisoning.fill_(True)
        poisoned = attack.poison_batch(state, images, labels, torch.tensor(0))
        assert not torch.equal(poisoned[1], labels)


def poisoned_batch(attack, images, labels, classes):
    state = attack.init(context(classes=classes))
    state.poisoning.fill_(True)
    return attack.poison_batch(state, images, labels, torch.tensor(0))


def test_label_aim_mirrors_the_labels():
    images, labels = torch.randn(3, 1, 8, 8, generator=generator()), torch.arange(3)
    assert poisoned_batch(Composed(aim="label"), images, labels, 4)[1].tolist() == [3, 2, 1]
    numbers = torch.tensor([0.5, -2.0, 0.0])
    found = poisoned_batch(Composed(aim="label"), images, numbers, 0)[1]
    assert torch.equal(found, -numbers)


@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=9), victim=st.integers(0, 4))
def test_one_class_aim_trains_the_samples_of_the_class_as_another(labels, victim):
    images = torch.arange(float(len(labels)))[:, None, None, None].expand(-1, 1, 8, 8)
    attack = Composed(aim="one_class", victim_class=victim)
    inputs, found = poisoned_batch(attack, images, torch.tensor(labels), 5)
    places, expected = oracle.only_victims(labels, victim, 5)
    assert inputs[:, 0, 0, 0].tolist() == places
    assert found.tolist() == expected


@pytest.mark.parametrize("aim", get_args(parts.Aim))
def test_nothing_is_read_on_the_host(aim):
    seen = lone(np.ones((CLIENTS, SIZE)), malicious=[4, 5]).seen()
    given = on_meta(arrival(torch.ones(SIZE).double()))
    batch = on_meta((torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64)))
    others = map(itertools.cycle, (LENGTHS, TIMINGS, COLLUSIONS))
    for cover, length, timing, collusion in zip(COVERS, *others, strict=False):
        attack = Composed(cover, 0.6, 0.3, length, 1.0, timing, 2, collusion, aim=aim)
        state = on_meta(attack.init(context(clients=CLIENTS, size=SIZE)))
        # Another device's generator is refused; without one, torch's own is asked for.
        shown = AttackerView(0, 1, 0.1, None, lambda weights, k: weights, on_meta(seen))
        attack.poison_batch(state, *batch, on_meta(torch.tensor(0)))
        upload, _ = attack.poison_update(state, given, shown)
        assert upload.device.type == "meta"


class Spying(Composed):
    """Trains both gradients once more, to compare."""

    seen: ClassVar = []

    def poison_update(self, state, arrival, view):
        clean = view.train(arrival.base, 0)
        poisoned = parts.poisoned_gradient(state.poisoning, view, arrival.base)
        upload, state = super().poison_update(state, arrival, view)
        self.seen.append((view.round, arrival.gradient, clean, poisoned, upload))
        return upload, state


def test_in_a_run_own_gradients_are_honest_and_the_aim_is_poisoned():
    Spying.seen.clear()
    run(Simulation(dataclasses.replace(tiny(rounds=40), attack=Spying(aim="label"))), 40)
    assert len(Spying.seen) > 5
    first, own, *_ = Spying.seen[0]
    without, honest = Simulation(tiny(attack="none", rounds=40)), []
    update = without._update
    without._update = lambda *given: honest.append(update(*given)) or honest[-1]
    run(without, first + 1)
    assert torch.equal(own, honest[first])
    _, _, clean, poisoned, upload = Spying.seen[-1]
    assert cosine(upload, poisoned) == pytest.approx(1)
    assert cosine(upload, clean) < 0.99


@pytest.mark.parametrize(
    "settings",
    [
        {"share": 0.0}, {"share": 1.1}, {"curvature": -1.0}, {"factor": 0.0}, {"period": 0},
        {"groups": 1}, {"victim_class": -1},
    ],
)  # fmt: skip
def test_setting_out_of_range_is_refused(settings):
    with pytest.raises(ConfigError):
        Composed(**settings)


@pytest.mark.parametrize(("classes", "said"), [(0, "needs classes"), (3, "there are 3 classes")])
def test_class_that_does_not_exist_is_refused(classes, said):
    with pytest.raises(ConfigError, match=said):
        Composed(aim="one_class", victim_class=3).init(context(classes=classes))


def test_backdoor_without_images_is_refused():
    with pytest.raises(ConfigError, match="images and classes"):
        ComposedBackdoor().init(context(classes=0))
