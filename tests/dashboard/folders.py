"""Run folders of any size, written by hand."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EXPERIMENT = """
seed = 1
rounds = {rounds}
clients = {clients}
[task]
kind = "fashion_mnist"
[defense]
kind = "secure_afl"
[attack]
kind = "gaussian"
"""


def arrival(round: int, client: int = 0, **changes: Any) -> dict[str, Any]:
    accepted = changes.get("accepted", True)
    return {
        "event": "arrival",
        "round": round,
        "client": client,
        "malicious": False,
        "staleness": 2,
        "accepted": accepted,
        "stepped": True,
        "reason": "" if accepted else "lipschitz",
        "scores": {"lipschitz": 1.0, "threshold": 8.0, "distance": 0.5, "norm": 1.0},
    } | changes


def evaluation(round: int, **metrics: float | None) -> dict[str, Any]:
    return {"event": "evaluation", "round": round, "metrics": metrics}


def events(rounds: int, clients: int, seed: int = 1) -> Iterable[dict[str, Any]]:
    """A fifth of the clients, the first ones, upload noise and are refused mostly."""
    rng = random.Random(seed)
    for now in range(rounds):
        if now % 100 == 0:
            yield evaluation(now, ter=0.9 / (1 + now / 1000), asr=0.1)
        client = rng.randrange(clients)
        bad = client < clients // 5
        factor = rng.lognormvariate(4 if bad else 1, 0.5)
        scores = {"lipschitz": factor, "threshold": 8.0, "distance": factor / 3, "norm": factor}
        facts = {"malicious": bad, "accepted": factor < 8, "staleness": rng.randrange(11)}
        yield arrival(now, client, scores=scores, **facts)


def lines(found: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(event) + "\n" for event in found)


def write_run(path: Path, found: Iterable[dict[str, Any]], rounds: int, clients: int) -> Path:
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(EXPERIMENT.format(rounds=rounds, clients=clients))
    sessions = [{"from_round": 0, "torch": "2.13.0"}]
    (path / "provenance.json").write_text(json.dumps({"data": "by hand", "sessions": sessions}))
    (path / "events.jsonl").write_text(lines(found))
    moments = [(0.0, 1), (10.0, rounds // 2), (20.0, rounds)]
    (path / "pace.jsonl").write_text(
        lines({"opened": 1e9, "seconds": seconds, "rounds": done} for seconds, done in moments)
    )
    return path
