import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulation.small import tiny

from secureafl.arrivals import ARRIVALS, EventDriven, Uniform
from secureafl.arrivals.churn import Churn
from secureafl.arrivals.trace import Trace
from secureafl.core.errors import ConfigError
from secureafl.simulation.simulator import Simulation

for_every_model = pytest.mark.parametrize("kind", ARRIVALS)
JOB_TIMES = ("lognormal", "exponential", "constant")


def draw(model, rounds=500, clients=7, seed=0, malicious=0):
    """A schedule; the clients with the highest numbers are malicious."""
    last = np.arange(clients) >= clients - malicious
    return model.draw(rounds, last, np.random.default_rng(seed))


@for_every_model
@given(rounds=st.integers(1, 60), clients=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_nobody_answers_to_a_model_of_the_future(kind, rounds, clients, seed):
    trace = draw(ARRIVALS[kind](), rounds, clients, seed)
    assert all(len(column) == rounds for column in trace)
    assert (trace.version >= 0).all()
    assert (trace.version <= np.arange(rounds)).all()
    assert ((trace.client >= 0) & (trace.client < clients)).all()
    assert (np.diff(trace.time) >= 0).all()


@for_every_model
def test_same_seed_draws_the_same_schedule(kind):
    one, same, other = (draw(ARRIVALS[kind](), seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one.client, other.client)


@for_every_model
def test_every_client_takes_part(kind):
    assert set(draw(ARRIVALS[kind]()).client) == set(range(7))


@pytest.mark.parametrize("limit", [0, 1, 10])
def test_uniform_staleness_stays_within_its_bound_and_reaches_it(limit):
    trace = draw(Uniform(limit), rounds=2000)
    staleness = np.arange(2000) - trace.version
    assert staleness.min() == 0
    assert staleness.max() == limit


def test_uniform_clients_and_staleness_are_equally_likely():
    trace = draw(Uniform(4), rounds=20_000, clients=5)
    staleness = (np.arange(20_000) - trace.version)[4:]
    np.testing.assert_allclose(np.bincount(trace.client) / 20_000, 0.2, atol=0.02)
    np.testing.assert_allclose(np.bincount(staleness) / len(staleness), 0.2, atol=0.02)
    assert abs(np.corrcoef(trace.client[4:], staleness)[0, 1]) < 0.03


def test_uniform_client_may_come_twice_in_a_row_and_with_an_older_model():
    trace = draw(Uniform(10), rounds=2000)
    again = trace.client[1:] == trace.client[:-1]
    assert again.any()
    assert (trace.version[1:][again] < trace.version[:-1][again]).any()
    assert (trace.version[1:][again] == trace.version[:-1][again]).any()


@pytest.mark.parametrize("job_time", JOB_TIMES)
def test_event_driven_client_answers_to_the_model_it_was_given_after_its_last_upload(job_time):
    trace = draw(EventDriven(job_time=job_time))
    given_model = dict.fromkeys(range(7), 0)
    for now, (client, version) in enumerate(zip(trace.client, trace.version, strict=True)):
        assert version == given_model[client]
        given_model[client] = now + 1


def test_event_driven_slow_clients_are_staler_and_rarer():
    trace = draw(EventDriven(speed_spread=1.0), rounds=5000)
    staleness = np.arange(5000) - trace.version
    uploads = np.bincount(trace.client, minlength=7)
    mean_staleness = np.array([staleness[trace.client == k].mean() for k in range(7)])
    order = np.argsort(uploads)[::-1]
    assert uploads[order[0]] > 2 * uploads[order[-1]]
    assert (np.diff(mean_staleness[order]) > 0).all()


def test_event_driven_equals_at_constant_pace_take_turns():
    trace = draw(EventDriven(speed_spread=0.0, job_time="constant"), rounds=21)
    assert trace.client.tolist() == list(range(7)) * 3
    assert trace.time.tolist() == [1.0] * 7 + [2.0] * 7 + [3.0] * 7
    assert (np.arange(21) - trace.version).tolist() == [*range(7), *[6] * 14]


@pytest.mark.parametrize("job_time", JOB_TIMES)
def test_event_driven_job_times_follow_the_named_law(job_time):
    # One client: the gaps between arrivals are its job times.
    trace = draw(EventDriven(0.0, job_time, 0.25), rounds=4000, clients=1)
    jobs = np.diff(trace.time, prepend=0.0)
    spread = {"lognormal": 0.255, "exponential": 1.0, "constant": 0.0}[job_time]
    assert jobs.std() / jobs.mean() == pytest.approx(spread, abs=0.06)
    assert jobs.mean() == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Uniform(-1),
        lambda: EventDriven(speed_spread=-0.1),
        lambda: EventDriven(job_spread=-0.1),
    ],
)
def test_setting_out_of_range_is_refused(make):
    with pytest.raises(ConfigError, match="give 0"):
        make()


