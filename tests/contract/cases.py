"""Everything the contract tests run over, read off the package's own tables."""

import torch

from secureafl.aggregators import AGGREGATORS
from secureafl.defenses import (
    DEFENSES,
    Aflguard,
    AsyncDefender,
    Basgd,
    FedAsync,
    FedBuff,
    Kardam,
    SecureAfl,
    TrustClipping,
    WeightedCtma,
    ZenoPp,
)
from secureafl.estimators import ESTIMATORS

# Every defence as it comes, every rule and estimator inside SecureAFL, and SecureAFL's options.
_ALL_CASES = {
    **{kind: cls() for kind, cls in DEFENSES.items()},
    **{f"estimator_{kind}": SecureAfl(estimator=cls()) for kind, cls in ESTIMATORS.items()},
    **{f"aggregator_{kind}": SecureAfl(aggregator=cls()) for kind, cls in AGGREGATORS.items()},
    "rejected_forget": SecureAfl(rejected="forget"),
    "rejected_reference": SecureAfl(rejected="reference"),
    "no_filter": SecureAfl(filter=False),
    "no_estimates": SecureAfl(estimate=False),
    "estimates_only": SecureAfl(use_received=False),
    "windowed": SecureAfl(window=8),
    "aflguard_alignment": Aflguard(form="alignment"),
    "aflguard_batch": Aflguard(batch_size=3),
    "basgd_trimmed": Basgd(rule="trimmed_mean"),
    "credibility": AsyncDefender(credibility=True),
    "constant": FedAsync(weighting="constant"),
    "hinge": FedAsync(weighting="hinge"),
    "kardam_inverse": Kardam(dampening="inverse"),
    "no_neighbours": TrustClipping(neighbours=False),
    "weighted_ctma_median": WeightedCtma(centre="median"),
    "zeno_pp_score": ZenoPp(form="score"),
}

# Defaults come up more than once; each value is tested under its first name.
DEFENSE_CASES = {
    name: value
    for place, (name, value) in enumerate(_ALL_CASES.items())
    if value not in list(_ALL_CASES.values())[:place]
}

# Rules inside SecureAFL owe the defence nothing new beside these kinds: by choice, with trusted
# samples, with a memory. Forms of other defences differ from their defaults in a line or two.
_USUAL = ("mean", "krum", "fltrust", "foolsgold")
_FORMS = (
    "aflguard_alignment",
    "basgd_trimmed",
    "credibility",
    "constant",
    "hinge",
    "kardam_inverse",
    "zeno_pp_score",
)
SLOW_CASES = {
    name
    for name in DEFENSE_CASES
    if name in _FORMS
    or (name.startswith("aggregator_") and name.removeprefix("aggregator_") not in _USUAL)
}

# Arrivals until honest clients are near their minimum; a step for every ten takes longer.
ENOUGH = {FedBuff: 450}
# Where honest uploads are alike enough for most to pass, if not in 80 arrivals of unlike clients:
# near the minimum every upload is far from the (vanishing) trusted gradient; and to Kardam, which
# compares clients with each other, unlike ones look like attackers.
ALIKE = {Aflguard: {"arrivals": 20}, Kardam: {"spread": 0.0}}


def same_decision(one, other):
    """Whether two decisions agree in every bit, undefined scores included."""
    return (
        bool(one.accepted) == bool(other.accepted)
        and bool(one.ready) == bool(other.ready)
        and torch.equal(one.direction, other.direction)
        and one.scores.keys() == other.scores.keys()
        and all(
            torch.equal(one.scores[k].nan_to_num(nan=-1.0), other.scores[k].nan_to_num(nan=-1.0))
            for k in one.scores
        )
    )
