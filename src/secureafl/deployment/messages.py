"""Validation of what a client sends: the only way from a message to a vector.

An answer is refused before anything of the size it claims is made: its arrays must be, byte for
byte, what NumPy writes for the shapes of the model. Nothing of a client is parsed or unpickled.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

PROTOCOL = 2  # format of requests and answers, raised when one side would misread the other

# Records of an answer: one of the first two, the others may come along.
UPDATE = "update"  # what the server steps against: gradients, by name of the model's arrays
TRAINED = "arrays"  # or the arrays of the model after training, as Flower's apps send them
METRICS = "metrics"  # ignored here
ABOUT = "secureafl"  # entries of our own clients

ATTACK = "attack"  # entry of ABOUT: with `join --attack`, attackers of a test name themselves
SPEAKS = "protocol"  # entry of ABOUT, alone: the client has this format and not the server's
_FLOAT32, _NUMPY = "float32", "numpy.ndarray"


NOT_FINITE = "not_finite"
OTHER_VERSION = "other_version"  # the client understands other messages; no answer either
FAILED = "failed"  # the client's app raised or crashed, or its node went away: no answer at all
REFUSALS = frozenset(  # of an answer, whatever the defence, which does not see it
    {"wrong_records", "wrong_names", "wrong_type", "wrong_shape", "wrong_size", "wrong_head"}
    | {NOT_FINITE, "oversized", "malformed", "too_large"}
)


class Answer(NamedTuple):
    """A valid reply: finite numbers in the form of the model's flat vector."""

    vector: Float[np.ndarray, " d"]
    trained: bool  # whether it is the model after training; if not, the update itself
    attack: str  # what an attacker of a test says it plays; empty otherwise


class UploadSchema:
    """What the arrays of an answer must look like."""

    def __init__(self, layout: Mapping[str, tuple[int, ...]]) -> None:
        """`layout` is that of the model's flat vector (`core.flat_model.layout`)."""
        self._heads = {name: (shape, _heads(shape)) for name, shape in layout.items()}
        self._size = sum(math.prod(shape) for shape in layout.values())

    @property
    def most_bytes(self) -> int:
        """No honest answer takes more room on its way, whatever comes along in it."""
        heads = sum(len(heads[0]) for _, heads in self._heads.values())
        return 4 * self._size + heads + 1024 * len(self._heads) + 2**16

    def read(self, content: Mapping[str, Any]) -> Answer | str:
        """The answer in a message's records, or the reason why it is none."""
        names = set(content)
        if names == {ABOUT} and _entry(content[ABOUT], SPEAKS) is not None:
            return OTHER_VERSION
        kinds = names & {UPDATE, TRAINED}
        if len(kinds) != 1 or names - {UPDATE, TRAINED, METRICS, ABOUT}:
            return "wrong_records"
        kind = kinds.pop()
        vector = self._vector(content[kind])
        if isinstance(vector, str):
            return vector
        return Answer(vector, kind == TRAINED, _attack(content.get(ABOUT)))

    def _vector(self, arrays: Any) -> Float[np.ndarray, " d"] | str:
        if not isinstance(arrays, Mapping) or arrays.keys() != self._heads.keys():
            return "wrong_names"
        pieces = []
        for name, (shape, heads) in self._heads.items():
            piece = _numbers(arrays[name], shape, heads)
            if isinstance(piece, str):
                return piece
            pieces.append(piece)
        vector = np.concatenate(pieces)
        # One pass: the sum of absolute values in float64 is finite exactly if all of them are.
        with np.errstate(invalid="ignore"):  # a NaN may be one that signals
            total = np.abs(vector).sum(dtype=np.float64)
        return vector if np.isfinite(total) else NOT_FINITE


def _heads(shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """How NumPy's files of float32 with this shape begin, in C and in Fortran order."""
    heads = []
    for fortran in (False, True):
        file = io.BytesIO()
        entries = {"descr": "<f4", "fortran_order": fortran, "shape": shape}
        np.lib.format.write_array_header_1_0(file, entries)
        heads.append(file.getvalue())
    return heads[0], heads[1]


def _numbers(
    array: Any, shape: tuple[int, ...], heads: tuple[bytes, bytes]
) -> Float[np.ndarray, " size"] | str:
    """The numbers of one array in C order, or the reason why it is not the one expected."""
    kind = tuple(getattr(array, name, None) for name in ("dtype", "stype"))
    if kind != (_FLOAT32, _NUMPY) or not isinstance(array.data, bytes):
        return "wrong_type"
    if not isinstance(array.shape, tuple) or array.shape != shape:
        return "wrong_shape"
    in_c, in_fortran = heads
    if len(array.data) != len(in_c) + 4 * math.prod(shape):
        return "wrong_size"
    if array.data.startswith(in_c):
        return np.frombuffer(array.data, "<f4", offset=len(in_c))
    if array.data.startswith(in_fortran):
        numbers = np.frombuffer(array.data, "<f4", offset=len(in_fortran))
        return numbers.reshape(shape, order="F").ravel()
    return "wrong_head"


def _attack(about: Any) -> str:
    """The attack a client says it plays; anything malformed counts as none."""
    name = _entry(about, ATTACK)
    return name if isinstance(name, str) and len(name) <= 64 and name.isprintable() else ""


def _entry(about: Any, name: str) -> object:
    return about.get(name) if isinstance(about, Mapping) else None
