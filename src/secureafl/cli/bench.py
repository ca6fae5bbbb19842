"""`secureafl bench`: measure the server step here, beside the paper's figures."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from secureafl.cli.options import DEVICE

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from rich.table import Table

    from secureafl.bench.findings import Ahead, Findings
    from secureafl.bench.results import Row
    from secureafl.runtime.devices import ComputeContext

EXAMPLE = "Example: secureafl bench --clients 50,300 --sizes 139960 --threads 2 --out runs/speed"
_MOST_CLIENTS, _MOST_PARAMETERS, _MOST_PAIRS, _MOST_THREADS = 10**6, 10**10, 100, 1024
_NOTES = """\
x floor: times the least it takes to read once what the method has of its clients, at the read \
bandwidth measured here. Faster than plain: than the same written straight down in torch. State: \
all tensors that survive an arrival. Zeno++ and AFLGuard are timed without the server's own \
training samples. round_flower also unpacks what clients sent."""

Kernels = Literal["auto", "reference", "cpu", "gpu"]


def bench(
    clients: Annotated[
        str,
        typer.Option(metavar="NUMBERS", help="Numbers of clients; the first is the main case's."),
    ] = "50,100,300,1000",
    sizes: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS", help="Numbers of parameters; the first is the main case's."
        ),
    ] = "139960,500000,1000000",
    buffers: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Numbers of pairs remembered per client.")
    ] = "1,3,5",
    device: Annotated[str, DEVICE] = "auto",
    kernels: Annotated[Kernels, typer.Option(help="Version of the hot operations.")] = "auto",
    threads: Annotated[
        int, typer.Option(metavar="NUMBER", help="For the CPU; 0: as many as torch likes.")
    ] = 0,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Folder for bench.json and bench.png; earlier ones are replaced."
        ),
    ] = Path("runs/bench"),
    quick: Annotated[bool, typer.Option("--quick", help="The main case and peers only.")] = False,
) -> None:
    """Time the server step beside the memory floor, plain torch, other libraries and the paper."""
    from secureafl.bench.cases import Scope, read_numbers
    from secureafl.bench.findings import Findings
    from secureafl.bench.results import open_folder

    scope = Scope(
        read_numbers("--clients", clients, _MOST_CLIENTS),
        read_numbers("--sizes", sizes, _MOST_PARAMETERS),
        read_numbers("--buffers", buffers, _MOST_PAIRS),
        quick,
    )
    chosen, compute = _prepare(device, kernels, threads)
    open_folder(out)
    # Being told to stop is an interrupt, so that what was measured is written down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with compute:
        findings = Findings(scope, chosen)
        try:
            _show_progress(findings.gather())
            finished = True
        except KeyboardInterrupt:
            finished = False
        _leave(findings, out, finished, kernels)
    if not finished:
        raise typer.Exit(130)


def _prepare(device: str, kernels: Kernels, threads: int) -> tuple[torch.device, ComputeContext]:
    """Where and how to measure; what does not go together is refused here."""
    import torch

    from secureafl.core.errors import require
    from secureafl.kernels.dispatch import version_for
    from secureafl.runtime.devices import ComputeContext, choose_device

    remedy = f"give 0 (automatic) to {_MOST_THREADS}"
    require(0 <= threads <= _MOST_THREADS, "--threads", threads, remedy)
    chosen = choose_device(device)
    compute = ComputeContext(threads, kernels, chosen)
    with compute:
        version_for(torch.empty(0, device=chosen))
    return chosen, compute


def _show_progress(steps: Iterable[Ahead]) -> None:
    """A bar on a terminal, plain lines elsewhere; on stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    shown = TextColumn("{task.description}")
    bars = console.is_terminal
    with Progress(*columns, shown, console=console, transient=True, disable=not bars) as progress:
        bar = progress.add_task("", total=None)
        for ahead in steps:
            done = ahead.number - 1
            progress.update(bar, completed=done, total=ahead.total, description=ahead.name)
            if not bars:
                console.print(f"{ahead.number}/{ahead.total} {ahead.name}", soft_wrap=True)


def _leave(findings: Findings, out: Path, finished: bool, kernels: Kernels) -> None:
    """Write and print what was measured, if anything was."""
    from secureafl.bench.figure import draw
    from secureafl.bench.results import FILE, PICTURE, write
    from secureafl.core.errors import RunError

    rows = findings.rows()
    if not rows and findings.skipped:
        job, reason = findings.skipped[0]
        raise RunError(f"nothing was measured; {job}: {reason}")
    if rows:
        command = shlex.join(["secureafl", *sys.argv[1:]])
        picture = draw(rows, findings.main, findings.hardware)
        write(out, findings.report(finished, command, kernels), picture)
        _print(findings, rows)
        print(f"figures: {out / FILE}\npicture: {out / PICTURE}")
    if not finished:
        left = f"what was measured is in {out}" if rows else "nothing was measured yet"
        print(f"stopped; {left}", file=sys.stderr)


def _print(findings: Findings, rows: Sequence[Row]) -> None:
    from rich.console import Console

    console = Console()
    if findings.bandwidth:
        read, copy = findings.bandwidth.read / 1e9, findings.bandwidth.copy / 1e9
        console.print(f"{findings.hardware}: reads {read:.1f} GB/s, copies {copy:.1f} GB/s")
    console.print(_table(rows, findings.device.type))
    console.print(_NOTES, style="dim")
    for job, reason in findings.skipped:
        console.print(f"skipped: {job}: {reason}", soft_wrap=True)
    _print_beside_paper(console, findings, rows)


def _table(rows: Sequence[Row], device: str) -> Table:
    table = _new_table("buffer", "ms", "x floor", "faster\nthan\nplain", "state\nMB")
    for row in rows:
        times = f" x {row.replicas}" if row.replicas > 1 else ""
        elsewhere = f" ({row.device})" if row.device != device else ""
        table.add_row(
            row.method + times + elsewhere,
            f"{row.clients:,} x {row.parameters:,}",
            str(row.buffer or "-"),
            _figure(row.milliseconds),
            _figure(row.times_floor),
            _figure(row.times_faster_than_plain),
            _figure(row.state_bytes / 1e6),
        )
    return table


def _print_beside_paper(console: Console, findings: Findings, rows: Sequence[Row]) -> None:
    from secureafl.bench import paper

    table = _new_table("ms\npaper", "ms\nhere", "MB\npaper", "MB\nhere")
    for row in rows:
        theirs = paper.figure_for(row)
        if not theirs or row.replicas > 1 or row.buffer not in (None, findings.main.buffer):
            continue
        memory = paper.MEMORY_BYTES / 1e6 if theirs == paper.WITH_MEMORY else None
        table.add_row(
            row.method,
            f"{theirs.clients:,} x {theirs.parameters:,}",
            _figure(theirs.milliseconds),
            _figure(row.milliseconds),
            _figure(memory),
            _figure(row.state_bytes / 1e6),
        )
    if table.row_count:
        console.print(table)
        console.print(f"paper: {paper.HARDWARE}; here: {findings.hardware}")


def _new_table(*headings: str) -> Table:
    """Return a table that fits a terminal of 80 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for heading in ("clients x\nparameters", *headings):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _figure(value: float | None) -> str:
    """Write a number with three significant digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:#.3g}"
