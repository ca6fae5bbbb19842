"""`secureafl serve`, `join` and `keys`: asynchronous learning with real clients, on Flower."""

from __future__ import annotations

import importlib.util
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secureafl.cli.clients import EXAMPLE as CLIENTS_EXAMPLE
from secureafl.cli.clients import clients
from secureafl.core.errors import ConfigError
from secureafl.library.shipped import find_file

if TYPE_CHECKING:
    from secureafl.deployment.join import ClientService
    from secureafl.deployment.serve import Service
    from secureafl.deployment.status import Status

SERVE_EXAMPLE = (
    "Example: secureafl serve experiments/deploy.toml --out runs/real "
    "--address 0.0.0.0:8000 --certificates certificates"
)
JOIN_EXAMPLE = (
    "Example: secureafl join --server learn.example.org:8000 --ca ca.crt --key alice "
    "--data /srv/fashion-mnist"
)
BACKUP_EXAMPLE = "Example: secureafl backup runs/real copies/real"
_TURN_SECONDS = 0.5


class Protected(StrEnum):
    """The unit of a client's privacy."""

    example = "example"
    upload = "upload"


keys = typer.Typer(help="Keys of nodes: make, register, list, revoke. Certificates: make, renew.")

Run = Annotated[Path, typer.Option(metavar="RUN", help="Run folder of the server.")]


def serve(
    file: Annotated[
        Path, typer.Argument(help="Experiment file; \\[deployment] is for the server.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Run folder; one begun before is gone on with."),
    ] = None,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen.")
    ] = "127.0.0.1:8000",
    certificates: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of 'secureafl keys ca': TLS, and nodes need keys."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let anybody in, unencrypted, from anywhere.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on without rounds that can no longer be read."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Serve an experiment to real clients, through kills and restarts, to its end.

    Exit codes: 0 finished, 1 failed, 2 a wrong setting, 130 stopped (the same command goes on).
    """
    _require_flower()
    from secureafl.deployment.options import read_file
    from secureafl.deployment.serve import Service, make_address
    from secureafl.runs.layout import RESULT
    from secureafl.sweep.cells import stop_signals

    where = make_address(address, certificates, insecure)
    experiment, options = read_file(find_file(file))
    path = out or Path("runs") / file.stem
    if (path / RESULT).is_file():
        print(f"{path}: finished")
        return
    if experiment.clients < 3:
        few = f"clients = {experiment.clients}: among so few no defence can tell who is malicious"
        print(f"{few}; give 3 or more unless you trust them all", file=sys.stderr)
    service = Service(experiment, options, path, where, accept_loss)
    try:
        with stop_signals() as told:
            _watch(service, experiment.rounds, quiet, told)
            if service.finished and not told:
                service.say_goodbye()
    finally:
        service.stop()
    if not service.finished:
        print(f"stopped; go on with the same command, --out {path}", file=sys.stderr)
        raise typer.Exit(130)
    if not quiet:
        print(f"finished: {experiment.rounds:,} rounds", file=sys.stderr)
    print(f"run folder: {path}\nreport:     secureafl report {path}")


def _watch(service: Service, rounds: int, quiet: bool, told: list[int]) -> None:
    """Keep the service running and show its progress."""
    from secureafl.presentation.progress import make_display
    from secureafl.runs.events import last_events
    from secureafl.sweep.cells import Update
    from secureafl.sweep.tally import RunProgress

    name, progress = service.out.name, RunProgress()
    with make_display({name: rounds}, quiet) as display:
        while not told and not service.finished:
            service.turn()
            for event in last_events(service.out):
                progress = progress.after(event) if event.round >= progress.round else progress
            display.tell(Update(name, progress, "running"))
            time.sleep(_TURN_SECONDS)


def backup(
    run: Annotated[Path, typer.Argument(help="Run folder of a server, which may be at work.")],
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
) -> None:
    """Copy a served run; 'secureafl serve --out' with the copy goes on from there."""
    _require_flower()
    from secureafl.deployment.backup import back_up

    print(f"{to}: the run after {back_up(run, to)} rounds")


def join(
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the server listens, HOST:PORT.")
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="Own samples: a folder the task reads, or a file .npz with inputs and labels; "
            "'dealt': a share of the task's, for tests.",
        ),
    ] = "dealt",
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate of who vouches for it.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Own private key, see 'secureafl keys'.")
    ] = None,
    clip: Annotated[
        float,
        typer.Option(
            metavar="NORM", min=0, help="Cut what is protected to this norm; 0: as the server says."
        ),
    ] = 0.0,
    noise: Annotated[
        float,
        typer.Option(
            metavar="FACTOR", min=0, help="Noise added: standard deviation, in units of --clip."
        ),
    ] = 0.0,
    protect: Annotated[
        Protected, typer.Option(help="What is protected: one sample, or all of this client's.")
    ] = Protected.example,
    task: Annotated[
        str,
        typer.Option(
            metavar="MODULE:CLASS",
            help="The run's task, if it is not of the package; nothing else is imported.",
        ),
    ] = "",
    attack: Annotated[
        str,
        typer.Option(
            metavar="ATTACK", help="FOR TESTS: play this attack, and say so to the server."
        ),
    ] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of the attack: --set attack.factor=10"),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No encryption and no key, wherever the server is.")
    ] = False,
) -> None:
    """Take part with this machine's data until the run ends, through cuts and restarts."""
    _require_flower()
    from secureafl.deployment.join import ClientService
    from secureafl.deployment.processes import split_address
    from secureafl.deployment.worker import options_from
    from secureafl.sweep.cells import stop_signals

    split_address(server)  # a wrong one shows here, not in a node that is started again and again
    client_options: dict[str, Any] = {"data": _own_data(data), "task": _own_task(task)}
    client_options["attack"] = _attack(attack, set_ or [])
    if clip or noise:
        client_options["privacy"] = {"clip": clip, "noise": noise, "unit": protect.value}
    options_from(client_options)  # a wrong setting shows here, not in the worker
    member = ClientService(server, client_options, ca, key, insecure)
    try:
        with stop_signals() as told:
            _keep_joined(member, told)
    finally:
        member.stop()


