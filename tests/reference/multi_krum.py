"""Multi-Krum: mean of the n - f rows with the smallest Krum scores."""

import numpy as np
from reference.krum import scores
from reference.share import assumed_malicious


def multi_krum(rows, share):
    """Mean of the best rows; of equal ones the first."""
    malicious = assumed_malicious(len(rows), share)
    order = np.argsort(scores(rows, malicious), kind="stable")
    return rows[order[: len(rows) - malicious]].mean(axis=0)
