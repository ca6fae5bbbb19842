"""Results to hold: what finished runs came to, as numbers, tables, figures and models."""

from __future__ import annotations

import base64
import functools
import html
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secureafl.core.errors import ConfigError, RunError
from secureafl.core.events import ArrivalEvent, Event
from secureafl.presentation.labels import Labels, as_faced, label_runs
from secureafl.runs.events import read_evaluations, read_events
from secureafl.runs.layout import EXPERIMENT, RESULT, is_deployed, read_json, require_run
from secureafl.runs.summary import flat_figures
from secureafl.toml import read_toml

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from secureafl.presentation.plotting import NotebookFigure
    from secureafl.runtime.trained_model import TrainedModel


class RunResult:
    """A finished run, as it is in its folder; also of runs that a command made.

    >>> import tempfile
    >>> samples, out = (torch.rand(20, 4), torch.arange(20) % 2), tempfile.mkdtemp() + "/mine"
    >>> _ = secureafl.fit(torch.nn.Linear(4, 2), samples, clients=2, rounds=4, out=out)
    >>> result = secureafl.RunResult(out)
    >>> result.name, result.metrics["ter"] <= 1, len(result.uploads)
    ('mine', True, 4)
    >>> [*result.history.columns]
    ['round', 'ter']
    """

    path: Path
    summary: dict[str, Any]  # the content of result.json
    settings: dict[str, Any]  # of experiment.toml

    def __init__(self, path: Path | str, module: nn.Module | None = None) -> None:
        """Read a run folder; `module` is the network of its model, if its task cannot make one."""
        self.path = Path(path)
        require_run(self.path)
        if not (self.path / RESULT).is_file():
            raise RunError(f"{path}: unfinished; go on with 'secureafl resume {path}'")
        self.summary = read_json(self.path / RESULT)
        self.settings = read_toml(self.path / EXPERIMENT)
        self._module = module

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.path.resolve().name

    @property
    def metrics(self) -> dict[str, float]:
        """The test metrics of the final model, the main one first; NaN where one is undefined."""
        return {name: _number(found["last"]) for name, found in self.summary["metrics"].items()}

    @property
    def labels(self) -> Labels:
        """The defence and the attack, in words."""
        (found,) = label_runs([self.faced])
        return found

    @property
    def faced(self) -> Mapping[str, Any]:
        """The settings, with the attack that was met: clients may have brought their own."""
        attacked = bool(self.summary.get("malicious_clients"))
        return as_faced(self.settings, attacked, is_deployed(self.path))

    def events(self) -> Iterator[Event]:
        """Everything that happened: arrivals, evaluations, forgotten clients."""
        return read_events(self.path)

    @functools.cached_property
    def history(self) -> pandas.DataFrame:
        """The test metrics over rounds, a row for each evaluation."""
        rows = [{"round": e.round, **e.metrics} for e in read_evaluations(self.path)]
        return import_pandas().DataFrame(rows)

    @functools.cached_property
    def uploads(self) -> pandas.DataFrame:
        """Every upload and the decision on it, with the scores of the defence in columns."""
        found = (event for event in self.events() if isinstance(event, ArrivalEvent))
        rows = [{**event._asdict(), **event.scores} for event in found]
        return import_pandas().DataFrame(rows).drop(columns="scores")

    @functools.cached_property
    def model(self) -> TrainedModel:
        """The trained model, ready for use: raw inputs in, outputs out."""
        from secureafl.runtime.trained_model import load_model

        return load_model(self.path, self._module)

    def plot(self, metric: str | None = None) -> NotebookFigure:
        """Draw a metric over rounds, the main one unless told; the figure can be saved."""
        return RunResults([self.path]).plot(metric)

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value:.3f}" for name, value in self.metrics.items())
        defence, attack = self.labels
        return f"<RunResult {self.path}: {figures}; {defence}, {attack}>"

    def _repr_html_(self) -> str:
        return RunResults([self.path])._repr_html_()


