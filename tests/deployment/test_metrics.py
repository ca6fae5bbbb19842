import urllib.request

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from secureafl.core.events import ArrivalEvent, ForgottenEvent
from secureafl.deployment.metrics import Metrics


def values(text):
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}


def counted():
    metrics = Metrics()
    metrics.count([ArrivalEvent(0, 1, False, 3, True, True, "", {})], 0.02)
    metrics.count([ArrivalEvent(1, 2, True, 7, False, True, "lipschitz", {})], 0.02)
    metrics.count(
        [ArrivalEvent(2, 2, True, 7, False, False, "not_finite", {}), ForgottenEvent(3, 1)], 0.5
    )
    metrics.drop("unknown_request")
    metrics.clients.set(2)
    return metrics


def test_everything_is_counted():
    found = values(generate_latest(counted().registry).decode())
    assert found["secureafl_updates_accepted_total",] == 1
    assert found["secureafl_updates_rejected_total", "lipschitz"] == 1
    assert found["secureafl_updates_rejected_total", "not_finite"] == 1
    assert found["secureafl_messages_dropped_total", "unknown_request"] == 1
    assert found["secureafl_clients_forgotten_total",] == 1
    assert found["secureafl_staleness_sum",] == 17
    assert found["secureafl_step_seconds_count",] == 3
    assert found["secureafl_round",] == 3
    assert found["secureafl_clients",] == 2
    assert found["secureafl_refused_share",] == pytest.approx(2 / 3)


def test_metrics_are_published_to_this_machine():
    port, stop = counted().publish(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        assert values(page.read().decode())["secureafl_round",] == 3
    stop()
