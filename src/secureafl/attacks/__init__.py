"""What malicious clients do; the name in a TOML file is the key here."""

from secureafl.attacks.adaptive import Adaptive
from secureafl.attacks.gaussian import Gaussian
from secureafl.attacks.label_flip import LabelFlip
from secureafl.attacks.none import NoAttack
from secureafl.attacks.scaling import Scaling
from secureafl.attacks.sign_flip import SignFlip
from secureafl.attacks.three_d_fed import ThreeDFed

ATTACKS = {
    "none": NoAttack,
    "label_flip": LabelFlip,
    "sign_flip": SignFlip,
    "gaussian": Gaussian,
    "scaling": Scaling,
    "three_d_fed": ThreeDFed,
    "adaptive": Adaptive,
}
