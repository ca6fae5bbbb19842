"""How many clients a share stands for."""

import math
from fractions import Fraction


def assumed_malicious(count, share):
    """The share of `count` in whole clients, rounded up, and fewer than half of them."""
    return min(math.ceil(Fraction(str(share)) * count), (count - 1) // 2)
