"""The command as a user starts it: a process of its own."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import secureafl
from secureafl.cli.app import main

TESTS = Path(__file__).parent
SOURCE = secureafl.__path__[0].removesuffix("secureafl")  # what is tested here, installed or not

TINY = """
rounds = 40
clients = 6
threads = 1

[task]
kind = "reference.tiny_task:TinyTask"

[training]
batch_size = 4

[evaluation]
every = 20
"""


def _heed_interrupts() -> None:
    # Where tests run in the background, shells have them ignored, and a process inherits that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Cli:
    """Starts `secureafl` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "tiny.toml").write_text(TINY)
        self.folder = folder
        places = os.pathsep.join([str(TESTS), SOURCE])
        self.environment = {**os.environ, "PYTHONPATH": places, "COLUMNS": "200"}

    def start(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "secureafl", *map(str, words)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_heed_interrupts,
            **options,
        )

    def __call__(self, *words: object) -> subprocess.CompletedProcess[str]:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def run_here(self, *words: str) -> tuple[object, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch("sys.argv", ["secureafl", *words]),
            mock.patch.dict(os.environ, {"COLUMNS": self.environment["COLUMNS"]}),
        ):
            try:
                main()
            except SystemExit as ended:
                return ended.code, out.getvalue(), err.getvalue()
        return 0, out.getvalue(), err.getvalue()

    def refused(self, *words: object) -> str:
        """Run a command that must fail, and return its one line of explanation.

        In this process: starting one, with torch, takes seconds.
        """
        code, out, err = self.run_here(*map(str, words))
        assert code != 0, out
        lines = err.strip().splitlines()
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
        return lines[0]
