"""What `secureafl serve` keeps running: Flower's SuperLink and SuperExec, and our ServerApp.

Each may be killed at any moment and is started again. The SuperLink has its database and the
ServerApp its run folder, so nothing that was applied is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable
from io import BufferedWriter
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from secureafl.core.errors import ConfigError, LockedError, RunError
from secureafl.deployment.app_folder import write_app
from secureafl.deployment.coordinator import Coordinator
from secureafl.deployment.disk import MEGABYTE, find_problem, free_bytes, note_problem
from secureafl.deployment.guard import RUN
from secureafl.deployment.keys import (
    CA,
    CERTIFICATE,
    KEYS,
    SERVER_KEY,
    certificate_fits,
    load_certificate,
)
from secureafl.deployment.launcher import CONNECTION, AppLauncher
from secureafl.deployment.listening import OWN, numeric_host, require_free
from secureafl.deployment.liveness import APP, DATABASE, LOG, STOP, hold_run, read_liveness
from secureafl.deployment.logs import Log, rotate
from secureafl.deployment.members import MemberList, connect
from secureafl.deployment.monitor import Health, Monitor
from secureafl.deployment.options import TABLE, Options
from secureafl.deployment.processes import (
    end_leftovers,
    environment,
    is_alive,
    listens,
    require_safe,
    split_address,
    start,
    stop,
)
from secureafl.deployment.recovery import recover
from secureafl.deployment.roster import read_roster
from secureafl.deployment.status import ASK_SECONDS
from secureafl.experiment import Experiment, to_mapping
from secureafl.runs.folder import RunFolder, require_kind
from secureafl.runs.layout import EXPERIMENT, RESULT
from secureafl.runtime.records import adopt_settings, require_same
from secureafl.toml import write_toml

_STOP_SECONDS = 40.0  # until a ServerApp that was asked to stop has ended itself
_LEAVING_SECONDS = 30.0  # that a ServerApp of a dead `serve` may take to end
_SILENT_SECONDS = 120.0  # after which a process that should show itself is taken to hang
_GOODBYE_SECONDS = ASK_SECONDS + 2.0  # in which every client has asked once
_SOON_SECONDS = 30 * 86400.0
_PROCESSES = ("superlink", "superexec")


class Address(NamedTuple):
    """Where the server listens, and how."""

    host: str  # a number
    port: int
    certificates: Path | None  # folder of `secureafl keys ca`

    @property
    def own(self) -> str:
        """How this machine's own processes reach it."""
        return f"{OWN}:{self.port}"


def make_address(address: str, certificates: Path | None, insecure: bool) -> Address:
    """The address, if it is safe or said to be unsafe."""
    named, port = split_address(address)
    remedy = "give --certificates (see 'secureafl keys ca')"
    require_safe(address, certificates is not None, insecure, remedy)
    host = numeric_host(named)
    for name in (CA, CERTIFICATE, SERVER_KEY) if certificates else ():
        assert certificates is not None
        if not (certificates / name).is_file():
            raise ConfigError(f"--certificates {certificates}: no {name}; see 'secureafl keys ca'")
    return Address(host, port, certificates)


