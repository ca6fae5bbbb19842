import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from report.run_folders import EXPERIMENT, default_events, default_result


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
