# One queue, in this order: python queue_all.py TASK:FOLDER:SEEDS:METHODS:ROUNDS ... FIGURES:SEEDS
# as cifar100:cifar-100-python:1::0 udacity:udacity:0::0 tiny_imagenet:tiny-imagenet-200:1::20000 figures:0 readings:0-2
import sys
from pathlib import Path

from secureafl.cli.sweeping import run_with_progress
from secureafl.reproduce.plan import Request, grid_for
from secureafl.sweep.grid import read_grid


def tables(device):
    for words in sys.argv[1:]:
        kind, *rest = words.split(":")
        if kind == "figures":
            for name in ("stated", "malicious-fraction", "non-iid", "delay", "clients"):
                asked = Request(name, "fashion_mnist", rest[0], 0, (), (), False, device, "data")
                yield Path("figures") / name, grid_for(asked).cells()
        elif kind in ("readings", "baselines"):
            for file in sorted(Path("/tmp/s/experiments", kind).glob("*.toml")):
                if file.stem in ("steps", "steps_few") or file.stem.startswith("sageflow"):
                    continue
                yield Path(kind) / file.stem, read_grid(file).cells({"device": device, "task.data_dir": "data"})
        else:
            folder, seeds, methods, rounds = rest
            at = f"data/tasks/{folder}"
            chosen = tuple(m for m in methods.split(",") if m)
            asked = Request("main", kind, seeds, int(rounds), chosen, (), False, device, at)
            yield Path(f"main-{kind}"), grid_for(asked).cells()


def main():
    found = dict(tables("cuda"))
    for f, cells in found.items():
        print(f, len(cells), sum((f / k / "result.json").is_file() for k in cells), flush=True)
    if "--count" not in sys.argv:
        run_with_progress(found, "local", 0, 1e5, False)


if __name__ == "__main__":
    sys.argv, count = [a for a in sys.argv if a != "--count"], "--count" in sys.argv
    if count:
        for f, cells in tables("cuda"):
            print(f, len(cells), sum((f / k / "result.json").is_file() for k in cells), flush=True)
    else:
        main()
