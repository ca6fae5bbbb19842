import urllib.request

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from secureafl.core.events import ArrivalEvent, ForgottenEvent
from secureafl.deployment.logs import Log, rotate
from secureafl.deployment.metrics import Metrics


def values(text):
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}


def counted():
    metrics = Metrics()
    metrics.count([ArrivalEvent(0, 1, False, 3, True, True, "", {})], 0.02)
    metrics.count([ArrivalEvent(1, 2, True, 7, False, True, "lipschitz", {})], 0.02)
    metrics.count([ArrivalEvent(2, 2, True, 7, True, True, "", {}), ForgottenEvent(3, 1)], 0.5)
    metrics.refuse("not_finite")
    metrics.drop("unknown_request")
    metrics.clients.set(2)
    return metrics


def test_everything_is_counted():
    found = values(generate_latest(counted().registry).decode())
    assert found["secureafl_updates_accepted_total",] == 2
    assert found["secureafl_updates_rejected_total", "lipschitz"] == 1
    assert found["secureafl_updates_rejected_total", "not_finite"] == 1
    assert found["secureafl_messages_dropped_total", "unknown_request"] == 1
    assert found["secureafl_clients_forgotten_total",] == 1
    assert found["secureafl_staleness_sum",] == 17
    assert found["secureafl_step_seconds_count",] == 3
    assert found["secureafl_round",] == 3
    assert found["secureafl_clients",] == 2
    assert found["secureafl_refused_share",] == pytest.approx(2 / 4)


def test_metrics_are_published_to_this_machine():
    port, stop = counted().publish(0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        assert values(page.read().decode())["secureafl_round",] == 3
    stop()


def test_logs_are_put_aside_and_the_oldest_dropped(tmp_path):
    path = tmp_path / "log.jsonl"
    log = Log(path)
    for number in range(7):
        log("arrival", round=number)
        rotate(path, held_open=False, largest=10)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"log.jsonl.{number}" for number in (1, 2, 3, 4)]
    assert [f'"round": {6 - n}' in (tmp_path / names[n]).read_text() for n in range(4)] == [
        True
    ] * 4
    rotate(path, held_open=False)
    log("arrival", round=7)
    rotate(path, held_open=False)
    assert path.exists(), "it is small"


def test_log_of_another_process_is_emptied_and_written_on(tmp_path):
    path = tmp_path / "superlink.log"
    with path.open("ab") as child:
        child.write(b"first\n" * 10)
        child.flush()
        rotate(path, held_open=True, largest=10)
        child.write(b"then\n")
    assert path.read_bytes() == b"then\n"
    assert (tmp_path / "superlink.log.1").read_bytes() == b"first\n" * 10
