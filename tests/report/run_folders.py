"""The contents of run folders, written by hand so that these tests need no simulator."""

from typing import Any

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
