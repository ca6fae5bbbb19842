"""The error of SecureAFL's estimates of client updates.

Beside the run, every some rounds: for each known honest client k the estimate g_hat_k at the
current model, against two truths at the same model: the gradient of a fresh batch, which is what
the client would upload, and the gradient of all its samples, which the paper's analysis is
about. The paper does not say which of the two it measured, nor whether its error is a client's or
that of the aggregate, whose symbol it has: so the same rule over all estimates is held against it
over all true gradients too. The run itself is untouched.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from secureafl.core.errors import RunError
from secureafl.core.events import ArrivalEvent, Event
from secureafl.core.random import numpy_generator
from secureafl.defenses.secure_afl import SecureAfl, estimates
from secureafl.paper.tables import Window, estimation_error
from secureafl.report.artefact import Brief
from secureafl.report.cells import Cell, Sheet, spread
from secureafl.reproduce.plan import Request, grid_for, seed_note, title_of, warnings_of
from secureafl.runs.layout import RESULT
from secureafl.simulation.run import open_run

if TYPE_CHECKING:
    from secureafl.experiment import Experiment
    from secureafl.simulation.simulator import Simulation

ERRORS = "estimation.jsonl"
TRUTHS = {
    "upload": "an upload",
    "local": "the whole local gradient",
    "upload_aggregate": "the aggregate of uploads",
    "local_aggregate": "the aggregate of whole local gradients",
}
_METRIC = "error"
_OFTEN, _SELDOM = 20, 200  # rounds between two measurements, inside the windows and after them
_CHUNK = 1000  # samples at a time
_AGGREGATE_NOTE = (
    "Nor does it say whether the error is a client's, of which the mean stands here, or that of "
    "the aggregate of all clients: its symbol has no client."
)


def run_measured(experiment: Experiment, path: Path, checkpoint_seconds: float) -> Iterator[Event]:
    """Run, or resume, in the folder `path`, and write the errors to its `estimation.jsonl`."""
    recording = open_run(experiment, path, checkpoint_seconds)
    simulation = recording.simulation
    kept = [line for line in _read(path) if line["round"] <= simulation.round]
    (path / ERRORS).write_text("".join(json.dumps(line) + "\n" for line in kept))
    for event in recording:
        if isinstance(event, ArrivalEvent) and _due(event.round + 1):
            with (path / ERRORS).open("a") as file, simulation.compute:
                file.write(json.dumps(measure(simulation)) + "\n")
        yield event


def measure(simulation: Simulation) -> dict[str, float | None]:
    """The mean relative error over honest clients, and that of their aggregate, for both truths."""
    _settle(simulation)
    made, weights = simulation.experiment, simulation.weights
    assert isinstance(made.defense, SecureAfl)
    state = simulation.defense_state
    estimated = estimates(made.defense, state, weights)
    known = state.memory.known.cpu().numpy() & ~simulation.malicious
    rng = numpy_generator(made.seed, f"estimation-{simulation.round}")
    uploads, local = torch.zeros_like(estimated), torch.zeros_like(estimated)
    for client in np.flatnonzero(known):
        rows = simulation.shards.rows[client]
        batch = rng.choice(rows, made.training.batch_size)
        uploads[client], local[client] = _gradient(simulation, batch), _gradient(simulation, rows)
    errors = _errors(made.defense, estimated, {"upload": uploads, "local": local}, known)
    _settle(simulation)
    return {"round": simulation.round, **{truth: errors[truth] for truth in TRUTHS}}


def estimation_brief(request: Request, out: Path) -> Brief:
    """Describe the page of these runs."""
    grid = grid_for(request)
    runs = [out / name for name in grid.places()]
    done = [_read(run) for run in runs if (run / RESULT).is_file()]
    windows, measured = estimation_error(), _measured(done)
    cells = {
        (TRUTHS[truth], _name(window)): _cell(done, truth, window, len(runs))
        for truth in measured
        for window in windows
    }
    rows, columns = [TRUTHS[truth] for truth in measured], [_name(window) for window in windows]
    return Brief(
        title=title_of(request),
        command=request.command,
        warnings=warnings_of(request, runs),
        notes=[
            f"Measured every {_OFTEN} rounds, from round {windows[-1].first} on every {_SELDOM}; "
            "mean over clients, then over the rounds of a window. No attack.",
            "The paper does not say whether its true update is an upload (a batch's gradient) or "
            "the whole local gradient: both stand here beside its one figure.",
            *[_AGGREGATE_NOTE] * ("upload_aggregate" in measured),
            seed_note(grid),
        ],
        seeds=grid.axes["seed"],
        row_name="Relative error against",
        column_name="rounds",
        sheets=[Sheet(request.task, rows, columns, cells)],
        ours=rows,
        curves=True,
        runs=runs,
    )


def _errors(
    defense: SecureAfl, estimated: Tensor, truths: Mapping[str, Tensor], known: np.ndarray
) -> dict[str, float | None]:
    """The errors against each truth, client by client and of the aggregate."""
    found: dict[str, float | None] = {}
    clients, rule = np.flatnonzero(known), defense.aggregator
    present = torch.from_numpy(known).to(estimated.device)
    for truth, rows in truths.items():
        found[truth] = _mean([_relative(estimated[k], rows[k]) for k in clients])
        both = [rule.aggregate(rule.init(len(v), v[0]), v, present)[0] for v in (estimated, rows)]
        found[f"{truth}_aggregate"] = _mean([_relative(*both)])
    return found


def _measured(done: Iterable[list[dict[str, Any]]]) -> list[str]:
    """The truths that these runs were held against: those of older ones are fewer."""
    there = {name for lines in done for line in lines for name in line}
    return [truth for truth in TRUTHS if truth in there] or list(TRUTHS)


def _due(now: int) -> bool:
    windows = estimation_error()
    every = _OFTEN if now < windows[-1].first else _SELDOM
    return now >= windows[0].first and now % every == 0


def _settle(simulation: Simulation) -> None:
    """Wait for the GPU: a run computes on a stream of its own."""
    if simulation.device.type == "cuda":
        torch.cuda.synchronize(simulation.device)


def _gradient(simulation: Simulation, rows: np.ndarray) -> Tensor:
    """Return the mean gradient of all these samples at the current model."""
    given = torch.from_numpy(rows).to(simulation.device)
    parts = [
        len(part) / len(given) * simulation.clients.gradient(simulation.weights, part)
        for part in given.split(_CHUNK)
    ]
    return torch.stack(parts).sum(dim=0)


def _relative(estimated: Tensor, truth: Tensor) -> float:
    return float((estimated - truth).norm() / truth.norm())


def _mean(errors: Sequence[float]) -> float | None:
    mean = statistics.fmean(errors) if errors else math.nan
    return mean if math.isfinite(mean) else None  # JSON has no NaN


def _read(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a run's errors."""
    if not (path / ERRORS).exists():
        return []
    try:
        lines = (path / ERRORS).read_bytes().splitlines(keepends=True)
        return [_errors_in(line) for line in lines if line.endswith(b"\n")]
    except (OSError, ValueError, RecursionError) as error:
        remedy = "delete the run, and it is made again"
        raise RunError(f"{path / ERRORS}: cannot be read ({error}); {remedy}") from error


def _errors_in(line: bytes) -> dict[str, Any]:
    found = json.loads(line)
    numbers = isinstance(found, dict) and all(
        isinstance(value, int | float | None) for value in found.values()
    )
    if numbers and isinstance(found.get("round"), int):
        return found
    raise ValueError(f"no round and numbers in {line[:40]!r}")


def _cell(done: Iterable[list[dict[str, Any]]], truth: str, window: Window, planned: int) -> Cell:
    means = [_window_mean(lines, truth, window) for lines in done]
    known = [mean for mean in means if mean is not None]
    figures = {_METRIC: spread(known)} if known else {}
    return Cell(figures, {_METRIC: window.error}, len(known), planned)


def _window_mean(lines: Iterable[Mapping[str, Any]], truth: str, window: Window) -> float | None:
    """None without a measurement in the window; NaN if one of them diverged."""
    end = window.end or math.inf
    values = [
        line[truth] for line in lines if window.first <= line["round"] < end and truth in line
    ]
    return statistics.fmean(math.nan if v is None else v for v in values) if values else None


def _name(window: Window) -> str:
    return f"{window.first}-{window.end or 'end'}"