@for_every_model
@pytest.mark.parametrize("pace", [0.5, 20])
@pytest.mark.parametrize("churn", [Churn(), Churn(0.3, 900, 100)], ids=["all there", "churn"])
def test_malicious_client_uploads_as_many_times_as_often_as_its_pace(kind, pace, churn):
    own = {"speed_spread": 0.0} if kind == "event_driven" else {}
    model = ARRIVALS[kind](malicious_pace=pace, churn=churn, **own)
    count = np.bincount(draw(model, 12_000, malicious=2).client, minlength=7)
    assert count[5:].mean() / count[:5].mean() == pytest.approx(pace, rel=0.15)


@for_every_model
def test_fast_client_is_given_newer_models(kind):
    trace = draw(ARRIVALS[kind](malicious_pace=20), 2000, malicious=1)
    staleness = np.arange(2000) - trace.version
    mean = staleness[trace.client == 6].mean(), staleness[trace.client < 6].mean()
    if kind == "event_driven":
        assert mean[0] < 1 < 10 < mean[1]
    else:  # there who comes and how stale it is are independent
        assert mean[0] == pytest.approx(mean[1], abs=1)


@for_every_model
def test_pace_and_head_start_change_nothing_where_nobody_is_malicious(kind):
    usual, same = draw(ARRIVALS[kind]()), draw(ARRIVALS[kind](malicious_pace=20, malicious_first=2))
    assert all(np.array_equal(a, b) for a, b in zip(usual, same, strict=True))


@for_every_model
def test_usual_pace_draws_the_usual_schedule_whoever_is_malicious(kind):
    usual, same = draw(ARRIVALS[kind]()), draw(ARRIVALS[kind](), malicious=3)
    assert all(np.array_equal(a, b) for a, b in zip(usual, same, strict=True))


@for_every_model
@pytest.mark.parametrize("churn", [Churn(), Churn(0.3, 25, 10)], ids=["all there", "churn"])
def test_malicious_clients_that_come_first_do_so_in_turns_on_the_newest_model(kind, churn):
    trace = draw(ARRIVALS[kind](malicious_first=2, churn=churn), 300, malicious=3)
    assert trace.client[:6].tolist() == [4, 5, 6, 4, 5, 6]
    assert trace.version[:6].tolist() == list(range(6))
    usual = draw(ARRIVALS[kind](churn=churn), 294)
    assert np.array_equal(trace.client[6:], usual.client)
    assert np.array_equal(trace.version[6:], usual.version + 6)
    assert (np.diff(trace.time) >= 0).all()


@for_every_model
def test_head_start_ends_with_the_run(kind):
    trace = draw(ARRIVALS[kind](malicious_first=100), 5, malicious=2)
    assert trace.client.tolist() == [5, 6, 5, 6, 5]
    assert len(trace.time) == 5


@for_every_model
@pytest.mark.parametrize(
    "settings", [{"malicious_pace": v} for v in (0, -1.0, 1001, np.nan)] + [{"malicious_first": -1}]
)
def test_pace_or_head_start_out_of_range_is_refused(kind, settings):
    with pytest.raises(ConfigError, match=rf"{next(iter(settings))} = .*: give"):
        ARRIVALS[kind](**settings)


def spells_of(trace, gap):
    """First and last arrival of each stretch in which a client was silent for at most `gap`."""
    return {
        client: np.split(turns, np.flatnonzero(np.diff(turns) > gap) + 1)
        for client in range(7)
        if len(turns := np.flatnonzero(trace.client == client))
    }


CHURNS = [Churn(late=0.5, away=30), Churn(stay=40, away=40), Churn(0.3, 25, 10)]


