"""What is worth a line though it is no error: before a run begins, and when it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from secureafl.attacks import NoAttack

if TYPE_CHECKING:
    from secureafl.experiment import Experiment


def notes_before(experiments: Iterable[Experiment]) -> list[str]:
    """What to say of experiments before they run; of each kind of note, the first only."""
    made = [*experiments]
    found = [next(filter(None, map(kind, made)), "") for kind in (_majority, _nobody)]
    return [note for note in found if note]


def note_after(result: Mapping[str, Any]) -> str:
    """What to say of a finished run, its `result.json`, if the model never moved; else empty."""
    if result.get("steps") != 0:  # runs of early versions do not say
        return ""
    uploads = result["uploads"].values()
    accepted, received = (sum(x[key] for x in uploads) for key in ("accepted", "received"))
    told = f"{accepted} of {received} uploads were accepted, and {result['defense']} made no step"
    return f"the model is as it began: {told}; give more rounds, or another defence"


def _majority(experiment: Experiment) -> str:
    """Malicious clients are more than half."""
    if 2 * experiment.num_malicious <= experiment.clients:
        return ""
    told = f"{experiment.num_malicious} of {experiment.clients} clients are malicious"
    return f"{told}; a defence that goes by the majority, without root data, takes their side"


def _nobody(experiment: Experiment) -> str:
    """An attack is named, but the share of malicious clients is less than one of them."""
    share, clients = experiment.malicious, experiment.clients
    if isinstance(experiment.attack, NoAttack) or experiment.num_malicious or not share:
        return ""
    told = f"malicious = {share} of {clients} clients is nobody"
    return f"{told}, so nothing is attacked; give a larger share, or a number of clients"
