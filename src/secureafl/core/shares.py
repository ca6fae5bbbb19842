"""Shares of the clients as whole numbers."""

import math

from secureafl.core.errors import require


def whole_clients(share: float, num_clients: int) -> int:
    """The share in whole clients, rounded up: a tenth of an attacker is one.

    The small subtraction undoes 0.2 * 5 = 1.0000000000000002 and its like.

    >>> secureafl.whole_clients(0.2, 10), secureafl.whole_clients(0.2, 11)
    (2, 3)
    """
    return math.ceil(share * num_clients - 1e-9)


def require_minority(name: str, share: float) -> None:
    """Raise unless the setting `name` is a share that a majority is left beside.

    >>> secureafl.require_minority("malicious_share", 0.5)
    Traceback (most recent call last):
    secureafl.core.errors.ConfigError: malicious_share = 0.5: give a share from 0 to below 0.5
    """
    require(0 <= share < 0.5, name, share, "give a share from 0 to below 0.5")