@for_every_model
@pytest.mark.parametrize("churn", CHURNS, ids=str)
@given(rounds=st.integers(1, 60), clients=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_nobody_answers_to_a_model_of_the_future_when_clients_come_and_go(
    kind, churn, rounds, clients, seed
):
    trace = draw(ARRIVALS[kind](churn=churn), rounds, clients, seed)
    assert (trace.version >= 0).all()
    assert (trace.version <= np.arange(rounds)).all()
    assert ((trace.client >= 0) & (trace.client < clients)).all()
    assert (np.diff(trace.time) >= 0).all()


@for_every_model
def test_without_churn_nothing_more_is_drawn(kind):
    rng, plain = np.random.default_rng(0), np.random.default_rng(0)
    ARRIVALS[kind]().draw(50, np.zeros(7, bool), rng)
    if kind == "uniform":
        plain.integers(7, size=50), plain.integers(np.minimum(np.arange(50), 10) + 1)
    else:
        plain.lognormal(0.0, 0.5, 7), plain.lognormal(0.0, 0.25, 57)
    assert rng.random() == plain.random()


@for_every_model
def test_late_clients_are_as_many_as_asked_and_come_about_when_asked(kind):
    first = []
    for seed in range(40):
        trace = draw(ARRIVALS[kind](churn=Churn(late=3 / 7, away=50)), 4000, seed=seed)
        starts = np.array([trace.time[trace.client == k].min() for k in range(7)])
        first.append(np.sort(starts)[-3:])
    # The mean of exponential times, and of the little until such a client is drawn.
    assert np.mean(first) == pytest.approx(55, rel=0.25)


@for_every_model
def test_share_of_time_a_client_is_there_follows_from_how_long_it_stays(kind):
    churn = Churn(stay=300, away=900)
    trace = draw(ARRIVALS[kind](churn=churn), 60_000)
    gaps = 150 if kind == "uniform" else 100
    there = [
        trace.time[spell[-1]] - trace.time[spell[0]]
        for spells in spells_of(trace, gaps).values()
        for spell in spells
    ]
    share = sum(there) / (7 * trace.time[-1])
    # A quarter; a little more where the next to join comes at once because nobody is there.
    assert 0.15 < share < 0.4


def test_uniform_client_never_answers_to_a_model_from_before_it_joined():
    trace = draw(Uniform(20, Churn(late=0.5, stay=15, away=200)), 5000, clients=7)
    staleness = np.arange(5000) - trace.version
    spells = [spell for spells in spells_of(trace, 60).values() for spell in spells]
    assert len(spells) > 50
    assert any(len(spell) > 1 for spell in spells)
    # Nobody answers twice to a model older than its first answer's by more than the bound allows.
    assert all((trace.version[spell] >= spell[0] - 20).all() for spell in spells)
    assert staleness.max() == 20
    lone = draw(Uniform(20, Churn(stay=1e-9, away=5)), 200, clients=3)
    assert (lone.version == np.arange(200)).all()  # everybody has just joined


def test_event_driven_client_that_returns_is_given_the_newest_model():
    trace = draw(EventDriven(churn=Churn(stay=1e-9, away=3)), 400, clients=5)
    staleness = np.arange(400) - trace.version
    # It worked for about one job, away for three: the models of the way are not its own.
    given_before = {c: np.flatnonzero(trace.client == c) for c in range(5)}
    for turns in given_before.values():
        assert (trace.version[turns[1:]] > turns[:-1]).all()
    assert staleness.mean() < 3


@for_every_model
def test_run_that_everybody_leaves_is_refused_with_the_remedy(kind):
    with pytest.raises(ConfigError, match=r"churn.stay = 5.0: all clients have left by round"):
        draw(ARRIVALS[kind](churn=Churn(stay=5.0)), 5000)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"late": 1.5, "away": 1}, "late"),
        ({"late": -0.1}, "late"),
        ({"late": 0.2}, "give away"),
        ({"stay": -1}, "stay"),
        ({"away": -1}, "away"),
    ],
)
def test_churn_out_of_range_is_refused(settings, named):
    with pytest.raises(ConfigError, match=named):
        Churn(**settings)


@dataclasses.dataclass(frozen=True)
class Own:
    drawn: object

    def draw(self, rounds, malicious, rng):
        return self.drawn


NOW = np.arange(5)
RIGHT = Trace(NOW % 3, NOW, NOW.astype(float))
WRONG = {  # five rounds of three clients, and what is said of them
    "pair": ((NOW, NOW), "it draws a tuple; give secureafl.Trace(client, version, time)"),
    "nothing": (None, "it draws a NoneType"),
    "short": (RIGHT._replace(client=NOW[:4] % 3), "client is int64 of shape (4,); give an array"),
    "matrix": (RIGHT._replace(time=np.zeros((5, 1))), "time is float64 of shape (5, 1)"),
    "real": (RIGHT._replace(version=NOW * 1.0), "version is float64 of shape (5,); give an array"),
    "mask": (RIGHT._replace(client=NOW > 2), "client is bool of shape (5,)"),
    "no number": (RIGHT._replace(time=list("abcde")), "time is <U1 of shape (5,)"),
    "outside": (RIGHT._replace(client=NOW), "the client of round 3 is 3; number the 3 from 0"),
    "below": (RIGHT._replace(client=NOW % 3 - 1), "the client of round 0 is -1"),
    "future": (RIGHT._replace(version=NOW + NOW // 4), "the version of round 4 is 5; give a round"),
    "before": (RIGHT._replace(version=NOW - 1), "the version of round 0 is -1"),
    "back": (RIGHT._replace(time=[0, 1, 2, 1, 4]), "the time of round 3 is 1.0; give finite times"),
    "nan": (RIGHT._replace(time=[0, 1, np.nan, 3, 4]), "the time of round 2 is nan"),
    "infinite": (RIGHT._replace(time=[0, 1, 2, 3, np.inf]), "the time of round 4 is inf"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_own_arrivals_that_are_none_are_told_in_one_line(mistake):
    drawn, said = WRONG[mistake]
    with pytest.raises(ConfigError) as caught:
        Simulation(dataclasses.replace(tiny(clients=3, rounds=5), arrivals=Own(drawn)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_own_arrivals_may_be_lists_with_several_at_a_time():
    drawn = Trace([2, 2, 0, 1, 2], [0, 0, 0, 3, 1], [0, 0, 1, 1, 7])
    simulation = Simulation(dataclasses.replace(tiny(clients=3, rounds=5), arrivals=Own(drawn)))
    events = []
    while not simulation.finished:
        events += simulation.advance()
    arrived = [event for event in events if hasattr(event, "staleness")]
    assert [event.client for event in arrived] == drawn.client
    assert [event.staleness for event in arrived] == [0, 1, 2, 0, 3]
