import math

import pytest

from secureafl.runs.suspicion import HIGH, RAISED, ClientHistory, MedianDistance, score_clients


def client(refused: float, times: float | None, uploads: int = 60) -> ClientHistory:
    """A client whose uploads are refused so often, and lie so many times as far as the median."""
    found = ClientHistory()
    for i in range(uploads):
        accepted = (i * refused) % 1 >= refused if refused < 1 else False
        found.add(accepted, None if times is None else math.log(times))
    return found


def test_client_like_all_others_is_not_suspicious():
    for score in score_clients([client(0.2, 1.0) for _ in range(9)]):
        assert score.suspicion == pytest.approx(0, abs=1e-9)


def test_ten_times_the_median_distance_gives_nine_tenths_at_most():
    *_, far = score_clients([*(client(0, 1.0) for _ in range(9)), client(0, 10.0)])
    assert 0.85 < far.distance <= 0.9
    assert far.refusals == 0


def test_always_refused_beside_a_fifth_is_high():
    *_, bad = score_clients([*(client(0.2, None) for _ in range(9)), client(1, None)])
    assert bad.suspicion > HIGH
    assert bad.distance == 0


def test_one_bad_upload_is_not_enough():
    *_, new = score_clients([*(client(0, 1.0) for _ in range(9)), client(1, None, uploads=1)])
    assert new.suspicion < RAISED


def test_what_is_long_past_is_forgotten():
    changed = client(1, 10.0)
    for _ in range(100):
        changed.add(True, 0.0)
    *_, found = score_clients([*(client(0, 1.0) for _ in range(9)), changed])
    assert found.suspicion < 0.05


def test_where_most_are_refused_no_client_is_suspected():
    lost = [*(client(1, 1e9) for _ in range(6)), *(client(0, 1.0) for _ in range(4))]
    assert all(score.suspicion == 0 for score in score_clients(lost))


def test_median_distance_is_a_median_that_follows_and_forgets_a_wild_start():
    median = MedianDistance()
    median.excess(1e9)
    for i in range(600):
        median.excess(1e6 if i % 5 == 0 else 2.0)
    assert median.excess(2.0) == pytest.approx(0, abs=0.15)
    for _ in range(400):
        median.excess(20.0)
    assert median.excess(20.0) == pytest.approx(0, abs=0.05)


def test_each_upload_weighs_095_of_the_next_one():
    history = ClientHistory()
    history.add(False, 3.0)
    for _ in range(10):
        history.add(True, 0.0)
    assert history.refused == pytest.approx(0.95**10)
    assert history.excess == pytest.approx(3 * 0.95**10)
    assert history.weight == history.measured == pytest.approx((1 - 0.95**11) / 0.05)


def test_upload_of_unknown_distance_leaves_the_distance_as_it_was():
    history = ClientHistory()
    history.add(True, 2.0)
    history.add(True, None)
    assert (history.measured, history.excess, history.weight) == (1.0, 2.0, 1.95)


def test_everybody_is_credited_with_two_uploads_like_the_medians():
    others = [client(0, 1.0) for _ in range(9)]
    *_, new = score_clients([*others, client(1, 8.0, uploads=1)])
    assert new.refusals == pytest.approx(1 / 3)
    assert new.distance == pytest.approx(1 - 8 ** (-1 / 3))
    assert new.suspicion == pytest.approx(1 - (2 / 3) * 8 ** (-1 / 3))


def test_refusals_are_a_share_of_how_many_more_there_could_be():
    others = [client(0, None, uploads=20) for _ in range(9)]
    for history in others:
        history.refused = history.weight / 5
    *_, bad = score_clients([*others, client(1, None, uploads=1)])
    assert bad.refusals == pytest.approx(((1 + 2 / 5) / 3 - 1 / 5) / (4 / 5))


@pytest.mark.parametrize(("share", "suspected"), [(0.5, True), (0.51, False)])
def test_above_half_of_the_uploads_refused_no_client_is_suspected(share, suspected):
    others = [client(0, 1.0) for _ in range(9)]
    for history in others:
        history.refused = history.weight * share
    *_, bad = score_clients([*others, client(1, 1.0)])
    assert (bad.suspicion > 0) == suspected


def test_median_is_that_of_the_latest_201_uploads():
    median = MedianDistance()
    for _ in range(500):
        median.excess(1.0)
    above = [median.excess(10.0) for _ in range(102)]
    assert above == [pytest.approx(math.log(10))] * 101 + [0.0]
