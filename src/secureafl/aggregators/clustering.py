"""k-means with a number of clusters that fits; scikit-learn's, where that is installed."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from secureafl.core.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_LARGEST, _REFERENCES = 10, 5  # clusters tried, and clouds without clusters to compare with
_STARTS = 4  # one alone often ends in a poor arrangement, and then the gaps mislead


@functools.cache
def scikit_learn() -> Any:
    """The clustering module of scikit-learn."""
    try:
        return importlib.import_module("sklearn.cluster")
    except ImportError:
        remedy = 'install it with: pip install "secureafl[cluster]"'
        raise ConfigError(f"scikit-learn is needed here; {remedy}") from None


def natural_clusters(
    points: Float[np.ndarray, "n m"], rng: np.random.Generator
) -> Int[np.ndarray, " n"]:
    """Labels 0, 1, … by k-means; how many clusters there are follows from the gap statistic.

    The number is the first whose gap is not clearly below the next one's; the gap is how much
    tighter the clusters are than those of points spread evenly over the same box.

    Tibshirani, Walther, Hastie, "Estimating the number of clusters in a data set via the gap
    statistic", Journal of the Royal Statistical Society B 63, 2001.
    """
    largest = min(_LARGEST, len(np.unique(points, axis=0)), len(points) - 1)
    box = np.ptp(points, axis=0)
    even = [points.min(axis=0) + box * rng.random(points.shape) for _ in range(_REFERENCES)]
    labels, gap, _ = _gap(points, even, 1, rng)
    for number in range(2, largest + 1):
        more, next_gap, slack = _gap(points, even, number, rng)
        if gap >= next_gap - slack:
            break
        labels, gap = more, next_gap
    return labels


def _gap(
    points: np.ndarray, even: list[np.ndarray], number: int, rng: np.random.Generator
) -> tuple[np.ndarray, float, float]:
    """Labels for `number` clusters, their gap, and the error of that."""
    labels, spread = _k_means(points, number, rng)
    if spread == 0:  # points that coincide: as tight as can be
        return labels, np.inf, 0.0
    logs = np.log([_k_means(cloud, number, rng)[1] for cloud in even])
    return labels, logs.mean() - np.log(spread), logs.std() * np.sqrt(1 + 1 / len(logs))


def _k_means(points: np.ndarray, number: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Labels, and the sum of squared distances to the centres."""
    if number == 1:
        return np.zeros(len(points), dtype=np.int64), float(
            np.square(points - points.mean(0)).sum()
        )
    model = scikit_learn().KMeans(number, n_init=_STARTS, random_state=int(rng.integers(2**31)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # points that coincide make fewer clusters than asked
        model.fit(points)
    return model.labels_.astype(np.int64), float(model.inertia_)
