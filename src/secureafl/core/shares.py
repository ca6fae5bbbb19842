"""Shares of the clients as whole numbers."""

import math


def whole_clients(share: float, num_clients: int) -> int:
    """The share in whole clients, rounded up: a tenth of an attacker is one.

    The small subtraction undoes 0.2 * 5 = 1.0000000000000002 and its like.
    """
    return math.ceil(share * num_clients - 1e-9)
