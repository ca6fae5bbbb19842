"""What a plug-in states about itself with plain class attributes; what it does not state is False.

    needs_root_data = True  uses the server's own clean samples (`ServerView.root_data`)
    needs_malicious = True  must be told how many clients may be malicious
    buffering = True        collects several uploads for one step
    on_host = True          looks at numbers on the host, so its step cannot be recorded

A defence with `weighs = True` lets clients count by their samples (`ServerView.samples`). An attack
with `recordable = True` needs no number on the host, and of its view no more than `attacker_index`,
`learning_rate`, `clients` and `train`: how it makes an upload is recorded on a GPU
(`is_recordable`). Such an attack says with `further_batches`, 0 without it, on how many batches an
upload trains by `train`. None is a trait of the parts, so they are read directly.

Written without a type, such an attribute is not a field of the dataclass, hence no setting.
"""

import dataclasses
from typing import Literal

Trait = Literal["needs_root_data", "needs_malicious", "buffering", "on_host"]


def has_trait(plug_in: object, trait: Trait) -> bool:
    """Whether the plug-in, or one it is made of (a defence's aggregator, say), states the trait."""
    if getattr(plug_in, trait, False) is True:
        return True
    if not dataclasses.is_dataclass(plug_in):
        return False
    parts = (getattr(plug_in, field.name) for field in dataclasses.fields(plug_in))
    return any(has_trait(part, trait) for part in parts)


def further_batches(attack: object) -> int:
    """How many further batches a recorded upload of an attack is trained on, at most."""
    return int(getattr(attack, "further_batches", 0))


def is_recordable(attack: object) -> bool:
    """Whether an attack says so, and has not got another `poison_update` since that was said."""
    classes = type(attack).__mro__
    said, made = (
        next((number for number, one in enumerate(classes) if name in vars(one)), len(classes))
        for name in ("recordable", "poison_update")
    )
    return said <= made and getattr(attack, "recordable", False) is True
