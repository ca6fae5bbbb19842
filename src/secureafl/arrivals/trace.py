"""A schedule of arrivals, fixed before training so that every defence faces the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from secureafl.core.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float, Int


class Trace(NamedTuple):
    """The schedule of arrivals; entry t of each array belongs to the t-th.

    >>> import numpy
    >>> malicious, rng = numpy.zeros(3, bool), numpy.random.default_rng(0)
    >>> trace = secureafl.arrivals.Uniform().draw(100, malicious, rng)
    >>> isinstance(trace, secureafl.Trace), bool((trace.version <= numpy.arange(100)).all())
    (True, True)
    """

    client: Int[np.ndarray, " rounds"]
    version: Int[np.ndarray, " rounds"]  # t - tau: the round whose model the client was given
    time: Float[np.ndarray, " rounds"]  # when it arrives, in units of a typical job


def checked(drawn: object, rounds: int, clients: int) -> Trace:
    """The schedule of any arrival model, if it is one for so many rounds and clients."""
    if not isinstance(drawn, Trace):
        remedy = "give secureafl.Trace(client, version, time)"
        raise ConfigError(f"arrivals: it draws a {type(drawn).__name__}; {remedy}")
    client = _numbers(drawn.client, "client", rounds, "iu", "whole numbers")
    version = _numbers(drawn.version, "version", rounds, "iu", "whole numbers")
    time = _numbers(drawn.time, "time", rounds, "iuf", "real numbers")
    _require_in(client, np.full(rounds, clients - 1), "client", f"number the {clients} from 0")
    _require_in(version, np.arange(rounds), "version", "give a round from 0 to its own")
    strange = np.flatnonzero(~np.isfinite(time) | (np.diff(time, prepend=time[:1]) < 0))
    if len(strange):
        told = f"the time of round {strange[0]} is {time[strange[0]]}"
        raise ConfigError(f"arrivals: {told}; give finite times, none before the one before it")
    return Trace(client, version, time)


def _numbers(values: object, what: str, rounds: int, kinds: str, needed: str) -> np.ndarray:
    """One of the three arrays; raises if it is anything else."""
    found = np.asarray(values)
    if found.shape != (rounds,) or found.dtype.kind not in kinds:
        remedy = f"give an array of {rounds} {needed}"
        raise ConfigError(f"arrivals: {what} is {found.dtype} of shape {found.shape}; {remedy}")
    return found.astype(float if "f" in kinds else np.int64, copy=False)


def _require_in(values: np.ndarray, highest: np.ndarray, what: str, remedy: str) -> None:
    """Raise if a number is below 0 or above the highest of its round."""
    strange = np.flatnonzero((values < 0) | (values > highest))
    if len(strange):
        told = f"the {what} of round {strange[0]} is {values[strange[0]]}"
        raise ConfigError(f"arrivals: {told}; {remedy}")