class Service:
    """The processes of one run."""

    def __init__(
        self,
        experiment: Experiment,
        options: Options,
        out: Path,
        address: Address,
        accept_loss: bool = False,
    ) -> None:
        """Make the run folder, or find the one of this experiment; nothing is started yet."""
        self.out, self._address = out.absolute(), address
        self._home, self._options = self.out / APP.parent, options
        self._file = self._home / EXPERIMENT
        self._env = {**environment(self._home / "flower"), RUN: str(self.out)}
        self._log = Log(self.out / LOG)
        self._link: subprocess.Popen[bytes] | None = None
        self._exec: subprocess.Popen[bytes] | None = None
        self._app = AppLauncher(self.out, self._file, self._env, self._log)
        self._restarts = dict.fromkeys(_PROCESSES, 0)
        self._problem, self._turned, self._ends_soon = "", time.monotonic(), False
        self._certificate: x509.Certificate | None = None  # that the SuperLink has
        self._lock = _prepare(experiment, self.out, address, accept_loss)
        try:
            self._write_files(experiment)
            port = options.metrics_port
            self._monitor = Monitor(self.examine, port) if port else None
            self._members = self._member_list()
        except BaseException:
            self._lock.close()
            raise

    def _write_files(self, experiment: Experiment) -> None:
        """What Flower's processes read, and a place for problems while there is room for it."""
        values = {**to_mapping(experiment), TABLE: dataclasses.asdict(self._options)}
        try:
            (self._home / "flower").mkdir(exist_ok=True)
            (self.out / KEYS).mkdir(exist_ok=True)
            (self.out / STOP).unlink(missing_ok=True)
            if (self.out / DATABASE).exists():
                (self.out / DATABASE).chmod(0o600)  # it holds updates
            write_app(self.out / APP)
            self._file.write_text(write_toml(values), encoding="utf-8")
            (self._home / "flower" / "config.toml").write_text(self._connection())
        except OSError as error:
            raise RunError(f"{self.out}: cannot be written ({error.strerror})") from None
        note_problem(self.out, "")

    def _member_list(self) -> MemberList | None:
        """Who may join; None where anybody may."""
        folder = self._address.certificates
        if folder is None:
            return None
        return MemberList(connect(self._address.own, folder / CA), self.out, self._say)

    def _say(self, line: str, event: str = "keys") -> None:
        print(line, file=sys.stderr, flush=True)
        self._log(event, said=line)

    def _connection(self) -> str:
        folder = self._address.certificates
        safe = f'root-certificates = "{(folder / CA).absolute()}"' if folder else "insecure = true"
        return (
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "{self._address.own}"\n{safe}\n'
        )

    @property
    def finished(self) -> bool:
        """Whether the result is there."""
        return (self.out / RESULT).is_file()

    def turn(self) -> None:
        """Start whatever does not run."""
        self._turned = time.monotonic()
        self._check_disk()
        self._rotate_logs()
        self._check_certificate()
        self._link = self._keep_running("superlink", self._link, self._superlink)
        if not listens(self._address.port):
            return
        self._exec = self._keep_running("superexec", self._exec, self._superexec)
        if self._members is not None:
            self._members.sync()
        self._app.turn(may_start=not self._problem)  # with one it would end at once

    def _keep_running(
        self, name: str, process: subprocess.Popen[bytes] | None, command: Callable[[], list[str]]
    ) -> subprocess.Popen[bytes] | None:
        running = process is not None and process.poll() is None
        if running or self._problem:  # without room for its log it cannot be started
            return process
        self._restarts[name] += process is not None
        return start(command(), self._home / f"{name}.log", self._env)

    def _rotate_logs(self) -> None:
        rotate(self.out / LOG, held_open=False)
        for path in self._home.glob("*.log"):
            rotate(path, held_open=True)

    def _check_disk(self) -> None:
        """Say at once, and everywhere, that the run cannot be written; and when it can again."""
        found = find_problem(self.out, self._options.min_free_mb * MEGABYTE)
        if bool(found) != bool(self._problem):
            self._say(found or f"{self.out}: can be written again", "disk")
        if found != self._problem:
            note_problem(self.out, found)
        self._problem = found

    def _check_certificate(self) -> None:
        """Start the SuperLink again when its certificate was replaced; say when it ends soon."""
        folder = self._address.certificates
        if folder is None or not certificate_fits(folder):
            return
        certificate = load_certificate(folder / CERTIFICATE)
        if self._certificate not in (None, certificate):
            self._say("certificate: replaced, so the SuperLink is started again", "certificate")
            stop(self._link)
        soon = self._ends_soon and certificate == self._certificate
        self._certificate = certificate
        self._ends_soon = self._certificate_seconds() < _SOON_SECONDS
        if self._ends_soon and not soon:
            ends = certificate.not_valid_after_utc
            said = f"certificate: ends on {ends:%d %B %Y}; renew it with 'secureafl keys renew'"
            self._say(said, "certificate")

    def _certificate_seconds(self) -> float:
        assert self._certificate is not None
        return self._certificate.not_valid_after_utc.timestamp() - time.time()

    def examine(self) -> Health:
        """How the service does."""
        app, now = read_liveness(self.out), time.time()
        alive = app.attempt == self._app.attempt and is_alive(app.process)
        silent, busy = now - app.seen, time.monotonic() - self._turned
        problems = [self._problem] if self._problem else []
        if self._link is None or self._link.poll() is not None:
            problems.append("the SuperLink does not run")
        if not alive:
            problems.append("no server app is at work")
        elif silent > _SILENT_SECONDS:
            problems.append(f"the server app has not shown itself for {silent:.0f} seconds")
        if busy > _SILENT_SECONDS:
            problems.append(f"'secureafl serve' itself has been busy for {busy:.0f} seconds")
        return Health(
            problems=problems,
            round=app.round,
            server_app_alive=alive,
            heartbeat_age=silent if app.seen else None,
            arrival_age=now - app.arrived if app.arrived else None,
            disk_free_bytes=free_bytes(self.out),
            restarts={**self._restarts, "server_app": self._app.restarts},
            certificate_seconds=self._certificate_seconds() if self._certificate else None,
            app_port=app.metrics_port if alive else 0,
        )

    def _superlink(self) -> list[str]:
        guarded = [sys.executable, "-m", "secureafl.deployment.guard"]
        words = ["--isolation", "process", "--disable-runtime-dependency-installation"]
        words += ["--database", str(self.out / DATABASE)]
        words += ["--host", self._address.host, "--port", str(self._address.port)]
        folder = self._address.certificates
        if folder is None:
            return [*guarded, *words, "--insecure"]
        words += ["--enable-supernode-auth", "--ssl-ca-certfile", str(folder / CA)]
        words += ["--ssl-certfile", str(folder / CERTIFICATE)]
        return [*guarded, *words, "--ssl-keyfile", str(folder / SERVER_KEY)]

    def _superexec(self) -> list[str]:
        folder = self._address.certificates
        safe = ["--root-certificates", str(folder / CA)] if folder else ["--insecure"]
        return ["flower-superexec", "--runtime-api-address", self._address.own, *safe]

    def say_goodbye(self) -> None:
        """Stay a little after the end, so that clients who ask are told of it."""
        found = read_roster(self.out)
        if found and any(client.here for client in found.clients):
            time.sleep(_GOODBYE_SECONDS)

    def stop(self) -> None:
        """Let the ServerApp finish the step in hand and leave, then end everything."""
        with contextlib.suppress(OSError):  # without it the ServerApp ends a little later
            (self.out / STOP).touch()
        app, until = read_liveness(self.out), time.monotonic() + _STOP_SECONDS
        ours = app.attempt == self._app.attempt
        while ours and is_alive(app.process) and time.monotonic() < until:
            time.sleep(0.2)
        stop(self._exec)
        stop(self._link)
        end_leftovers(self._home / "flower")
        (self.out / STOP).unlink(missing_ok=True)
        if self._monitor is not None:
            self._monitor.close()
        self._lock.close()


