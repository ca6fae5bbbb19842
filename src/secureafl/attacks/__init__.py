"""What malicious clients do; the name in a TOML file is the key here."""

from secureafl.attacks.adaptive import Adaptive
from secureafl.attacks.alie import Alie
from secureafl.attacks.composed import Composed
from secureafl.attacks.composed_backdoor import ComposedBackdoor
from secureafl.attacks.dba import Dba
from secureafl.attacks.gaussian import Gaussian
from secureafl.attacks.inner_product import InnerProduct
from secureafl.attacks.label_flip import LabelFlip
from secureafl.attacks.mimic import Mimic
from secureafl.attacks.min_max import MinMax
from secureafl.attacks.min_sum import MinSum
from secureafl.attacks.neurotoxin import Neurotoxin
from secureafl.attacks.none import NoAttack
from secureafl.attacks.pgd import Pgd
from secureafl.attacks.scaling import Scaling
from secureafl.attacks.sign_flip import SignFlip
from secureafl.attacks.three_d_fed import ThreeDFed
from secureafl.core.protocols import Attack

ATTACKS: dict[str, type[Attack]] = {
    "none": NoAttack,
    "label_flip": LabelFlip,
    "sign_flip": SignFlip,
    "gaussian": Gaussian,
    "scaling": Scaling,
    "dba": Dba,
    "pgd": Pgd,
    "neurotoxin": Neurotoxin,
    "three_d_fed": ThreeDFed,
    "min_max": MinMax,
    "adaptive": Adaptive,
    "min_sum": MinSum,
    "alie": Alie,
    "inner_product": InnerProduct,
    "mimic": Mimic,
    "composed": Composed,
    "composed_backdoor": ComposedBackdoor,
}
