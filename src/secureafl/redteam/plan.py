"""What a search is asked for, and the experiments it consists of."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping
from typing import Any, Literal

import torch

from secureafl.attacks import NoAttack
from secureafl.core.errors import ConfigError, require
from secureafl.core.protocols import Task
from secureafl.core.setting_types import settle_types
from secureafl.experiment import Experiment, from_mapping, to_mapping
from secureafl.runtime.loading import load_data
from secureafl.tasks import FashionMnist
from secureafl.toml import flatten, inline, parse_value

Against = Literal["error", "asr"]

NO_ATTACK: Mapping[str, Any] = {"kind": "none"}

_SHORT, _LONG = 4, 2  # a run of the first and of the second rung: the full length divided by this
_PROMOTED = 5  # one attack in so many goes on to the second rung
_FEW, _MANY, _PER_FINALIST = 2, 4, 12  # finalists of small and of large budgets, which cost most
LOST = 4  # attacks that leave nothing to be worse, after which a search tries no more
_TOLERANCE = 0.005  # a score so close to the highest that means anything is as high
_SEEDS = 2**32
_BATCHES, _LEAST, _MOST = 8, 4, 25  # proposals are asked for in batches; their number and size

# Settings that the command line has other words for, or that are a matter of the machine.
_NOT_SET = frozenset(
    {"seed", "malicious", "device", "threads", "kernels", "attack.kind", "defense.kind"}
)
_EMBEDDED = "embedded"  # as the folder of Fashion-MNIST: the slice in the package

# What `--fast` changes: minutes on two cores. It shows how a search works, not what a rule stands.
_FAST: Mapping[str, Any] = {
    "rounds": 800,
    "clients": 10,
    "root_samples": 20,
    "training.batch_size": 16,
    "training.learning_rate": 0.05,
    "evaluation.late": 2,
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """A search: which experiment is attacked, how often, and how an attack is scored."""

    base: Experiment  # its attack and its seed do not matter
    budget: int = 200  # attacks that are tried, each in a short run
    against: Against = "error"  # what is to become large: the error, or a backdoor's success rate
    # Seeds of the score. Nothing is tuned on them; which of the few finalists counts, they decide.
    held_out: tuple[int, ...] = (101, 102, 103)
    search_seed: int = 0  # of the optimiser and of short runs; that of longer runs is the next
    blind: bool = False  # whether it begins at random instead of with the attacks as they come
    start: tuple[Mapping[str, Any], ...] = ()  # attacks that are tried before all others

    def __post_init__(self) -> None:
        settle_types(self)
        least, seed = max(1, len(self.start)), self.search_seed
        few = "give 1 attack to try, or more" if least == 1 else f"{least} attacks are to be tried"
        require(self.budget >= least, "budget", self.budget, few)
        require(bool(self.held_out), "seeds", "", "give one held-out seed or more")
        twice = len(set(self.held_out)) < len(self.held_out)
        require(not twice, "seeds", self.held_out, "give each held-out seed once")
        remedy = f"give 0 or more, below {_SEEDS}"  # Optuna's limit
        require(0 <= seed < _SEEDS, "search-seed", seed, remedy)
        used = sorted({self.search_seed, self.search_seed + 1} & set(self.held_out))
        if used:
            which = ", ".join(map(str, used))
            remedy = "give --seeds or --search-seed others"
            raise ConfigError(f"seed {which} is used in the search and is not held out; {remedy}")
        self._check_malicious()
        # One thread, as a sweep's cells have: a number from the machine would change the bits.
        own = {"attack": NoAttack(), "seed": self.search_seed, "threads": self.base.threads or 1}
        object.__setattr__(self, "base", dataclasses.replace(self.base, **own))
        for attack in (NO_ATTACK, *self.start):
            self.short(attack)  # its rounds may be too few for what the experiment asks
        for one in self.held_out:
            self.full(NO_ATTACK, one)

    def _check_malicious(self) -> None:
        share, clients = self.base.malicious, self.base.clients
        count = round(share * clients) if isinstance(share, float) else share
        remedy = f"give a share up to one half that is a client or more of {clients}"
        require(1 <= count <= clients / 2, "malicious", share, remedy)

    @property
    def batch(self) -> int:
        """Attacks that are proposed at a time; not a matter of the machine, it decides results."""
        return min(_MOST, max(_LEAST, self.budget // _BATCHES))

    @property
    def known(self) -> int:
        """How many proposals may be attacks as they come, with their defaults or presets."""
        return 0 if self.blind else max(1, self.budget // 2)

    def promoted(self, tried: int) -> int:
        """How many of the attacks that were tried are run longer."""
        return max(_MANY, -(-tried // _PROMOTED))

    @property
    def finalists(self) -> int:
        """How many attacks are run at full length."""
        return max(_FEW, min(_MANY, self.budget // _PER_FINALIST))

    @property
    def ceiling(self) -> float:
        """The score above which an attack does no more harm.

        A backdoor that always succeeds, or a model no better than naming the most common label.
        """
        return 1.0 - _TOLERANCE if self.against == "asr" else self.error_ceiling

    @property
    def error_ceiling(self) -> float:
        """The error of a model no better than naming the most common label, whatever the goal."""
        labels = load_data(self.base.task, torch.device("cpu")).on_cpu.test_labels
        if labels.is_floating_point():
            return math.inf  # an error of a regression has no end
        return 1.0 - float(torch.bincount(labels).max() / len(labels)) - _TOLERANCE

    def short(self, attack: Mapping[str, Any]) -> Experiment:
        """The run every attack gets."""
        return self._experiment(attack, self.search_seed, _SHORT)

    def longer(self, attack: Mapping[str, Any]) -> Experiment:
        """The run of attacks that were among the best in short ones, with another seed."""
        return self._experiment(attack, self.search_seed + 1, _LONG)

    def full(self, attack: Mapping[str, Any], seed: int) -> Experiment:
        """A run of full length."""
        return self._experiment(attack, seed, 1)

    def _experiment(self, attack: Mapping[str, Any], seed: int, divisor: int) -> Experiment:
        rounds, mapping = max(1, self.base.rounds // divisor), to_mapping(self.base)
        if divisor > 1:  # only the late evaluations count, and the others cost time
            mapping["evaluation"] |= {"every": rounds}
        if attack == NO_ATTACK:  # then nobody is malicious, and one run is enough for every share
            mapping["malicious"] = 0
        return from_mapping({**mapping, "attack": dict(attack), "seed": seed, "rounds": rounds})

    def to_mapping(self) -> dict[str, Any]:
        """The plan in plain values."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "base"}
        lists = {"held_out": list(self.held_out), "start": [dict(one) for one in self.start]}
        return {**own, **lists, "base": to_mapping(self.base)}

    def portable(self) -> dict[str, Any]:
        """The same without the folder in which this machine has its data."""
        mapping = self.to_mapping()
        return {**mapping, "base": _without_folder(mapping["base"])}

    @property
    def changes(self) -> dict[str, Any]:
        """The settings in which the experiment differs from the paper's with that defence."""
        given = flatten(_without_folder(to_mapping(self.base)))
        usual = flatten(to_mapping(from_mapping({"defense": given["defense.kind"]})))
        return {
            key: value
            for key, value in given.items()
            if key not in _NOT_SET and (key not in usual or usual[key] != value)
        }

    @property
    def command(self) -> str:
        """The command line that asks for this search."""
        number = self.base.malicious
        words = ["secureafl", "redteam", self._defense]
        words += ["--malicious", str(number)] if isinstance(number, float) else []
        words += _set({"malicious": number}) if isinstance(number, int) else []
        words += ["--budget", str(self.budget), "--against", self.against]
        words += ["--seeds", ",".join(map(str, self.held_out))]
        words += ["--search-seed", str(self.search_seed), *["--blind"] * self.blind]
        words += [word for attack in self.start for word in ("--start-from", inline(attack))]
        return shlex.join([*words, *_set(self.changes)])

    def run_command(self, attack: Mapping[str, Any], seed: int) -> str:
        """The command line that runs one attack at full length."""
        words = ["secureafl", "run", "--defense", self._defense]
        words += ["--attack", attack["kind"], "--seed", str(seed)]
        own = {f"attack.{name}": value for name, value in attack.items() if name != "kind"}
        changes = {"malicious": self.base.malicious, **self.changes, **own}
        return shlex.join([*words, *_set(changes)])

    @property
    def _defense(self) -> str:
        return to_mapping(self.base)["defense"]["kind"]


def _without_folder(mapping: dict[str, Any]) -> dict[str, Any]:
    """The settings of an experiment without the folder of its data; the slice has none."""
    task = mapping["task"]
    kept = {k: v for k, v in task.items() if k != "data_dir" or v == _EMBEDDED}
    return {**mapping, "task": kept}


def _set(values: Mapping[str, Any]) -> list[str]:
    """Settings as words of a command line."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={_text(value)}")]


def _text(value: Any) -> str:
    """A value as a command line may have it; a text needs no quotes unless it looks like more."""
    if isinstance(value, str) and value.isidentifier() and parse_value(value) == value:
        return value
    return inline(value)


def fast_settings(task: Task) -> dict[str, Any]:
    """What changes in a search that is scaled down."""
    embedded = {"task.data_dir": _EMBEDDED} if isinstance(task, FashionMnist) else {}
    return {**_FAST, **embedded}