class RunResults(Sequence[RunResult]):
    """Several finished runs, in their order.

    >>> import tempfile
    >>> samples, out = (torch.rand(20, 4), torch.arange(20) % 2), tempfile.mkdtemp() + "/mine"
    >>> _ = secureafl.fit(torch.nn.Linear(4, 2), samples, clients=2, rounds=4, out=out)
    >>> results = secureafl.RunResults([out])
    >>> len(results), results["mine"].metrics == results[0].metrics
    (1, True)
    >>> [*results.table.columns][:4]
    ['run', 'defence', 'attack', 'seed']
    """

    def __init__(self, paths: Iterable[Path | str]) -> None:
        """Read the run folders."""
        self._runs = [RunResult(path) for path in paths]
        self._labels = label_runs([run.faced for run in self._runs])

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, which: Any) -> Any:
        """A run by its place or its name, or several by a slice."""
        if not isinstance(which, str):
            return self._runs[which]
        found = next((run for run in self._runs if run.name == which), None)
        if found is None:
            raise KeyError(f"{which}; there are {', '.join(run.name for run in self._runs)}")
        return found

    @property
    def table(self) -> pandas.DataFrame:
        """A row for each run: what it was, its metrics, and how many uploads were accepted."""
        return import_pandas().DataFrame(self._rows())

    def plot(self, metric: str | None = None) -> NotebookFigure:
        """Draw a metric over rounds: a line for each run, a panel for each attack."""
        ticker = import_optional("matplotlib.ticker", "plot", "matplotlib")
        from secureafl.presentation.plotting import NotebookFigure, our_style

        chosen = self._metric(metric)
        scenes = list(dict.fromkeys(label.scene for label in self._labels))
        with our_style():
            figure = NotebookFigure(figsize=(4.5 * len(scenes) + 1, 3.5), layout="constrained")
            axes = figure.subplots(1, len(scenes), sharey=True, squeeze=False)[0]
            for axis, scene in zip(axes, scenes, strict=True):
                self._draw(axis, scene, chosen)
                axis.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
            axes[0].set(ylabel=chosen.upper(), ylim=(min(0, axes[0].get_ylim()[0]), None))
            axes[-1].legend(loc="upper right")
        return figure

    def _draw(self, axis: Any, scene: str, metric: str) -> None:
        from secureafl.presentation.style import COLOURS

        variants = list(dict.fromkeys(label.variant for label in self._labels))
        axis.set_title(scene.replace("$", r"\$"), loc="left", fontsize=10, fontweight="bold")
        axis.set_xlabel("round")
        named: set[str] = set()  # seeds of one defence share a colour and one name
        for run, label in zip(self._runs, self._labels, strict=True):
            if label.scene != scene:
                continue
            points = [(e.round, _number(e.metrics.get(metric))) for e in read_evaluations(run.path)]
            colour = COLOURS[variants.index(label.variant) % len(COLOURS)]
            text = "_nolegend_" if label.variant in named else label.variant.replace("$", r"\$")
            axis.plot(*zip(*points, strict=True), color=colour, label=text, linewidth=1.6)
            named.add(label.variant)

    def _metric(self, wanted: str | None) -> str:
        known = list(dict.fromkeys(name for run in self._runs for name in run.metrics))
        if not known or (wanted is not None and wanted not in known):
            raise ConfigError(f"metric = {wanted!r}: choose one of {', '.join(known) or 'none'}")
        return wanted or known[0]

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for run, label in zip(self._runs, self._labels, strict=True):
            row = {"run": run.name, "defence": label.variant, "attack": label.scene}
            row |= {"seed": run.summary["seed"], "rounds": run.summary["rounds"]}
            row |= {name: _number(value) for name, value in flat_figures(run.summary).items()}
            rows.append(row)
        return rows

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._runs)) or "<RunResults: none>"

    def _repr_html_(self) -> str:
        return html_table(self._rows()) + html_picture(self.plot, "test metric over rounds")


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of named values as a table for a notebook."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row.get(name))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_picture(plot: Callable[[], NotebookFigure], alt: str) -> str:
    """A figure for a notebook; nothing where it cannot be drawn."""
    try:
        figure = plot()
    except ConfigError:
        return ""
    data = base64.b64encode(figure._repr_png_()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


def _cell(value: Any) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str("" if value is None else value)
    return html.escape(text)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def import_pandas() -> Any:
    """Pandas, or the remedy."""
    return import_optional("pandas", "tables", "'secureafl[store]'")


def import_optional(module: str, what: str, package: str) -> Any:
    """A module of an optional package, or the remedy."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise ConfigError(f"{what} need {name}: pip install {package}") from None
