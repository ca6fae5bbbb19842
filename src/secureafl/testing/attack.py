"""The check of an attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from secureafl.core.protocols import Attack
from secureafl.core.traits import further_batches, is_recordable
from secureafl.core.types import (
    Arrival,
    AttackContext,
    AttackerView,
    Knowledge,
    RecordableView,
)
from secureafl.testing.play import CLASSES, Play, context, generator
from secureafl.testing.rules import (
    ContractError,
    check_form,
    check_kind,
    check_repeats,
    check_vector,
    demand,
    fields_of,
    form_of,
    in_one_line,
    no_host_reads,
    on_meta,
    unchanged,
)

_ROUNDS = 24


@in_one_line
def check_attack(attack: Attack) -> None:
    """Raise a `ContractError` of one line if an attack would fail in a run, or on a GPU.

    It plays a run of six clients, of whom three are malicious, against SecureAFL. Found are: a
    state that is None, is made of anything but tensors, or changes its shapes; a batch or an upload
    of another shape or dtype, or not finite; anything that is shown and gets changed in place; a
    read on the host in `poison_batch` or, with `recordable = True`, in `poison_update`, and what
    else cannot be recorded there; runs that cannot be repeated.

    >>> secureafl.testing.check_attack(secureafl.attacks.SignFlip())
    """
    name = check_kind(attack, Attack, "check_attack")
    levels = ", ".join(map(repr, get_args(Knowledge)))
    known = attack.knows in get_args(Knowledge)
    demand(known, name, f"knows = {attack.knows!r}", f"choose one of {levels}")
    plain = "knows" not in fields_of(attack)
    demand(plain, name, "knows is a setting", "write it without a type: knows = ...")
    before = form_of(attack.init(context()), f"{name}.init")
    _check_batches(attack, name)
    for dtype in (torch.float32, torch.float64):
        watched = _Watched(attack, before, name, attack.knows)
        Play(watched, dtype, name=name).uploads(_ROUNDS)
    _check_first_upload(attack, name)
    if is_recordable(attack):
        _check_recordable(attack, f"{name}.poison_update")
    check_repeats(lambda: Play(attack).uploads(_ROUNDS), f"{name}.poison_update")
    check_repeats(lambda: [*_poisoned(attack, 8)], f"{name}.poison_batch")


@dataclass
class _Watched:
    """An attack whose every upload is looked at."""

    inner: Attack
    form: dict[str, Any]
    name: str
    knows: str

    def init(self, context: AttackContext) -> Any:
        """The attack's own."""
        return self.inner.init(context)

    def poison_batch(
        self, state: Any, inputs: Tensor, labels: Tensor, attacker_index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The attack's own."""
        return self.inner.poison_batch(state, inputs, labels, attacker_index)

    def poison_update(self, state: Any, arrival: Arrival, view: AttackerView) -> tuple[Tensor, Any]:
        """The attack's own, checked."""
        where = f"{self.name}.poison_update"
        found = self.inner.poison_update(state, arrival, view)
        pair = isinstance(found, tuple) and len(found) == 2
        kind = type(found).__name__
        demand(pair, where, f"it returns a {kind}", "return (upload, state)")
        check_vector(found[0], arrival.gradient, where)
        check_form(self.form, found[1], where)
        return found


def _poisoned(attack: Attack, size: int) -> tuple[Tensor, Tensor]:
    inputs, labels = _batch(size)
    state = attack.init(context())
    return attack.poison_batch(state, inputs, labels, torch.tensor(1))


def _batch(size: int) -> tuple[Tensor, Tensor]:
    images = torch.randn(size, 1, 28, 28, generator=generator(1))
    return images, torch.randint(CLASSES, (size,), generator=generator(2))


def _check_batches(attack: Attack, name: str) -> None:
    where, state = f"{name}.poison_batch", attack.init(context())
    for size in (1, 2, 32):
        for attacker_index in range(3):
            inputs, labels = _batch(size)
            with unchanged({"inputs": inputs, "labels": labels}, where):
                found = attack.poison_batch(state, inputs, labels, torch.tensor(attacker_index))
            pair, kind = isinstance(found, tuple) and len(found) == 2, type(found).__name__
            demand(pair, where, f"it returns a {kind}", "return (inputs, labels)")
            check_vector(found[0], inputs, f"{where}: inputs")
            check_vector(found[1], labels, f"{where}: labels")
            inside = int(found[1].min()) >= 0 and int(found[1].max()) < CLASSES
            span = f"{int(found[1].min())} to {int(found[1].max())}"
            remedy = f"there are {CLASSES} classes here (context.num_classes)"
            demand(inside, where, f"labels are {span}", remedy)
    with no_host_reads(where):
        attack.poison_batch(on_meta(state), *on_meta((*_batch(4), torch.tensor(0))))


def _check_first_upload(attack: Attack, name: str) -> None:
    """Before anybody else is known."""
    play = Play(attack)
    gradient = torch.randn(len(play.models[0]), generator=generator(3))
    arrival = Arrival(torch.tensor(4), torch.tensor(0), gradient, play.models[0])
    check_vector(play.poisoned(arrival), gradient, f"{name}.poison_update, nobody being known yet")


def _check_recordable(attack: Attack, where: str) -> None:
    """Whether an upload can be made of tensors alone, for each attacker and at any time."""
    play = Play(attack)
    play.uploads(_ROUNDS)
    for client in play.malicious.nonzero().flatten().tolist():
        view = play.view(client)
        gradient = play.gradient(client, play.models[-1], 0)
        arrival = Arrival(torch.tensor(client), torch.tensor(0), gradient, play.models[-1])
        clients = on_meta(view.clients) if view.clients else None
        given = (view.attacker_index, view.learning_rate, clients)
        shown: Any = RecordableView(*given, _Train(further_batches(attack), where))
        try:
            with no_host_reads(where):
                attack.poison_update(on_meta(play.state), on_meta(arrival), shown)
        except AttributeError as error:
            allowed = "attacker_index, learning_rate, clients and train"
            remedy = f"recordable = True allows {allowed} only"
            raise ContractError(f"{where}: it uses view.{error.name}; {remedy}") from None


class _Train(NamedTuple):
    """Gradients without numbers, on no more batches than a recorded attack says it needs."""

    count: int
    where: str

    def __call__(self, weights: Tensor, number: int) -> Tensor:
        told = f"it trains on further batch {number}, and further_batches is {self.count}"
        demand(number < self.count, self.where, told, f"say further_batches = {number + 1}")
        return torch.empty_like(weights)
