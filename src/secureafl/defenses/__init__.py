"""What the server does with each arrival; the name in a TOML file is the key here."""

from secureafl.core.protocols import Defense
from secureafl.defenses.aflguard import Aflguard
from secureafl.defenses.async_defender import AsyncDefender
from secureafl.defenses.async_filter import AsyncFilter
from secureafl.defenses.async_sgd import AsyncSgd
from secureafl.defenses.basgd import Basgd
from secureafl.defenses.catalyst import Catalyst
from secureafl.defenses.fed_async import FedAsync
from secureafl.defenses.fed_buff import FedBuff
from secureafl.defenses.fl_detector import FlDetector
from secureafl.defenses.kardam import Kardam
from secureafl.defenses.norm_clipping import NormClipping
from secureafl.defenses.sageflow import Sageflow
from secureafl.defenses.secure_afl import SecureAfl
from secureafl.defenses.trust_clipping import TrustClipping
from secureafl.defenses.weighted_ctma import WeightedCtma
from secureafl.defenses.zeno_pp import ZenoPp

DEFENSES: dict[str, type[Defense]] = {
    "aflguard": Aflguard,
    "async_defender": AsyncDefender,
    "async_filter": AsyncFilter,
    "async_sgd": AsyncSgd,
    "basgd": Basgd,
    "catalyst": Catalyst,
    "fed_async": FedAsync,
    "fed_buff": FedBuff,
    "fl_detector": FlDetector,
    "kardam": Kardam,
    "norm_clipping": NormClipping,
    "sageflow": Sageflow,
    "secure_afl": SecureAfl,
    "trust_clipping": TrustClipping,
    "weighted_ctma": WeightedCtma,
    "zeno_pp": ZenoPp,
}
