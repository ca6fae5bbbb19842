"""Rules that make one vector of those of n clients; the name in a TOML file is the key here."""

from secureafl.aggregators.bucketing import Bucketing
from secureafl.aggregators.bulyan import Bulyan
from secureafl.aggregators.centred_clipping import CentredClipping
from secureafl.aggregators.dnc import Dnc
from secureafl.aggregators.flame import Flame
from secureafl.aggregators.fltrust import FlTrust
from secureafl.aggregators.foolsgold import FoolsGold
from secureafl.aggregators.foundation_fl import FoundationFl
from secureafl.aggregators.freq_fed import FreqFed
from secureafl.aggregators.geometric_median import GeometricMedian
from secureafl.aggregators.krum import Krum
from secureafl.aggregators.mean import Mean
from secureafl.aggregators.median import Median
from secureafl.aggregators.multi_krum import MultiKrum
from secureafl.aggregators.nearest_neighbour_mixing import NearestNeighbourMixing
from secureafl.aggregators.rflbat import Rflbat
from secureafl.aggregators.sign_guard import SignGuard
from secureafl.aggregators.trimmed_mean import TrimmedMean
from secureafl.core.protocols import Aggregator

AGGREGATORS: dict[str, type[Aggregator]] = {
    "bucketing": Bucketing,
    "bulyan": Bulyan,
    "centred_clipping": CentredClipping,
    "dnc": Dnc,
    "flame": Flame,
    "fltrust": FlTrust,
    "foolsgold": FoolsGold,
    "foundation_fl": FoundationFl,
    "freq_fed": FreqFed,
    "geometric_median": GeometricMedian,
    "krum": Krum,
    "mean": Mean,
    "median": Median,
    "multi_krum": MultiKrum,
    "nearest_neighbour_mixing": NearestNeighbourMixing,
    "rflbat": Rflbat,
    "sign_guard": SignGuard,
    "trimmed_mean": TrimmedMean,
}
