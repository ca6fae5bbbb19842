"""A composed attack, one upload after the other and number by number."""

import itertools
import math
import statistics

import numpy as np


def unit(vector):
    """At length 1; zero stays zero."""
    length = math.sqrt(sum(float(x) ** 2 for x in vector))
    return np.array([x / length if length else 0.0 for x in vector], dtype=float)


def group_of(place, groups):
    """The group that a coordinate belongs to."""
    return place * 2654435761 % 1000003 % groups


def own_part(vector, attacker, groups):
    """What the attacker's group pushes of a vector."""
    mine = attacker % groups
    return np.array([x if group_of(i, groups) == mine else 0.0 for i, x in enumerate(vector)])


def only_victims(labels, victim, classes):
    """Places of the samples that a batch is made of, and their labels."""
    found = [i for i, label in enumerate(labels) if label == victim]
    if not found:
        return list(range(len(labels))), list(labels)
    places = [found[i % len(found)] for i in range(len(labels))]
    return places, [(victim + 1) % classes] * len(labels)


class Composed:
    """What the attackers remember, and what they upload."""

    def __init__(self, attack, attackers, private=None, target=None):
        """Directions and the wrong model are those that were drawn."""
        self.attack, self.private, self.target = attack, private, target
        self.slow = None
        self.bases = [[] for _ in range(attackers)]

    def upload(self, attacker, own, base, honest, poisoned, fresh):
        """`honest` are the honest gradients, `poisoned` the one on poisoned data."""
        bases = self.bases[attacker]
        earlier, move = [b - a for a, b in itertools.pairwise(bases)], 0 * base
        if bases:
            move = base - bases[-1]
        if len(honest):
            mean = np.mean(honest, axis=0)
            self.slow = mean if self.slow is None else 0.98 * self.slow + 0.02 * mean
        attacks = len(honest) > 0 and self.attacks(len(bases), move, earlier)
        made = self.lie(attacker, own, base, honest, poisoned, fresh, move) if attacks else own
        bases.append(base.astype(np.float32))
        return made

    def attacks(self, uploads, move, earlier):
        """Whether it is time to."""
        period, timing = self.attack.period, self.attack.timing
        lengths = [float(np.linalg.norm(m)) for m in earlier[-15:]]
        usual = statistics.median(lengths) if lengths else 0.0
        return {
            "always": True,
            "late": uploads >= period,
            "early": uploads < period,
            "on_off": (uploads // period) % 2 == 0,
            "moving": float(np.linalg.norm(move)) > usual,
        }[timing]

    def lie(self, attacker, own, base, honest, poisoned, fresh, move):
        """An upload that attacks."""
        attack = self.attack
        length = attack.factor * self.length(honest, len(self.bases[attacker]))
        if attack.collusion == "sacrificed" and attacker == 0 and len(self.bases) > 1:
            return -10 * length * unit(np.mean(honest, axis=0))
        aim = self.aim(base, honest, poisoned)
        if attack.collusion == "groups":
            aim = own_part(aim, attacker, attack.groups)
        cover = unit(self.cover(attacker, own, honest, fresh))
        mix = attack.share * unit(aim) + math.sqrt(1 - attack.share**2) * cover
        return length * unit(unit(mix) + attack.curvature * unit(move))

    def length(self, honest, uploads):
        """Before the factor."""
        norms = [float(np.linalg.norm(g)) for g in honest]
        if self.attack.length == "longest":
            return max(norms)
        shrunk = math.sqrt(1 + uploads) if self.attack.length == "shrinking" else 1
        return statistics.median(norms) / shrunk

    def aim(self, base, honest, poisoned):
        """What does harm."""
        kind = getattr(self.attack, "aim", "backdoor")
        if kind == "mean":
            return -self.slow
        if kind == "sign":
            return -np.sign(self.slow)
        if kind == "std":
            return -np.sign(self.slow) * np.std(honest, axis=0)
        return base - self.target if kind == "model" else poisoned

    def cover(self, attacker, own, honest, fresh):
        """What it hides behind."""
        kind = self.attack.cover
        if kind == "private":
            return self.private[attacker]
        copy = honest[0 if kind == "copy" else attacker % len(honest)]
        return {"own": own, "fresh": fresh, "none": 0 * own}.get(kind, copy)
