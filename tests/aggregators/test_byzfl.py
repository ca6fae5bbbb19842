"""Rules beside those of byzfl, a library by other people: an oracle that nobody here has written.

Skipped where it is not installed (`pip install byzfl`).
"""

import math

import numpy as np
import pytest
from aggregating import aggregated, everybody

from secureafl.aggregators import (
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    NearestNeighbourMixing,
    TrimmedMean,
)

byzfl = pytest.importorskip("byzfl")
SHARE = 0.2
# A rule of ours, and theirs for so many malicious clients.
PAIRS = {
    "mean": (Mean(), lambda f: byzfl.Average()),
    "median": (Median(), lambda f: byzfl.Median()),
    "trimmed_mean": (TrimmedMean(SHARE), lambda f: byzfl.TrMean(f)),
    "geometric_median": (GeometricMedian(2000, 1e-9), lambda f: byzfl.GeometricMedian(1e-9, 2000)),
    # Theirs counts n - f - 1 neighbours, the paper and ours n - f - 2.
    "krum": (Krum(SHARE), lambda f: byzfl.Krum(f + 1)),
    "centred_clipping": (CentredClipping(2.0, 3), lambda f: byzfl.CenteredClipping(None, 3, 2.0)),
    "nearest_neighbour_mixing": (
        NearestNeighbourMixing(inner=Median(), share=SHARE),
        lambda f: lambda rows: byzfl.Median()(byzfl.NNM(f)(rows)),
    ),
}


@pytest.mark.parametrize("clients", [5, 11, 25])
@pytest.mark.parametrize("name", PAIRS)
def test_rule_gives_what_that_of_byzfl_gives(name, clients):
    ours, make = PAIRS[name]
    theirs = make(math.ceil(SHARE * clients))
    rng = np.random.default_rng(clients)
    rows = rng.normal(size=7) + rng.normal(size=(clients, 7))
    rows[0] += 50  # one far away
    for calls in (1, 2):  # a rule with a memory goes on from it
        found = aggregated(ours, rows, everybody(clients), calls=calls)
        np.testing.assert_allclose(found, theirs(rows), rtol=1e-6, atol=1e-8)
