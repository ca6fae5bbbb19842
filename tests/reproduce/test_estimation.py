import json

import numpy as np
import pytest
import torch
from simulation import small

from secureafl.core.errors import RunError
from secureafl.core.random import numpy_generator
from secureafl.defenses.secure_afl import estimates
from secureafl.reproduce import estimation
from secureafl.reproduce.plan import Request
from secureafl.simulation.run import start_run
from secureafl.simulation.simulator import Simulation


def tiny(**changes):
    return small.tiny(defense="secure_afl", **changes)


@pytest.fixture
def often(monkeypatch):
    """The windows of the paper begin at round 200; here everything is due."""
    monkeypatch.setattr(estimation, "_due", lambda now: now % 4 == 0)


def test_error_is_the_distance_from_the_gradient_a_client_would_compute():
    simulation = Simulation(tiny(rounds=30))
    while simulation.round < 20:
        simulation.advance()
    found = estimation.measure(simulation)
    made, rng = simulation.experiment, numpy_generator(0, "estimation-20")
    guessed = estimates(made.defense, simulation.defense_state, simulation.weights)
    errors: dict[str, list[float]] = {"upload": [], "local": []}
    for client in np.flatnonzero(simulation.defense_state.memory.known):
        rows = simulation.shards.rows[client]
        for kind, chosen in (("upload", rng.choice(rows, 4)), ("local", rows)):
            truth = simulation.clients.gradient(simulation.weights, torch.from_numpy(chosen))
            errors[kind].append(float((guessed[client] - truth).norm() / truth.norm()))
    assert found["round"] == 20
    assert found["upload"] == pytest.approx(np.mean(errors["upload"]))
    assert found["local"] == pytest.approx(np.mean(errors["local"]), rel=1e-4)


def test_error_of_the_aggregate_is_that_of_the_medians_over_honest_clients():
    simulation = Simulation(tiny(rounds=30, malicious=1, attack="sign_flip"))
    while simulation.round < 20:
        simulation.advance()
    found = estimation.measure(simulation)
    state, weights = simulation.defense_state, simulation.weights
    honest = np.flatnonzero(state.memory.known.numpy() & ~simulation.malicious)
    local = [
        simulation.clients.gradient(weights, torch.from_numpy(simulation.shards.rows[k])).numpy()
        for k in honest
    ]
    guessed = estimates(simulation.experiment.defense, state, weights).numpy()[honest]
    truth, wrong = np.median(local, axis=0), np.median(guessed, axis=0) - np.median(local, axis=0)
    error = np.linalg.norm(wrong) / np.linalg.norm(truth)
    assert found["local_aggregate"] == pytest.approx(error, rel=1e-4)
    assert found["local_aggregate"] != found["local"]


def test_measuring_changes_nothing_of_the_run(tmp_path, often):
    plain = list(start_run(tiny(), tmp_path / "plain", 60.0))
    measured = list(estimation.run_measured(tiny(), tmp_path / "measured", 60.0))
    assert plain == measured
    lines = (tmp_path / "measured" / estimation.ERRORS).read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [4, 8, 12]


def test_interrupted_run_ends_with_the_same_errors(tmp_path, often):
    list(estimation.run_measured(tiny(), tmp_path / "whole", 60.0))
    events = estimation.run_measured(tiny(), tmp_path / "cut", 60.0)
    for _ in range(7):
        next(events)
    events.close()
    file = tmp_path / "cut" / estimation.ERRORS
    file.write_text(file.read_text() + '{"round": 9, "upl')  # killed while it wrote
    list(estimation.run_measured(tiny(), tmp_path / "cut", 60.0))
    assert file.read_text() == (tmp_path / "whole" / estimation.ERRORS).read_text()


def test_page_averages_each_window_over_its_rounds(tmp_path):
    for seed, shift in ((0, 0.0), (1, 0.2)):
        run = tmp_path / f"seed{seed}"
        run.mkdir()
        lines = [(200, 0.5), (280, 0.7), (300, 1.0), (900, 0.4)]
        rows = [{"round": r, "upload": e + shift, "local": None} for r, e in lines]
        (run / "estimation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (run / "result.json").write_text("{}")
        (run / "provenance.json").write_text("{}")
    brief = estimation.estimation_brief(Request("estimation-error", seeds="0-1"), tmp_path)
    cells = brief.sheets[0].cells
    first = cells["an upload", "200-300"]
    assert first.figures["error"] == pytest.approx((0.7, 0.2 / 2**0.5))
    assert (first.paper, first.comparison, first.finished) == ({"error": 0.81}, "better", 2)
    assert cells["an upload", "700-end"].figures["error"].mean == pytest.approx(0.5)
    assert cells["an upload", "400-500"].comparison == "missing"
    assert cells["the whole local gradient", "200-300"].comparison == "worse", "it diverged"
    assert brief.sheets[0].rows == ["an upload", "the whole local gradient"], "older runs"


@pytest.mark.parametrize(
    "line", [b"{", b"\xff", b"[" * 100_000, b"[1]", b"{}", b'{"round": 20, "upload": "0.5"}']
)
def test_damaged_errors_are_named_with_a_remedy(tmp_path, line):
    run = tmp_path / "seed0"
    run.mkdir()
    (run / "result.json").write_text("{}")
    (run / "estimation.jsonl").write_bytes(b'{"round": 20, "upload": 0.5}\n' + line + b"\n")
    with pytest.raises(RunError, match=r"estimation\.jsonl: .*; delete the run"):
        estimation.estimation_brief(Request("estimation-error", seeds="0"), tmp_path)
