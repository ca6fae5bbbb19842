import math

import pytest

from secureafl.runs.suspicion import HIGH, RAISED, ClientHistory, MedianDistance, score_clients


def record(refused: float, times: float | None, uploads: int = 60) -> ClientHistory:
    """Of a client whose uploads are refused so often, and lie so many times as far as usual."""
    found = ClientHistory()
    for i in range(uploads):
        accepted = (i * refused) % 1 >= refused if refused < 1 else False
        found.add(accepted, None if times is None else math.log(times))
    return found


def test_client_like_all_others_is_not_suspicious():
    for signs in score_clients([record(0.2, 1.0) for _ in range(9)]):
        assert signs.suspicion == pytest.approx(0, abs=1e-9)


def test_ten_times_the_usual_distance_gives_nine_tenths_at_most():
    *_, far = score_clients([*(record(0, 1.0) for _ in range(9)), record(0, 10.0)])
    assert 0.85 < far.distance <= 0.9
    assert far.refusals == 0


def test_always_refused_beside_a_fifth_is_high():
    *_, bad = score_clients([*(record(0.2, None) for _ in range(9)), record(1, None)])
    assert bad.suspicion > HIGH
    assert bad.distance == 0


def test_one_bad_upload_is_no_verdict():
    *_, new = score_clients([*(record(0, 1.0) for _ in range(9)), record(1, None, uploads=1)])
    assert new.suspicion < RAISED


def test_what_is_long_past_is_forgotten():
    reformed = record(1, 10.0)
    for _ in range(100):
        reformed.add(True, 0.0)
    *_, found = score_clients([*(record(0, 1.0) for _ in range(9)), reformed])
    assert found.suspicion < 0.05


def test_where_most_are_refused_nobody_is_suspected():
    lost = [*(record(1, 1e9) for _ in range(6)), *(record(0, 1.0) for _ in range(4))]
    assert all(signs.suspicion == 0 for signs in score_clients(lost))


def test_typical_distance_is_a_median_that_follows_and_forgets_a_wild_start():
    median = MedianDistance()
    median.excess(1e9)
    for i in range(600):
        median.excess(1e6 if i % 5 == 0 else 2.0)
    assert median.excess(2.0) == pytest.approx(0, abs=0.15)
    for _ in range(400):
        median.excess(20.0)
    assert median.excess(20.0) == pytest.approx(0, abs=0.05)
