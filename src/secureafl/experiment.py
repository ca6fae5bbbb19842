"""One TOML file <-> one frozen `Experiment`. Its defaults are the paper's Fashion-MNIST setting."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from secureafl import settings
from secureafl.aggregators import AGGREGATORS
from secureafl.arrivals import ARRIVALS, Uniform
from secureafl.attacks import ATTACKS, NoAttack
from secureafl.core.errors import ConfigError, require
from secureafl.core.privacy import Privacy
from secureafl.core.protocols import (
    Aggregator,
    ArrivalModel,
    Attack,
    Defense,
    Estimator,
    Partition,
    ServerOptimizer,
    Task,
)
from secureafl.core.schedule import Schedule
from secureafl.core.setting_types import settle_types
from secureafl.defenses import DEFENSES, TrustClipping
from secureafl.estimators import ESTIMATORS
from secureafl.kernels.dispatch import Kernels
from secureafl.optimizers import OPTIMIZERS, Sgd
from secureafl.partitions import PARTITIONS, LabelGroups
from secureafl.tasks import TASKS, FashionMnist
from secureafl.toml import read_toml, write_toml

TABLES: dict[type, settings.Table] = {
    Defense: DEFENSES,
    Attack: ATTACKS,
    Aggregator: AGGREGATORS,
    Estimator: ESTIMATORS,
    Task: TASKS,
    Partition: PARTITIONS,
    ArrivalModel: ARRIVALS,
    ServerOptimizer: OPTIMIZERS,
}

# The fields of an experiment that take a plug-in.
PLUG_INS: dict[str, type] = {
    "task": Task,
    "partition": Partition,
    "arrivals": ArrivalModel,
    "defense": Defense,
    "attack": Attack,
    "server_optimizer": ServerOptimizer,
}


@dataclass(frozen=True)
class Training:
    """What one client does for one upload.

    >>> secureafl.Training(batch_size=8, local_steps=4).samples
    32
    """

    batch_size: int = 32
    learning_rate: float = 0.01  # eta
    # "sum" uploads the batch's summed gradient and divides eta by the batch size: the same steps,
    # but norms (and so clip_norm) are batch_size times larger.
    reduction: Literal["mean", "sum"] = "mean"
    local_steps: int = 1  # K; a client takes these, each on a new batch, before it uploads
    privacy: Privacy = field(default_factory=Privacy)
    # "horizon" is the paper's Corollary: all steps of a run have one rate, which is eta, but at
    # most horizon_scale over the root of the number of rounds.
    schedule: Literal["constant", "horizon"] = "constant"
    horizon_scale: float = 1.0  # c
    # Of layers on a GPU. "float32" has convolutions in TF32; "bfloat16" is mixed precision: layers
    # compute in it where PyTorch's autocast finds that safe. Weights, uploads and all that the
    # server does are float32 always, and so is everything on a CPU.
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        settle_types(self)
        require(self.batch_size >= 1, "batch_size", self.batch_size, "give 1 sample or more")
        rate = self.learning_rate
        require(0 < rate <= 100, "learning_rate", rate, "give a rate above 0, at most 100")
        scale = self.horizon_scale
        require(0 < scale < math.inf, "horizon_scale", scale, "give a number above 0")
        steps = self.local_steps
        require(1 <= steps <= 1000, "local_steps", steps, "give 1 to 1000 steps")

    def over(self, rounds: int) -> Training:
        """This training with the learning rate that its schedule gives a run of so many rounds.

        >>> secureafl.Training(learning_rate=0.1, schedule="horizon").over(2500).learning_rate
        0.02
        """
        if self.schedule == "constant":
            return self
        rate = min(self.learning_rate, self.horizon_scale / math.sqrt(rounds))
        return replace(self, learning_rate=rate, schedule="constant")

    @property
    def upload_scale(self) -> int:
        """How many times a mean gradient an upload is."""
        return self.batch_size if self.reduction == "sum" else 1

    @property
    def server_rate(self) -> float:
        """What the server multiplies an upload with."""
        return self.learning_rate / self.upload_scale

    @property
    def samples(self) -> int:
        """Training samples for one upload."""
        return self.local_steps * self.batch_size


@dataclass(frozen=True)
class Evaluation:
    """When the global model is measured.

    >>> sorted(secureafl.Evaluation(every=4, late=1).rounds(10))
    [0, 4, 8, 10]
    """

    every: int = 0  # rounds; 0: ten times in all, but at least every 500 rounds
    late: int = 5  # evaluations spread over the last 10 % of rounds; results average these

    def __post_init__(self) -> None:
        settle_types(self)
        require(self.every >= 0, "every", self.every, "give 0 (automatic) or a number of rounds")
        require(self.late >= 1, "late", self.late, "give 1 evaluation or more")

    def rounds(self, total: int) -> frozenset[int]:
        """Rounds after which to measure; 0 is before the first."""
        regular = range(0, total, self.every or min(500, max(1, total // 10)))
        return frozenset([*regular, *self.late_rounds(total)])

    def late_rounds(self, total: int) -> list[int]:
        """The last evaluations, which results are averaged over."""
        gap = total / 10 / self.late
        return sorted({round(total - k * gap) for k in range(self.late)})


@dataclass(frozen=True)
class Experiment:
    """Everything that decides the result of a run.

    >>> attack = secureafl.attacks.SignFlip(factor=3.0)
    >>> secureafl.Experiment(rounds=100, clients=10, malicious=0.3, attack=attack).num_malicious
    3
    """

    seed: int = 0
    rounds: int = 20_000  # arrivals
    clients: int = 50  # n
    malicious: int | float = 0.2  # a share (0.2) or a number (10) of the clients
    placement: Literal["random", "grouped"] = "random"  # grouped: they fill whole label groups
    attack_from: int = 0  # the first round that is attacked; before it everybody is honest
    attack_until: int = 0  # the first that is no longer attacked; 0: attacked to the end
    client_weighting: Literal["equal", "samples"] = "equal"  # how much each client counts
    forget_after: int = 0  # rounds without an upload after which a client is forgotten; 0: never
    root_samples: int = 100  # clean ones of the server's own, for defences that need them
    device: str = "auto"  # or cpu, cuda; of several GPUs one, cuda:1
    threads: int = 0  # for CPU arithmetic; 0: as many as torch likes
    kernels: Kernels = "auto"  # which version of the hot operations runs
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    task: Task = field(default_factory=FashionMnist)
    partition: Partition = field(default_factory=LabelGroups)
    arrivals: ArrivalModel = field(default_factory=Uniform)
    defense: Defense = field(default_factory=TrustClipping)
    attack: Attack = field(default_factory=NoAttack)
    server_optimizer: ServerOptimizer = field(default_factory=Sgd)
    server_schedule: Schedule = field(default_factory=Schedule)  # of that optimiser's moves

    def __post_init__(self) -> None:
        settle_types(self)
        self._check_plug_ins()
        require(0 <= self.seed < 2**63, "seed", self.seed, "give 0 or more, below 2**63")
        require_device(self.device)
        require(1 <= self.rounds < 10**9, "rounds", self.rounds, "give 1 or more, below 10**9")
        require(1 <= self.clients <= 10**6, "clients", self.clients, "give 1 to 1,000,000")
        samples, after = self.root_samples, self.forget_after
        require(samples >= 1, "root_samples", samples, "give 1 sample or more")
        require(after >= 0, "forget_after", after, "give 0 (never) or a number of rounds")
        require(0 <= self.threads <= 1024, "threads", self.threads, "give 0 (automatic) to 1024")
        self._check_malicious()

    def _check_plug_ins(self) -> None:
        for name in PLUG_INS:
            value = getattr(self, name)
            remedy = "make its class a frozen dataclass, whose fields are settings"
            require(is_dataclass(value), name, value, remedy)

    def _check_malicious(self) -> None:
        first, end = self.attack_from, self.attack_until
        remedy = f"give a round from 0 to {self.rounds - 1}, the last one"
        require(0 <= first < self.rounds, "attack_from", first, remedy)
        remedy = f"give a round after attack_from, {first}, or 0 for the end of the run"
        require(end == 0 or end > first, "attack_until", end, remedy)
        if isinstance(self.malicious, float):
            remedy = "give a share from 0 to 1, or a whole number of clients"
            require(0 <= self.malicious <= 1, "malicious", self.malicious, remedy)
        require(
            0 <= self.num_malicious <= self.clients,
            "malicious",
            self.malicious,
            f"give at most the number of clients, {self.clients}",
        )

    @property
    def scheduled_training(self) -> Training:
        """The training at the learning rate of this run."""
        return self.training.over(self.rounds)

    @property
    def num_malicious(self) -> int:
        """Malicious clients; none without an attack."""
        if isinstance(self.attack, NoAttack):
            return 0
        share = self.malicious
        return round(share * self.clients) if isinstance(share, float) else share


def require_device(name: str) -> None:
    """Raise unless this is how a device is called."""
    remedy = "choose auto, cpu, cuda, or one GPU of several, such as cuda:1"
    require(bool(re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name)), "device", name, remedy)


def from_mapping(values: Mapping[str, Any]) -> Experiment:
    """The experiment a TOML file's content describes.

    >>> defense = {"kind": "fed_buff", "buffer_size": 4}
    >>> secureafl.from_mapping({"clients": 10, "defense": defense}).defense
    FedBuff(buffer_size=4)
    """
    return settings.build(Experiment, values, TABLES)


def to_mapping(experiment: Experiment) -> dict[str, Any]:
    """Every setting of the experiment, spelled out."""
    return settings.to_mapping(experiment, TABLES)


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of one experiment in a TOML file."""
    values = read_toml(path)
    if "axes" in values:
        raise ConfigError(f"{path}: a grid of experiments; run it with 'secureafl sweep {path}'")
    return values


def read_experiment(path: Path | str) -> Experiment:
    """The experiment in a TOML file.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "mine.toml")
    >>> _ = path.write_text('clients = 10')
    >>> secureafl.read_experiment(path).clients
    10
    """
    return from_mapping(read_settings(Path(path)))


def write_experiment(experiment: Experiment) -> str:
    """The experiment as TOML; reading it gives an equal value."""
    return write_toml(to_mapping(experiment))


def with_settings(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with dotted keys such as `defense.alpha` changed.

    Naming another kind (`defense = "async_sgd"`) drops the settings of the old one.
    """
    out = dict(values)
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        if not rest:
            out[name] = value
            continue
        inner = out.get(name, {})
        if isinstance(inner, str):
            inner = {"kind": inner}
        if not isinstance(inner, Mapping):
            raise ConfigError(f"{key}: '{name}' is a plain value, not a table")
        out[name] = with_settings(inner, {rest: value})
    return out
