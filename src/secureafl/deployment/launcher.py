"""Starts the ServerApp through Flower, and again whenever it has ended before the run has.

Every start is an attempt with a number of its own, which `serve` notes before it asks Flower for
it. Flower keeps what it was asked for through kills and may start an old attempt later: that one
sees that it was replaced, and leaves.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from secureafl.core.errors import RunError
from secureafl.core.files import put_file
from secureafl.deployment.liveness import APP, ATTEMPT, LOG, read_liveness
from secureafl.deployment.logs import Log
from secureafl.deployment.processes import end_leftovers, find_processes, is_alive

CONNECTION = "here"  # what Flower's settings call the connection to this server
_PROGRAM = "flwr-serverapp"  # Flower's, which runs the ServerApp
_START_SECONDS = 120.0  # until a ServerApp must have shown itself
_LAUNCH_SECONDS = 15.0  # until there must be a process of it; longer at each further start
_ANSWER_SECONDS = 60.0  # that Flower's command line may take
_MOST_FAILURES = 5  # in a row, without a round between


class AppLauncher:
    """Keeps one ServerApp at work on a run."""

    def __init__(self, out: Path, file: Path, env: Mapping[str, str], log: Log) -> None:
        """`file` is the experiment's, `env` that of Flower's programs."""
        self._out, self._file, self._env, self._log = out, file, env, log
        self._home = Path(env["FLWR_HOME"])
        self.attempt = "0"  # the last one; nobody has shown itself with this
        self.restarts = 0
        self._submitted = -_START_SECONDS
        self._starts = self._failures = 0  # in a row, without a round between
        self._round_then = -1

    def turn(self, may_start: bool) -> None:
        """Submit the run if no ServerApp is at work on it: none yet, or it was killed."""
        app = read_liveness(self._out)
        shown = app.attempt == self.attempt
        if shown and is_alive(app.process):
            if app.round > self._round_then:
                self._starts = self._failures = 0
            return
        failed = self._find_failure()
        if not may_start or (not shown and not failed and self._is_starting()):
            return
        self._count_failure(failed)
        self._starts, self._round_then = self._starts + 1, app.round
        self.restarts += self.attempt != "0"
        self._submit()

    def _is_starting(self) -> bool:
        """Whether the ServerApp that was submitted may still show itself."""
        waited = time.monotonic() - self._submitted
        if waited < min(_LAUNCH_SECONDS * self._starts, _START_SECONDS):
            return True
        visible = Path("/proc/self").exists()  # processes are, on this system
        there = not visible or find_processes(self._home, _PROGRAM)
        return bool(there) and waited < _START_SECONDS

    def _find_failure(self) -> str:
        """Why the last attempt has failed, as it said itself; one that was killed says nothing."""
        line = self._log.last("failed")
        return str(line["said"]) if line.get("attempt") == self.attempt else ""

    def _count_failure(self, why: str) -> None:
        """Give up after several; that it was killed is no reason to."""
        self._failures += bool(why)
        if why and self._failures >= _MOST_FAILURES:
            said = f"the server app ends at once ({why}); see {LOG} there"
            raise RunError(f"{self._out}: {said}")

    def _submit(self) -> None:
        end_leftovers(self._home, _PROGRAM)  # one that hangs
        attempt = str(time.time_ns())
        try:
            put_file(self._out / ATTEMPT, attempt.encode())
        except OSError:  # a full disk, which is told of elsewhere
            return
        self.attempt = attempt
        facts = {"experiment": self._file, "out": self._out, "attempt": attempt}
        given = " ".join(f'{name}="{value}"' for name, value in facts.items())
        answer = self._ask_flower("run", str(self._out / APP), CONNECTION, "--run-config", given)
        self._submitted = time.monotonic() if answer.get("success") else -_START_SECONDS

    def _ask_flower(self, *words: str) -> dict[str, str]:
        """What Flower's command line answers; nothing if it does not."""
        command, env = ["flwr", *words, "--format", "json"], dict(self._env)
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=_ANSWER_SECONDS
            )
            return json.loads(done.stdout[done.stdout.find("{") :])
        except (ValueError, subprocess.TimeoutExpired):
            return {}
