"""The contents of run folders, written by hand so that these tests need no simulator."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

EXPERIMENT = """
seed = {seed}
rounds = {rounds}
clients = 4
[evaluation]
late = 2
[task]
kind = "fashion_mnist"
[defense]
kind = "{defense}"
alpha = {alpha}
[attack]
kind = "{attack}"
"""


def arrival(round: int, client: int = 0, **changes: Any) -> dict[str, Any]:
    malicious = changes.pop("malicious", client == 3)
    accepted = changes.pop("accepted", not malicious)
    return {
        "event": "arrival",
        "round": round,
        "client": client,
        "malicious": malicious,
        "staleness": 0,
        "accepted": accepted,
        "stepped": True,
        "reason": "" if accepted else "lipschitz",
        "scores": {"lipschitz": 100.0 if malicious else 1.0 + round, "threshold": 50.0},
    } | changes


def evaluation(round: int, **metrics: float | None) -> dict[str, Any]:
    return {"event": "evaluation", "round": round, "metrics": metrics}


def default_events() -> list[dict[str, Any]]:
    middle = [arrival(t, t % 4) for t in range(8)]
    return [evaluation(0, ter=0.9), *middle, evaluation(7, ter=0.3), evaluation(8, ter=0.2)]


def default_result(**metrics: float) -> dict[str, Any]:
    figures = {name: {"last": x, "late_mean": x, "late_std": 0.01} for name, x in metrics.items()}
    shares = {"honest": 1.0, "malicious": 0.0}
    uploads = {name: {"accepted": 1, "received": 1, "share": x} for name, x in shares.items()}
    return {"metrics": figures, "uploads": uploads, "refused": {}, "rounds_per_second": 12.5}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(
        name: str = "run",
        *,
        events: Sequence[dict[str, Any]] | None = None,
        result: dict[str, Any] | None = None,
        finished: bool = True,
        **settings: Any,
    ) -> Path:
        told = {"seed": 1, "rounds": 8, "defense": "secure_afl", "attack": "gaussian", "alpha": 0.8}
        path = tmp_path / "runs" / name
        path.mkdir(parents=True)
        (path / "experiment.toml").write_text(EXPERIMENT.format(**told | settings))
        sessions = [{"from_round": 0, "torch": "2.13.0", "machine": "aarch64"}]
        (path / "provenance.json").write_text(
            json.dumps({"seed": 1, "data": "embedded slice", "sessions": sessions})
        )
        lines = default_events() if events is None else events
        (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if finished:
            (path / "result.json").write_text(json.dumps(result or default_result(ter=0.25)))
        return path

    return make
