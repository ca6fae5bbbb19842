"""Rules that make one vector of those of n clients; the name in a TOML file is the key here."""

from secureafl.aggregators.mean import Mean
from secureafl.aggregators.median import Median
from secureafl.aggregators.trimmed_mean import TrimmedMean

AGGREGATORS = {
    "mean": Mean,
    "median": Median,
    "trimmed_mean": TrimmedMean,
}
