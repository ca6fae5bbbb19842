"""The same apps in Flower's simulation engine; needs its extra: pip install 'flwr[simulation]'."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from command import TESTS

from secureafl.core.events import EvaluationEvent
from secureafl.results import read_events, read_json
from secureafl.toml import write_toml

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs flwr[simulation]"),
    pytest.mark.timeout(3600),
]

ATTACKS = {
    "gaussian": {"kind": "gaussian"},
    "sign_flip": {"kind": "sign_flip", "factor": 10.0},
    "scaling": {"kind": "scaling"},
}


def learnt(folder, name, nodes, **changes):
    """The run folder of an experiment that the engine has played."""
    settings = {
        "seed": 1,
        "rounds": 1500,
        "clients": 20,
        "malicious": 4,
        "threads": 1,
        "device": "cpu",
        "task": {"kind": "fashion_mnist", "data_dir": "embedded"},
        "partition": {"kind": "iid"},
        "training": {"learning_rate": 0.02},
        "evaluation": {"every": 300, "late": 5},
        "deployment": {"answers_per_minute": 10**6, "poll_seconds": 0.02},
    }
    file, out = folder / f"{name}.toml", folder / name
    file.write_text(write_toml(settings | changes))
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "deployment.engine", file, out, nodes]
    subprocess.run(list(map(str, command)), env=env, check=True, capture_output=True)
    return out


def error_of(run):
    return read_json(run / "result.json")["metrics"]["ter"]["late_mean"]


def test_secure_afl_learns_with_four_of_twenty_malicious_and_async_sgd_does_not(tmp_path):
    peace = error_of(learnt(tmp_path, "none", 20, attack="none"))
    found = {"none": peace}
    for name, attack in ATTACKS.items():
        for defense in ("secure_afl", "async_sgd"):
            run = learnt(tmp_path, f"{name}-{defense}", 20, attack=attack, defense=defense)
            found[f"{name}, {defense}"] = error_of(run)
            print({name: round(error, 4) for name, error in found.items()}, flush=True)
    for name in ATTACKS:
        assert found[f"{name}, secure_afl"] < peace + 0.05
        assert found[f"{name}, async_sgd"] > peace + 0.05


def test_a_thousand_clients_cost_what_the_formula_says(tmp_path):
    clients, parameters, pairs = 1000, 139_960, 3
    run = learnt(
        tmp_path,
        "thousand",
        clients,
        clients=clients,
        malicious=0,
        rounds=2000,
        threads=2,
        evaluation={"every": 3000, "late": 1},
    )
    result = read_json(run / "result.json")
    formula = clients * (2 + 2 * pairs) * parameters * 4
    lines = map(json.loads, (run / "server" / "log.jsonl").read_text().splitlines())
    arrivals = [line for line in lines if line["event"] == "arrival"]
    seconds = sorted(line["seconds"] for line in arrivals)
    middle = seconds[len(seconds) // 2]
    print(
        f"step {middle:.4f} s, peak {result['peak_memory_bytes'] / 2**30:.2f} GiB,"
        f" formula {formula / 2**30:.2f} GiB"
    )
    assert len(arrivals) == 2000
    assert len({line["client"] for line in arrivals}) == clients
    assert formula < result["peak_memory_bytes"] < 1.3 * formula + 2 * 2**30
    assert any(isinstance(event, EvaluationEvent) for event in read_events(run))
