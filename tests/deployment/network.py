"""A real network on 127.0.0.1: `serve` and some `join`, each with all its processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from command import TESTS

from secureafl.deployment.keys import make_certificates, make_key, register

TINY = "reference.tiny_task:TinyTask"
EXPERIMENT = """
rounds = {rounds}
clients = {clients}
threads = 1
device = "cpu"

[task]
kind = "{task}"

[training]
batch_size = 4
learning_rate = 0.1

[evaluation]
every = 1000
late = 1

[deployment]
deadline = {deadline}
{more}
"""


class Network:
    """Starts and stops everything; TLS and keys are always on."""

    def __init__(
        self, folder, rounds, clients=4, deadline=120.0, more="", task=TINY, experiment=EXPERIMENT
    ):
        self.folder, self.run, self.task = folder, folder / "run", task
        self.port = _free_port()
        facts = {"rounds": rounds, "clients": clients, "deadline": deadline, "task": task}
        (folder / "net.toml").write_text(experiment.format(more=more, **facts))
        faster = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", "OMP_NUM_THREADS": "1"}
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self.env = {**os.environ, "PYTHONPATH": path, **faster}
        self.processes = {}
        make_certificates(folder / "certs", [])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()

    def start(self, name, *words, where="."):
        command = [sys.executable, "-m", "secureafl", *map(str, words)]
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder / where, env=self.env, stdout=log, stderr=log
            )
        return self.processes[name]

    def log(self, name):
        return self.folder / f"{name.replace('/', '-')}.log"

    def serve(self):
        words = ["--out", "run", "--address", f"127.0.0.1:{self.port}", "--certificates", "certs"]
        self.start("serve", "serve", "net.toml", *words)
        self.wait(lambda: (self.run / "server" / "keys").is_dir(), 90, "the run folder")

    def make_keys(self, *names):
        """Make keys and register them."""
        for name in names:
            register(make_key(self.folder / name), self.run)

    def join(self, name, *more, where="."):
        words = ["--server", f"127.0.0.1:{self.port}", "--key", self.folder / name]
        words += ["--ca", self.folder / "certs" / "ca.crt", "--task", self.task]
        return self.start(name, "join", *words, *more, where=where)

    def serve_members(self, *names):
        """Serve, and let members with new keys join; their processes."""
        self.serve()
        self.make_keys(*names)
        return [self.join(name) for name in names]

    def wait(self, holds, seconds, what):
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, f"no {what} after {seconds} s\n{self.words()}"
            time.sleep(0.2)

    def wait_finished(self, seconds):
        self.wait(lambda: (self.run / "result.json").is_file(), seconds, "result")
        assert self.processes["serve"].wait(60) == 0

    def words(self):
        """The last of what everybody said."""
        files = [*self.folder.glob("*.log"), *(self.run / "server").glob("*log*")]
        return "\n".join(f"== {f.name}\n{f.read_text(errors='replace')[-1500:]}" for f in files)

    def told(self, event):
        """Lines of the server's log about one kind of event."""
        path = self.run / "server" / "log.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def server_app(self):
        """Process number of the ServerApp; 0 while there is none."""
        try:
            return json.loads((self.run / "server" / "alive.json").read_text())["process"]
        except OSError:
            return 0

    def find(self, name, words):
        """Process numbers below one of ours, and its own, whose command line holds some words."""
        parents, lines = {}, {}
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                stat = (place / "stat").read_text().rpartition(")")[2].split()
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parents[int(place.name)], lines[int(place.name)] = int(stat[1]), line
        found, added = set(), {self.processes[name].pid}
        while added:
            found |= added
            added = {number for number, parent in parents.items() if parent in added}
        return sorted(number for number in found if words in lines.get(number, ""))


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
