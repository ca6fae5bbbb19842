import json

import pytest

from secureafl.core.events import ArrivalEvent, EvaluationEvent
from secureafl.runs.summary import summarise


def test_summary_counts_by_group_and_averages_the_late_evaluations():
    events = [
        EvaluationEvent(0, {"ter": 0.9}),
        ArrivalEvent(0, 0, False, 0, True, True, "", {}),
        ArrivalEvent(1, 0, False, 0, False, True, "lipschitz", {}),
        ArrivalEvent(2, 1, True, 0, False, False, "not_finite", {}),
        EvaluationEvent(2, {"ter": 0.4}),
        EvaluationEvent(3, {"ter": 0.2}),
    ]
    found = summarise(events, [2, 3])
    assert found["metrics"]["ter"]["last"] == 0.2
    assert found["metrics"]["ter"]["late_mean"] == pytest.approx(0.3)
    assert found["metrics"]["ter"]["late_std"] == pytest.approx(0.1)
    assert found["uploads"]["honest"] == {"accepted": 1, "received": 2, "share": 0.5}
    assert found["uploads"]["malicious"] == {"accepted": 0, "received": 1, "share": 0.0}
    assert found["refused"] == {"lipschitz": 1, "not_finite": 1}
    assert found["steps"] == 2


def test_figure_of_a_diverged_model_is_none_and_still_json():
    events = [EvaluationEvent(1, {"rmse": None}), EvaluationEvent(2, {"rmse": 3.0})]
    found = summarise(events, [1, 2])["metrics"]["rmse"]
    assert found == {"last": 3.0, "late_mean": None, "late_std": None}
    json.dumps(found, allow_nan=False)
