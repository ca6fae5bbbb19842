"""Attacks with one mistake each, and the words in which `secureafl.testing` must tell it."""

from dataclasses import dataclass

import torch

from secureafl.attacks import SignFlip

ATTACKS = {}


def told(table, said):
    """Register a class whose only mistake must be told with these words."""

    def register(cls):
        table[cls.__name__] = (dataclass(frozen=True)(cls), said)
        return cls

    return register


@told(ATTACKS, "NoMemory.init: the state is None; give a tensor")
class NoMemory(SignFlip):
    def init(self, context):
        return None


@told(ATTACKS, "Guessing: knows = 'all'; choose one of 'own', 'colluders', 'everybody', 'defense'")
class Guessing(SignFlip):
    knows = "all"


@told(ATTACKS, "Cut.poison_update: it is torch.float32 (65,), not torch.float32 (66,)")
class Cut(SignFlip):
    def poison_update(self, state, arrival, view):
        return arrival.gradient[1:], state


@told(ATTACKS, "Doubled.poison_update: it is torch.float64 (66,), not torch.float32 (66,)")
class Doubled(SignFlip):
    def poison_update(self, state, arrival, view):
        return arrival.gradient.double(), state


@told(ATTACKS, "Meddling.poison_update: it changes view.clients.gradients in place; work on a copy")
class Meddling(SignFlip):
    knows = "everybody"

    def poison_update(self, state, arrival, view):
        return view.clients.gradients.neg_().mean(dim=0), state


@told(ATTACKS, "Overwriting.poison_update: it changes arrival.gradient in place")
class Overwriting(SignFlip):
    def poison_update(self, state, arrival, view):
        return arrival.gradient.neg_(), state


@told(ATTACKS, "Dividing.poison_update: it is not finite")
class Dividing(SignFlip):
    knows = "everybody"

    def poison_update(self, state, arrival, view):
        honest = view.clients.known & ~view.clients.malicious
        return view.clients.gradients[honest].mean(dim=0), state


@told(ATTACKS, "Drawing.poison_update: two equal runs differ; draw from the generator")
class Drawing(SignFlip):
    def poison_update(self, state, arrival, view):
        return torch.randn_like(arrival.gradient), state


@told(ATTACKS, "Relabelling.poison_batch: it changes labels in place")
class Relabelling(SignFlip):
    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, labels.fill_(0)


@told(ATTACKS, "Beyond.poison_batch: labels are 10 to 10; there are 10 classes here")
class Beyond(SignFlip):
    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, torch.full_like(labels, 10)


@told(ATTACKS, "Peeking.poison_batch: it reads a tensor on the host")
class Peeking(SignFlip):
    def poison_batch(self, state, inputs, labels, attacker_index):
        return inputs, labels.flip(0) if labels[0] > 0 else labels


@told(ATTACKS, "Glancing.poison_update: it reads a tensor on the host")
class Glancing(SignFlip):
    recordable = True

    def poison_update(self, state, arrival, view):
        return arrival.gradient if arrival.staleness > 3 else -arrival.gradient, state


@told(ATTACKS, "Waiting.poison_update: it uses view.round; recordable = True allows attacker_index")
class Waiting(SignFlip):
    recordable = True

    def poison_update(self, state, arrival, view):
        return arrival.gradient * (1 if view.round < 5 else -1), state


@told(
    ATTACKS, "Training.poison_update: it trains on further batch 1, and further_batches is 1; say"
)
class Training(SignFlip):
    recordable = True
    further_batches = 1

    def poison_update(self, state, arrival, view):
        return -view.train(arrival.base, 0) - view.train(arrival.base, 1), state


@told(ATTACKS, "Unwritten: poison_batch is None; write it as a method")
class Unwritten(SignFlip):
    poison_batch = None


@told(ATTACKS, "Bare.poison_batch: it returns a NoneType; return (inputs, labels)")
class Bare(SignFlip):
    def poison_batch(self, state, inputs, labels, attacker_index):
        return None


@told(ATTACKS, "Misspelt: it raises AttributeError: 'Arrival' object")
class Misspelt(SignFlip):
    recordable = False

    def poison_update(self, state, arrival, view):
        return -arrival.grad, state


@told(ATTACKS, "Nosy: it raises AttributeError: 'NoneType' object has")
class Nosy(SignFlip):
    recordable = False

    def poison_update(self, state, arrival, view):
        return -view.clients.gradients[0], state