def _prepare(
    experiment: Experiment, out: Path, address: Address, accept_loss: bool
) -> BufferedWriter:
    """The run's lock; its folder is made, or rid of what a `serve` that was killed left there."""
    if not (out / EXPERIMENT).is_file():
        require_free(address.host, address.port)
        Coordinator(experiment).create(out)  # loads the task: a fault shows here, not later
        return hold_run(out)
    require_kind(out, deployed=True)
    require_same(experiment, out)
    lock = hold_run(out)
    try:
        end_leftovers(out / APP.parent / "flower")
        _open_run(out).close()
        require_free(address.host, address.port)
        _recover(experiment, out, accept_loss)
    except Exception:
        lock.close()
        raise
    return lock


def _open_run(out: Path) -> RunFolder:
    """The run's folder, once no ServerApp of a dead `serve` writes it any more.

    One that is just ending shows no environment, so it was not found, but it holds the folder
    until the last of its memory is given back.
    """
    until = time.monotonic() + _LEAVING_SECONDS
    while True:
        try:
            return RunFolder(out, deployed=True)
        except LockedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _recover(experiment: Experiment, out: Path, accept_loss: bool) -> None:
    """Tell here, not in the ServerApp's log, what is damaged."""
    if accept_loss:
        server = Coordinator(experiment)
        server.open(out, accept_loss=True)
        server.close()  # with a checkpoint of what is left
        return
    folder = RunFolder(out, deployed=True)
    try:
        for line in recover(folder).notes:
            print(f"{out}: {line}; what was before it leads to the same state", file=sys.stderr)
        for name, value in adopt_settings(folder, experiment).items():
            said = f"was begun by a version without the setting {name}, and goes on with {value!r}"
            print(f"{out}: {said}", file=sys.stderr)
    finally:
        folder.close()
