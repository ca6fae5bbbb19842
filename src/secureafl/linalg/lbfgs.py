"""The product of an L-BFGS matrix with a vector, from inner products alone.

Byrd, Nocedal and Schnabel, "Representations of quasi-Newton matrices and their use in limited
memory methods", Mathematical Programming 63, 1994, theorem 2.3. With the steps S and the changes
Y in columns, oldest first, A = S'Y, D = diag(A), L the *strictly* lower part of A, and mu the
curvature of the newest pair,

    B v = mu v - mu S q - Y p,
    (mu S'S + L D^-1 L') q = mu S'v + L D^-1 Y'v,    p = D^-1 (L' q - Y'v).

With the diagonal left in L, B would map the newest step to zero. Everything is in float64 and no
vector is touched. A matrix here is a list of rows of numbers, and a number is anything with
arithmetic operators: an array with one entry per client (`xp` is then NumPy or torch), or a
register of a function being compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_LARGEST_FACTOR = 1e10

Numbers = list[Any]
Matrix = list[list[Any]]


class Products(NamedTuple):
    """Inner products of the pairs, oldest first, and of v with them and itself."""

    steps: Matrix  # S'S
    cross: Matrix  # S'Y
    changes: Matrix  # Y'Y
    along_steps: Numbers  # S'v
    along_changes: Numbers  # Y'v
    squared: Any  # v'v


class Combination(NamedTuple):
    """B v = of_vector * v + of_steps . S + of_changes . Y, and its length."""

    of_vector: Any
    of_steps: Numbers
    of_changes: Numbers
    length: Any


def bfgs_product(xp: Any, inner: Products, filled: Any) -> Combination:
    """B v as a combination; zero where a client has no pair, or its system no usable solution.

    Only the last `filled` of the m places hold pairs (all, if `filled` is larger).
    """
    size = len(inner.steps)
    places = range(size)
    full = [filled >= size - i for i in places]
    mu = inner.cross[-1][-1] / inner.steps[-1][-1]
    over = [xp.where(full[i], 1 / inner.cross[i][i], 0.0) for i in places]  # D^-1
    lower = [[inner.cross[i][k] for k in range(i)] for i in places]  # L
    lower = [[xp.where(full[k], x, 0.0) for k, x in enumerate(row)] for row in lower]
    right = [over[k] * inner.along_changes[k] for k in places]
    goal = [mu * inner.along_steps[i] + _dot(lower[i], right) for i in places]
    system = [
        [mu * inner.steps[i][k] + _dot(lower[i][:k], lower[k], over) for k in range(i + 1)]
        for i in places
    ]
    for i in places:
        goal[i] = xp.where(full[i], goal[i], 0.0)
        system[i] = [xp.where(full[k], x, 1.0 if i == k else 0.0) for k, x in enumerate(system[i])]
    q = _solve(system, goal)
    p = [over[k] * (sum(lower[i][k] * q[i] for i in range(k + 1, size))) - right[k] for k in places]
    of_steps, of_changes = [-mu * x for x in q], [-x for x in p]
    # False for NaN too. What these multiply is far below 1e28 (`core.server.LARGEST_NORM` times
    # the steps of a long run), so the float32 product stays finite.
    sound = filled >= 1
    for factor in [mu, *of_steps, *of_changes]:
        sound = sound & (abs(factor) <= _LARGEST_FACTOR)
    mu, *rest = (xp.where(sound, factor, 0.0) for factor in [mu, *of_steps, *of_changes])
    of_steps, of_changes = rest[:size], rest[size:]
    squared = _squared(inner, mu, of_steps, of_changes)
    length = xp.sqrt(xp.where(squared >= 0, squared, 0.0))
    return Combination(mu, of_steps, of_changes, length)


def cap(xp: Any, length: Any, longest: Any) -> Any:
    """The factor, at most 1, that makes a vector of this length no longer than `longest`."""
    too_long = length > longest
    return xp.where(too_long, longest / xp.where(too_long, length, 1.0), 1.0)


def _dot(*factors: Numbers) -> Any:
    """Sum of the products of corresponding entries, up to the end of the shortest list."""
    total: Any = 0.0
    for numbers in zip(*factors, strict=False):
        product = numbers[0]
        for number in numbers[1:]:
            product = product * number
        total = total + product
    return total


def _solve(system: Matrix, right: Numbers) -> Numbers:
    """Solve by an LDL' decomposition; `system` is the lower half of a positive definite matrix."""
    size = len(right)
    factor: Matrix = [[] for _ in range(size)]  # unit lower triangle, without its diagonal
    diagonal: Numbers = []
    found: Numbers = []
    for i in range(size):
        for k in range(i):
            rest = system[i][k] - _dot(factor[i], factor[k], diagonal)
            factor[i].append(rest / diagonal[k])
        diagonal.append(system[i][i] - _dot(factor[i], factor[i], diagonal))
        found.append(right[i] - _dot(factor[i], found))
    for i in reversed(range(size)):
        below = sum(factor[k][i] * found[k] for k in range(i + 1, size))
        found[i] = found[i] / diagonal[i] - below
    return found


def _squared(inner: Products, mu: Any, of_steps: Numbers, of_changes: Numbers) -> Any:
    """The squared length of the combination."""
    size = range(len(of_steps))
    towards_v = _dot(of_steps, inner.along_steps) + _dot(of_changes, inner.along_changes)
    total = mu * (mu * inner.squared + 2 * towards_v)
    for i in size:
        towards_step = _dot(inner.steps[i], of_steps) + 2 * _dot(inner.cross[i], of_changes)
        total = total + of_steps[i] * towards_step
        total = total + of_changes[i] * _dot(inner.changes[i], of_changes)
    return total
