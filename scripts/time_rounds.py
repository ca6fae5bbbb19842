"""Time whole simulated rounds: client gradient, attack and server, on real data.

python scripts/time_rounds.py [--device cuda] [--together 16] [--processes 16] [--rounds 1000]
    [--defenses secure_afl] [--attack min_max] [--gradients kernel autograd] [--data-dir FOLDER]
    [--client-weighting samples] [--task cifar10] [--precision bfloat16] [--batch-size 64]

With processes and runs together, each process has so many runs, which take turns, as in a sweep.
With both kinds of gradients, the model's hand-written one is compared with autograd in one go.
"""

import argparse
import multiprocessing
import statistics
import time
from typing import Any

import torch

from secureafl import from_mapping
from secureafl.defenses import DEFENSES
from secureafl.experiment import Training
from secureafl.runtime import clients
from secureafl.simulation.simulator import Simulation
from secureafl.sweep.sharing import shared_gpu
from secureafl.tasks import TASKS

KERNEL = clients.fast_gradient


def simulation(defense: str, seed: int, given: argparse.Namespace) -> Simulation:
    """The paper's setting under an attack, without evaluations."""
    values = {"seed": seed, "defense": defense, "attack": given.attack, "device": given.device}
    values |= {"task": {"kind": given.task, "data_dir": given.data_dir}}
    values |= {"client_weighting": given.client_weighting}
    values |= {"training": {"precision": given.precision, "batch_size": given.batch_size}}
    return Simulation(from_mapping(values | {"evaluation": {"every": 10**8, "late": 1}}))


def use_gradient(kind: str) -> None:
    """Let clients train with hand-written kernels where they fit, or always with autograd."""
    clients.fast_gradient = KERNEL if kind == "kernel" else lambda *_: None  # pyrefly: ignore


def take_turns(runs: list[Simulation], rounds: int) -> float:
    """Seconds for so many rounds of every run, a turn of each after the other."""
    turns, done = [run.turns() for run in runs], [0] * len(runs)
    start = time.perf_counter()
    while min(done) < rounds:
        for number, turn in enumerate(turns):
            if done[number] < rounds and next(turn):
                done[number] += 1
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def gradient_seconds(run: Simulation, rounds: int) -> float:
    """Seconds that so many client gradients take, on their own."""
    run._engine.begin(0, run.weights)
    start = time.perf_counter()
    for _ in range(rounds):
        run._engine.train()
    return time.perf_counter() - start


def by_turns(defense: str, gradient: str, given: argparse.Namespace) -> float:
    """Milliseconds a round of several runs in this process."""
    use_gradient(gradient)
    runs = [simulation(defense, seed, given) for seed in range(given.together)]
    take_turns(runs, max(1, given.rounds // 5))  # to record, to compile, to fill the memory
    each = 1e3 * take_turns(runs, given.rounds) / given.rounds / len(runs)
    line = f"{defense:19} {gradient:8} {len(runs)} at a time: {each:.3f} ms a round"
    if runs[0].device.type == "cpu":
        alone = 1e3 * gradient_seconds(runs[0], given.rounds) / given.rounds
        line += f", of which the client gradient {alone / each:.0%}"
    print(line, flush=True)
    return each


def work(
    defense: str, gradient: str, seed: int, given: argparse.Namespace, ready: Any, took: Any
) -> None:
    """Body of a process: its runs, measured while all others run too."""
    torch.set_num_threads(1)
    use_gradient(gradient)
    first = seed * given.together
    runs = [simulation(defense, first + number, given) for number in range(given.together)]
    take_turns(runs, max(1, given.rounds // 5))
    ready.wait()
    took.put(take_turns(runs, given.rounds))
    ready.wait()  # nobody has the GPU to itself at the end


def by_processes(defense: str, gradient: str, given: argparse.Namespace) -> float:
    """Milliseconds a round of as many processes, each with the same number of runs."""
    spawn = multiprocessing.get_context("spawn")
    ready, took = spawn.Barrier(given.processes), spawn.Queue()
    processes = [
        spawn.Process(target=work, args=(defense, gradient, seed, given, ready, took))
        for seed in range(given.processes)
    ]
    for process in processes:
        process.start()
    each = 1e3 * statistics.median(took.get() for _ in processes) / given.rounds
    for process in processes:
        process.join()
    share = each / given.processes / given.together
    runs = f"{given.processes} processes, {given.together} at a time in each"
    print(f"{defense:19} {gradient:8} {runs}: {share:.3f} ms a round", flush=True)
    return share


def measure(given: argparse.Namespace) -> None:
    """Every defence with every kind of gradient, and the ratio where there are two."""
    timed = by_processes if given.processes else by_turns
    for defense in given.defenses:
        took = {gradient: timed(defense, gradient, given) for gradient in given.gradients}
        if len(took) == 2:
            ratio = took["autograd"] / took["kernel"]
            print(f"{defense:19} the kernel makes {ratio:.2f} times as many rounds", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--processes", type=int, default=0, help="runs in each of so many")
    parser.add_argument("--rounds", type=int, default=300)
    usual = ("async_sgd", "secure_afl", "trust_clipping")
    parser.add_argument("--defenses", nargs="+", choices=[*DEFENSES], default=usual)
    parser.add_argument("--attack", default="sign_flip")
    kinds = ("kernel", "autograd")
    parser.add_argument("--gradients", nargs="+", choices=kinds, default=["kernel"])
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--client-weighting", default="equal")
    parser.add_argument("--task", choices=[*TASKS], default="fashion_mnist")
    precisions = ("float32", "bfloat16")
    parser.add_argument("--precision", choices=precisions, default=Training.precision)
    parser.add_argument("--batch-size", type=int, default=Training.batch_size)
    given = parser.parse_args()
    if not given.processes:
        measure(given)
        return
    with shared_gpu():
        measure(given)


if __name__ == "__main__":
    main()
