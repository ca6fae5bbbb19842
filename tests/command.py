"""The command as a user starts it: a process of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent

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


class Cli:
    """Starts `secureafl` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "tiny.toml").write_text(TINY)
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(TESTS), "COLUMNS": "200"}

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
            **options,
        )

    def __call__(self, *words: object) -> subprocess.CompletedProcess[str]:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def refused(self, *words: object) -> str:
        """Run a command that must fail, and return its one line of explanation."""
        done = self(*words)
        assert done.returncode != 0, done.stdout
        assert "Traceback" not in done.stderr
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith("error: ")
        return lines[0]
