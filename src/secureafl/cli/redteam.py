"""`secureafl redteam`: search for the attack that harms a defence most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from secureafl.cli.given import settings_given, words_of
from secureafl.cli.options import DEVICE, CheckpointSeconds, Engine, Workers
from secureafl.cli.stopping import stoppable
from secureafl.core.errors import ConfigError, RunError, SecureAflError
from secureafl.library.shipped import find_file

if TYPE_CHECKING:
    from secureafl.experiment import Experiment
    from secureafl.redteam.plan import Against, Plan

EXAMPLE = (
    "Example: secureafl redteam trust_clipping --malicious 0.2 --budget 200, "
    "or: secureafl redteam my_defense:NormBound --fast, "
    "or several side by side: secureafl redteam norm_clipping,kardam --malicious 0.2,0.4"
)


def redteam(
    defense: Annotated[
        str,
        typer.Argument(
            metavar="DEFENSE",
            help="Defence to attack, or module:Class; several with commas between: a search each.",
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(help="Experiment to attack; without one, the paper's setting."),
    ] = None,
    malicious: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Share of malicious clients, up to 0.5, or how many; else the file's, or 0.2. "
            "Several with commas between: a search each.",
        ),
    ] = None,
    budget: Annotated[
        int, typer.Option(metavar="NUMBER", help="Attacks to try, each in a short run.")
    ] = 200,
    against: Annotated[
        str,
        typer.Option(
            metavar="GOAL",
            help="What to make large: error, the test error, or asr, a backdoor's success rate; "
            "error,asr: a search each.",
        ),
    ] = "error",
    seeds: Annotated[
        str, typer.Option(metavar="SEEDS", help="Held-out seeds, for the score only; as 101-103.")
    ] = "101-103",
    search_seed: Annotated[int, typer.Option(metavar="SEED", help="Seed of the search.")] = 0,
    blind: Annotated[
        bool, typer.Option("--blind", help="Begin at random, not with the attacks as they come.")
    ] = False,
    start_from: Annotated[
        list[str] | None,
        typer.Option(
            "--start-from",
            metavar="ATTACK",
            help="Try this first: '{ kind = \"alie\", z = 1.5 }', a redteam.json, or a folder of "
            "these, of which those on the same defence are taken; several times for several.",
        ),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Scaled down: minutes on two cores, to see how it works.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(metavar="ROUNDS", help="Arrivals in a run of full length.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Number of clients.")
    ] = None,
    device: Annotated[str | None, DEVICE] = None,
    data_dir: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of the data set.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the experiment."),
    ] = None,
    engine: Engine = "local",
    workers: Workers = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the search, or of several; one begun before is gone on with.",
        ),
    ] = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no summary.")] = False,
) -> None:
    """Search for the attack that harms a defence most, and score it on seeds never searched on."""
    from secureafl.library.redteaming import search_all
    from secureafl.redteam.plan import Plan
    from secureafl.redteam.start import with_starts
    from secureafl.sweep.grid import parse_seeds

    plain = {"rounds": rounds, "clients": clients, "device": device}
    changes = settings_given(plain, data_dir, set_)
    defenses = words_of(defense, "defense")
    bases = _bases(defenses, _parse_shares(malicious), file, changes, fast)
    rest = (tuple(parse_seeds(seeds)), search_seed, blind)
    goals = _parse_goals(against)
    begun = [Plan(base, budget, goal, *rest) for goal in goals for base in bases]
    plans = _in_folders(with_starts(begun, start_from or ()), out, fast)
    with stoppable("the same command goes on"):
        failures = search_all(plans, engine, workers, checkpoint_seconds, quiet)
    failures += _write_pages(plans, quiet)
    if failures:
        raise RunError("; ".join(dict.fromkeys(failures)))


def _parse_shares(text: str | None) -> list[int | float | None]:
    """The malicious clients as given: `0.2`, or `0.2,0.4`, or how many; None: the file's own."""
    try:
        return [None] if text is None else [_parse_share(word.strip()) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"malicious '{text}': give a share as 0.2, or some as 0.2,0.4") from None


def _parse_share(word: str) -> int | float:
    """A share, or a number of clients, as it is in a file."""
    return int(word) if word.isdecimal() else float(word)


def _parse_goals(text: str) -> list[Against]:
    """What attacks are for, as given: `error`, `asr`, or `error,asr`."""
    from secureafl.redteam.plan import Against

    words, known = [word.strip() for word in text.split(",")], get_args(Against)
    for word in words:
        if word not in known:
            raise ConfigError(f"against {word!r}: choose {' or '.join(known)}, or error,asr")
    return cast("list[Against]", words)


def _bases(
    defenses: Sequence[str],
    shares: Sequence[int | float | None],
    file: Path | None,
    changes: Mapping[str, Any],
    fast: bool,
) -> list[Experiment]:
    """The experiments that are attacked; a file's settings of the same defence stay."""
    from secureafl.experiment import read_settings
    from secureafl.redteam.plan import fast_settings
    from secureafl.sweep.grid import cross

    values = read_settings(find_file(file)) if file else {}
    found: list[Experiment] = []
    for share in shares:
        wanted = {**changes} if share is None else {**changes, "malicious": share}
        bases = list(cross(values, defenses, ["none"], wanted).values())
        if fast:
            scaled_down = fast_settings(bases[0].task) | wanted
            bases = list(cross(values, defenses, ["none"], scaled_down).values())
        found += bases
    return found


def _in_folders(plans: Sequence[Plan], out: Path | None, fast: bool) -> dict[Path, Plan]:
    """The folder of each search: `out` itself if there is one search, else one in it."""
    from secureafl.library.redteaming import search_name

    if out and len(plans) == 1:
        return {out: plans[0]}
    found = {(out or Path("runs")) / search_name(plan, fast): plan for plan in plans}
    if len(found) < len(plans):
        raise ConfigError("two searches would have the same name; ask for one of them alone")
    return found


def _write_pages(folders: Iterable[Path], quiet: bool) -> list[str]:
    """The pages of all searches that have ended; returns why some cannot be made."""
    from secureafl.redteam.folder import OUTCOME

    failures: list[str] = []
    for folder in folders:
        if (folder / OUTCOME).is_file():
            try:
                _write_page(folder, quiet)
            except SecureAflError as error:
                failures.append(str(error))
    return failures


def _write_page(folder: Path, quiet: bool) -> None:
    from secureafl.redteam.folder import OUTCOME, TRIALS, WORST
    from secureafl.report.redteam import headline, read_outcome, write_redteam

    outcome = read_outcome(folder / OUTCOME, folder / TRIALS)
    page = write_redteam(outcome, folder, folder / "report")
    if not quiet:
        print(headline(outcome))
        print(f"again: secureafl run {folder / WORST}\npage:  {page}")
