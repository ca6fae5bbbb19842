"""Messages an attacker might send: a good answer with something wrong about it, at random."""

import functools
import io
import math
import os
import pickle

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from secureafl.deployment.client_app import named_arrays

# How many messages the slow tests send: SECUREAFL_HOSTILE=10000000 for a night.
COUNT = int(os.environ.get("SECUREAFL_HOSTILE", "1000000"))
LAYOUT = {"first.weight": (4, 3), "first.bias": (4,), "last.weight": (2, 4), "scale": ()}
SIZE = 25
_ARRAYS = list(LAYOUT)


_HONEST = [
    named_arrays(np.random.default_rng(n).normal(size=SIZE).astype(np.float32), LAYOUT)
    for n in range(50)
]


def good(rng, kind="update"):
    """An answer as an honest client sends it."""
    # Arrays are never changed, only replaced, so all messages may share them.
    return RecordDict({kind: _HONEST[rng.integers(len(_HONEST))].copy()})


def hostile(rng):
    """A message that must be refused, and what is wrong with it."""
    name = NAMES[rng.integers(len(NAMES))]
    content = good(rng, ("update", "arrays")[rng.integers(2)])
    return WRONGS[name](rng, content), name


def _record(content):
    return next(iter(content.values()))


def _any_name(rng):
    return _ARRAYS[rng.integers(len(_ARRAYS))]


def _with_array(rng, content, **changes):
    record, name = _record(content), _any_name(rng)
    old = record[name]
    fields = {key: getattr(old, key) for key in ("dtype", "shape", "stype", "data")}
    record[name] = Array(**{**fields, **changes})
    return content


def _spoilt(value):
    number = np.float32(value).tobytes()

    def spoil(rng, content):
        record, name = _record(content), _any_name(rng)
        old = record[name]
        place = len(old.data) - 4 * int(rng.integers(math.prod(LAYOUT[name]))) - 4
        data = old.data[:place] + number + old.data[place + 4 :]
        record[name] = Array(old.dtype, old.shape, old.stype, data)
        return content

    return spoil


@functools.cache  # made once: to write these would take most of the time
def _zeros(shape, dtype=np.float32):
    return Array(np.zeros(shape, dtype))


@functools.cache
def _head(fortran, dtype, shape):
    file = io.BytesIO()
    entries = {"descr": dtype, "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(file, entries)
    return file.getvalue()


def _npy(rng, dtype, shape, fill=b""):
    return _head(bool(rng.integers(2)), dtype, shape) + fill


def _other_data(make):
    def change(rng, content):
        old = _record(content)
        name = _any_name(rng)
        data = make(rng, old[name].data)
        if data == old[name].data:
            data += b"\0"
        old[name] = Array(old[name].dtype, old[name].shape, old[name].stype, data)
        return content

    return change


def _flipped(rng, data):
    """A bit of the head turned over: never a number, which may be any."""
    place, bit = int(rng.integers(60)), 1 << int(rng.integers(8))
    return data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]


def _renamed(rng, content):
    record, name = _record(content), _any_name(rng)
    record[("", "x" * 10_000, "first", name + "\0", "../../" + name)[rng.integers(5)]] = record.pop(
        name
    )
    return content


def _lacking(rng, content):
    del _record(content)[_any_name(rng)]
    return content


def _one_more(rng, content):
    _record(content)[f"more{rng.integers(1000)}"] = _zeros(int(rng.integers(9)))
    return content


def _other_type(rng, content):
    record, name = _record(content), _any_name(rng)
    kinds = (np.float64, np.float16, np.int32, np.int64, np.uint8, np.bool_, np.complex64, ">f4")
    record[name] = _zeros(LAYOUT[name], kinds[rng.integers(len(kinds))])
    return content


def _claimed(field, values):
    return lambda rng, content: _with_array(
        rng, content, **{field: values[rng.integers(len(values))]}
    )


def _other_shape(rng, content):
    record, name = _record(content), _any_name(rng)
    shapes = ((0,), (1, 1), (SIZE,), (3, 4, 1), (7,))
    record[name] = _zeros(shapes[rng.integers(len(shapes))])
    return content


class _Bomb:
    def __reduce__(self):
        raise AssertionError("unpickled")


def _odd_records(rng, content):
    odd = (
        lambda: RecordDict(),
        lambda: RecordDict({"update": MetricRecord({"a": 1.0})}),
        lambda: RecordDict({"update": ConfigRecord({"a": "b"})}),
        lambda: RecordDict({"arrays": ArrayRecord()}),
        lambda: RecordDict({"update": _record(content), "arrays": _record(good(rng))}),
        lambda: RecordDict({"gradient": _record(content)}),
        lambda: RecordDict({**content, "more": ConfigRecord({"run": "this"})}),
    )
    return odd[rng.integers(len(odd))]()


_HUGE = (10**9, 10**9)
WRONGS = {
    "nan": _spoilt(np.nan),
    "infinite": _spoilt(np.inf),
    "minus infinite": _spoilt(-np.inf),
    "truncated": _other_data(lambda rng, data: data[: rng.integers(len(data))]),
    "longer": _other_data(lambda rng, data: data + bytes(int(rng.integers(1, 5000)))),
    "random bytes": _other_data(lambda rng, data: rng.bytes(len(data))),
    "bits flipped": _other_data(_flipped),
    "pickle": _other_data(lambda rng, data: b"\x80\x04." + data),
    "objects": _other_data(
        lambda rng, data: _npy(rng, "|O", (1,), pickle.dumps([1, 2, 3]))[: len(data)]
    ),
    "huge head": _other_data(
        lambda rng, data: _npy(rng, "<f4", _HUGE).ljust(len(data))[: len(data)]
    ),
    "many numbers head": _other_data(lambda rng, data: _npy(rng, "<f8", (10**12,))),
    "renamed": _renamed,
    "lacking": _lacking,
    "one more": _one_more,
    "other type": _other_type,
    "claimed type": _claimed("dtype", ("float64", "object", "", "f4", "float32\0", "O")),
    "claimed kind": _claimed("stype", ("torch.tensor", "pickle", "", "numpy.ndarray ")),
    "claimed shape": _claimed("shape", (_HUGE, (-1,), (25,), (3, 4, 1), (0,), (2**63, 2))),
    "other shape": _other_shape,
    "odd records": _odd_records,
}
NAMES = list(WRONGS)