def _keep_joined(member: ClientService, told: list[int]) -> None:
    """See that the client runs, and tell its user what the server says; until the run's end."""
    from secureafl.deployment.status import ASK_SECONDS, Status, Teller

    teller, asked = Teller(), 0.0
    joined = refused = 0  # starts that were told of
    finished = False
    while not told and not finished:
        member.turn()
        if joined < member.starts:
            joined = member.starts
            _say("joining" if joined == 1 else "joining again")
        refusal = member.refusal() if refused < joined else ""
        for line in member.complaints():
            _say(line)
        if refusal or time.monotonic() - asked > ASK_SECONDS:
            found, asked = member.status.ask(), time.monotonic()
            for line in teller.lines(found):
                _say(line)
            known = isinstance(found, Status)
            finished = known and found.finished
            if refusal:
                refused = joined
                _tell_refusal(refusal, found if known else None)
        time.sleep(_TURN_SECONDS)


def _tell_refusal(refusal: str, found: Status | None) -> None:
    """Say why a node was not let in, where the server has not said it."""
    if found is None:
        _say(f"not let in: {refusal}")
    elif not found.refused and not found.finished:
        _say("not let in yet: the server still counts the last connection, for about a minute")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _own_data(place: str) -> str:
    """The place of a client's data, if there is one; what is there is read by the worker."""
    from secureafl.deployment.trainer import DEALT

    if place != DEALT and not Path(place).expanduser().exists():
        raise ConfigError(f"--data {place}: no such folder or file; give one, or '{DEALT}'")
    return place


def _own_task(kind: str) -> str:
    """The class of a client's task, which can be imported; a fault shows here, not later."""
    from secureafl.settings import find_class

    if kind:
        find_class(kind, {}, "--task")
    return kind


def _attack(name: str, changes: list[str]) -> Any:
    from secureafl.experiment import with_settings
    from secureafl.toml import parse_value

    if not name:
        return None
    parsed = {}
    for item in changes:
        setting, equals, text = item.partition("=")
        if not equals or not setting.startswith("attack."):
            raise ConfigError(f"--set {item}: give attack.NAME=VALUE, such as attack.factor=10")
        parsed[setting] = parse_value(text)
    return with_settings({"attack": name}, parsed)["attack"]


@keys.command("make", epilog="Example: secureafl keys make alice")
def make(name: Annotated[Path, typer.Argument(help="File of the private key.")]) -> None:
    """Make a node's key: NAME is secret and stays, NAME.pub goes to the server."""
    _require_flower()
    from secureafl.deployment.keys import make_key

    print(make_key(name))


@keys.command("register", epilog="Example: secureafl keys register alice.pub --run runs/real")
def register(
    public: Annotated[Path, typer.Argument(metavar="FILE", help="Public key, a .pub file.")],
    run: Run,
) -> None:
    """Let a key's owner join a run, running or not."""
    _require_flower()
    from secureafl.deployment import keys as files

    print(files.register(public, run))


@keys.command("revoke", epilog="Example: secureafl keys revoke alice --run runs/real")
def revoke(
    name: Annotated[str, typer.Argument(help="Name it is registered under.")], run: Run
) -> None:
    """Put a key's owner out of a run; its slot is free for another client."""
    _require_flower()
    from secureafl.deployment import keys as files

    files.revoke(name, run)


@keys.command("list", epilog="Example: secureafl keys list --run runs/real")
def list_(run: Run) -> None:
    """Show whose keys are let in, and which client of the run each is."""
    _require_flower()
    from secureafl.deployment.nodes import describe_nodes
    from secureafl.runs.folder import require_kind

    require_kind(run, deployed=True)
    print("\n".join(describe_nodes(run)) or "nobody yet: 'secureafl serve' lets keys in")


@keys.command("ca", epilog="Example: secureafl keys ca certificates --host learn.example.org")
def ca(
    folder: Annotated[Path, typer.Argument(help="Folder to make.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Name or address clients use; may be repeated."),
    ] = None,
) -> None:
    """Make a certificate authority of one's own, and the server's certificate."""
    _require_flower()
    from secureafl.deployment.keys import make_certificates

    make_certificates(folder, host or [])
    print(f"{folder}: give ca.crt to the clients; ca.key signs, keep it away from the server")


@keys.command("renew", epilog="Example: secureafl keys renew certificates")
def renew(
    folder: Annotated[Path, typer.Argument(help="Folder of 'secureafl keys ca', with ca.key.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Other names or addresses than before."),
    ] = None,
) -> None:
    """Make another certificate of the server by the same authority; clients need nothing new."""
    _require_flower()
    from secureafl.deployment.keys import renew_certificate

    ends = renew_certificate(folder, host or [])
    print(f"{folder}: good until {ends:%d %B %Y}; a server that reads this folder takes it at once")


COMMANDS = (
    (serve, SERVE_EXAMPLE),
    (join, JOIN_EXAMPLE),
    (clients, CLIENTS_EXAMPLE),
    (backup, BACKUP_EXAMPLE),
)


def _require_flower() -> None:
    absent = [n for n in ("flwr", "prometheus_client") if importlib.util.find_spec(n) is None]
    if absent:
        raise ConfigError(f"{absent[0]} is not installed: pip install 'secureafl[deploy]'")
