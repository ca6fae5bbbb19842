# One queue, in this order: python queue_all.py TASK:FOLDER:SEEDS:METHODS:ROUNDS ... FIGURES:SEEDS
# as cifar100:cifar-100-python:1::0 udacity:udacity:0::0 tiny_imagenet:tiny-imagenet-200:1::20000 figures:0
# readings:0-2:rule,placement baselines:0:readings leaderboard
import json
import sys
from pathlib import Path

from secureafl.cli.sweeping import run_with_progress
from secureafl.experiment import from_mapping
from secureafl.reproduce.plan import Request, grid_for
from secureafl.sweep.grid import parse_seeds, read_grid

SLOW_ATTACKS = ["pgd", "adaptive", "three_d_fed"]
SLOW_DEFENSES = ["aflguard", "zeno_pp", "sageflow", "kardam"]


def slow_first(cells):
    def key(name):
        a = next((i for i, s in enumerate(SLOW_ATTACKS) if f"-{s}-" in name), 9)
        d = next((i for i, s in enumerate(SLOW_DEFENSES) if name.startswith(s)), 9)
        return (a == 9, d == 9, a, d)
    return {name: cells[name] for name in sorted(cells, key=key)}


def leaderboard(device):
    """The worst attacks found, run again on their held-out seeds."""
    cells = {}
    for file in sorted(Path("/tmp/s/docs/results/raw/redteam").glob("*.json")):
        ours = file.stem.startswith("trust_clipping")
        if not ours and not file.stem.endswith("0.2-error"):
            continue
        found = json.loads(file.read_text())
        if "worst" not in found:
            continue
        base = {k: v for k, v in found["plan"]["base"].items() if k != "device"}
        for seed in found["plan"]["held_out"]:
            made = {**base, "seed": seed, "attack": found["worst"]["attack"], "device": device}
            made["task"] = {**base["task"], "data_dir": "data"}
            cells[f"{file.stem}-seed{seed}"] = from_mapping(made)
    return cells


def tables(device):
    for words in sys.argv[1:]:
        kind, *rest = words.split(":")
        if kind == "figures":
            for name in ("stated", "malicious-fraction", "non-iid", "delay", "clients"):
                asked = Request(name, "fashion_mnist", rest[0], 0, (), (), False, device, "data")
                yield Path("figures") / name, grid_for(asked).cells()
        elif kind == "leaderboard":
            yield Path("leaderboard"), leaderboard(device)
        elif kind in ("readings", "baselines"):
            seeds = parse_seeds(rest[0])
            for name in rest[1].split(","):
                file = Path("/tmp/s/experiments", kind, f"{name}.toml")
                cells = read_grid(file).cells({"device": device, "task.data_dir": "data"})
                yield Path(kind) / name, {k: e for k, e in cells.items() if e.seed in seeds}
        else:
            folder, seeds, methods, rounds = rest
            at = f"data/tasks/{folder}"
            chosen = tuple(m for m in methods.split(",") if m)
            asked = Request("main", kind, seeds, int(rounds), chosen, (), False, device, at)
            yield Path(f"main-{kind}"), slow_first(grid_for(asked).cells())


def main():
    count = "--count" in sys.argv
    sys.argv = [a for a in sys.argv if a != "--count"]
    found = {}
    for folder, cells in tables("cpu" if count else "cuda"):
        found[folder] = {**found.get(folder, {}), **cells}
    for f, cells in found.items():
        print(f, len(cells), sum((f / k / "result.json").is_file() for k in cells), flush=True)
    if not count:
        run_with_progress(found, "local", 0, 1e5, False)


if __name__ == "__main__":
    main()
