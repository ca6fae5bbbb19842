"""`make demo-deploy`: a server and five clients as real processes on this machine.

One of them is malicious, and one sends numbers that nobody can calculate with. TLS is on and every
client has a key. While it runs, `secureafl clients` shows what an operator sees: who is in, who is
slowed or not counted, and why. The run folder is like a simulation's.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

from secureafl.deployment.options import read_file
from secureafl.experiment import write_experiment

FLIP = ["--attack", "sign_flip", "--set"]
NAMES: dict[str, list[str]] = {  # and what they do that honest ones do not
    "ada": [],
    "ben": [],
    "cleo": [],
    "finn": [*FLIP, "attack.factor=1e30"],
    "mallory": [*FLIP, "attack.factor=10"],
}
ABSENT = "dora"  # has a key and does not come
ADDRESS = "127.0.0.1:8765"
SECUREAFL = [sys.executable, "-m", "secureafl"]


def main(out: Path, experiment: str = "experiments/deploy.toml") -> int:
    """Make keys, start everybody, wait for the result; the exit code of the server."""
    out.mkdir(parents=True)
    made = dataclasses.replace(read_file(Path(experiment))[0], clients=len(NAMES))
    (out / "experiment.toml").write_text(write_experiment(made))
    command("keys", "ca", out / "certificates")
    server = start(
        out / "serve.log",
        *("serve", out / "experiment.toml", "--out", out / "run", "--address", ADDRESS),
        *("--certificates", out / "certificates"),
    )
    clients = []
    try:
        for name in (*NAMES, ABSENT):
            command("keys", "make", out / name)
        wait_for(out / "run" / "server" / "keys", server)
        for name in (*NAMES, ABSENT):
            command("keys", "register", out / f"{name}.pub", "--run", out / "run")
        clients = [join(out, name) for name in NAMES]
        print(f"{', '.join(NAMES)} join; mallory sends ten times the opposite of what it learnt,")
        print("finn numbers too large to calculate with; dora has a key and does not come")
        print(f"what each is told: {out}/NAME.log; what the server says: {out / 'serve.log'}")
        watch(server, out / "run")
        server.wait()
    finally:
        for process in (*clients, server):
            process.terminate()
        for process in (*clients, server):
            process.wait()
    if server.returncode:
        print((out / "serve.log").read_text(errors="replace")[-2000:])
        return server.returncode
    command("report", out / "run")
    print(f"page: {out / 'run' / 'report' / 'index.html'}")
    return server.returncode


def join(out: Path, name: str) -> subprocess.Popen[bytes]:
    """A client, which stays until the run ends."""
    words = ["join", "--server", ADDRESS, "--ca", out / "certificates" / "ca.crt"]
    return start(out / f"{name}.log", *words, "--key", out / name, *NAMES[name])


def start(log: Path, *words: object) -> subprocess.Popen[bytes]:
    """A command in the background."""
    with log.open("wb") as file:
        return subprocess.Popen([*SECUREAFL, *map(str, words)], stdout=file, stderr=file)


def command(*words: object) -> None:
    """A command that must succeed."""
    subprocess.run([*SECUREAFL, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def wait_for(path: Path, server: subprocess.Popen[bytes]) -> None:
    """Until the server has made a folder, or has ended."""
    while not path.exists() and server.poll() is None:
        time.sleep(0.2)


def watch(server: subprocess.Popen[bytes], run: Path) -> None:
    """Show the operator's view until the server has ended."""
    view = subprocess.Popen([*SECUREAFL, "clients", str(run), "--follow"])
    while view.poll() is None and server.poll() is None:
        time.sleep(0.5)
    try:
        view.wait(10.0)  # it sees the end by itself
    except subprocess.TimeoutExpired:
        view.terminate()
        view.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
