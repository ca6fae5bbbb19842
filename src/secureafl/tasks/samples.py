"""Samples as people have them: arrays, tensors, columns or data sets, read into two tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from secureafl.core.errors import DataError
from secureafl.core.memory import free_memory, require_memory

Samples = tuple[Tensor, Tensor]  # inputs and labels

_LABELS = ("label", "labels", "target", "targets", "y", "class", "fine_label")
_PAIR = "give (inputs, labels), a data set of such pairs, or a dict of columns"
_KEPT = {"f": np.float32, "i": np.int64, "u": np.int64}
_KINDS = {  # what NumPy calls a dtype's kind, where it is no number
    "O": "Python objects",
    "M": "dates",
    "m": "durations",
    "c": "complex numbers",
    "V": "records",
}


def read_samples(given: Any, what: str, columns: tuple[str, str] | None = None) -> Samples:
    """Inputs and labels of samples in any usual form; `what` names them in messages.

    Inputs become uint8, int64 or float32 and labels int64 or float32, whatever they were. Of a
    table, `columns` are the inputs and the labels.
    """
    if isinstance(given, DataLoader):
        raise DataError(f"{what}: a DataLoader; give its data set, loader.dataset")
    if _is_pair(given):
        inputs, labels = given
    elif _is_table(given):
        inputs, labels = _from_columns(given, what, columns)
    else:
        inputs, labels = _from_items(given, what, columns)
    found = _inputs(inputs, f"{what}: inputs"), _labels(labels, f"{what}: labels")
    return _checked(*found, what)


def _is_pair(given: Any) -> bool:
    two = isinstance(given, tuple | list) and len(given) == 2
    return two and (isinstance(given, tuple) or all(hasattr(part, "shape") for part in given))


def _is_table(given: Any) -> bool:
    """A dict of columns, a Hugging Face data set or a data frame."""
    named = hasattr(given, "column_names") or hasattr(given, "columns")
    return isinstance(given, Mapping) or named


def _from_columns(given: Any, what: str, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    names = [str(name) for name in getattr(given, "column_names", None) or given]
    _require_sized(given, what)
    chosen, label = _choose_columns(names, what, columns)
    if len(chosen) == 1:
        return given[chosen[0]], given[label]
    parts = [_inputs(given[name], f"{what}: values of {name!r}") for name in chosen]
    wide = next((n for n, part in zip(chosen, parts, strict=True) if part.dim() > 1), None)
    if wide or len({len(part) for part in parts}) > 1:
        told = f"columns {', '.join(chosen)} do not stand side by side"
        raise DataError(f"{what}: {told}; name two with columns=(inputs, labels)")
    return torch.stack([part.float() for part in parts], dim=1), given[label]


def _choose_columns(
    names: Sequence[str], what: str, columns: tuple[str, str] | None
) -> tuple[list[str], str]:
    """The columns of inputs, one or several numbers side by side, and that of labels."""
    label = columns[1] if columns else next((name for name in _LABELS if name in names), None)
    inputs = [columns[0]] if columns else [name for name in names if name != label]
    known = ", ".join(names) or "none"
    if label is None or not inputs or not {label, *inputs} <= {*names}:
        remedy = "name two with columns=(inputs, labels)"
        raise DataError(f"{what}: which columns are inputs and labels? There are {known}; {remedy}")
    return inputs, label


def _from_items(given: Any, what: str, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    """Read a map-style data set item by item, once."""
    if isinstance(given, np.ndarray | Tensor) or hasattr(given, "to_numpy"):
        raise DataError(f"{what}: inputs without labels; {_PAIR}")
    _require_sized(given, what)
    if isinstance(given, str | bytes) or not hasattr(given, "__getitem__"):
        raise DataError(f"{what}: of type {type(given).__name__}; {_PAIR}")
    pairs: list[tuple[Tensor, Any]] = []
    for number in range(len(given)):
        one, label = _item(given[number], f"{what}: item {number}", columns)
        pairs.append((_inputs([one], f"{what}: item {number}")[0], label))
        if number == 0:
            _require_room(2 * len(given) * pairs[0][0].nbytes, what)  # read, then stacked
    return [one for one, _ in pairs], [label for _, label in pairs]


def _item(item: Any, what: str, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        inputs, label = _choose_columns(list(item), what, columns)
        values = [item[name] for name in inputs]
        return values[0] if len(values) == 1 else values, item[label]
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise DataError(f"{what}: of type {type(item).__name__}, no pair; {_PAIR}")


def _require_sized(given: Any, what: str) -> None:
    try:
        len(given)
    except TypeError:
        kind = type(given).__name__
        raise DataError(f"{what}: a {kind} has no length; {_PAIR}") from None


def _inputs(values: Any, what: str) -> Tensor:
    found = _tensor(values, what)
    if found.is_floating_point() or found.dtype == torch.bool:
        return found.to(torch.float32)
    return found if found.dtype == torch.uint8 else found.to(torch.int64)


def _labels(values: Any, what: str) -> Tensor:
    found = _tensor(values, what)
    if found.dim() == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.dim() != 1:
        remedy = "give one for each sample; of one-hot rows, labels.argmax(1)"
        raise DataError(f"{what} are {tuple(found.shape)}; {remedy}")
    return found.to(torch.float32 if found.is_floating_point() else torch.int64)


def _checked(inputs: Tensor, labels: Tensor, what: str) -> Samples:
    """The samples, if there are any, with a label for each input, and nothing undefined."""
    if inputs.dim() == 0 or len(inputs) != len(labels):
        counts = f"{len(inputs) if inputs.dim() else 'no'} inputs and {len(labels)} labels"
        raise DataError(f"{what}: {counts}; give a label for each input")
    if not len(inputs):
        raise DataError(f"{what}: there are no samples; give at least 1")
    for values, name in ((inputs, "inputs"), (labels, "labels")):
        finite = torch.isfinite(values.reshape(len(values), -1)).all(dim=1)
        if not finite.all():
            bad = (~finite).nonzero()[:, 0]
            told = f"{name} of {len(bad):,} samples are not finite, the first is number {bad[0]}"
            raise DataError(f"{what}: {told}; fill them in or remove those samples")
    return inputs, labels


def _tensor(values: Any, what: str) -> Tensor:
    """Numbers of any kind as a tensor of this process's memory."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided:
            raise DataError(f"{what} are sparse; give values.to_dense()")
        if values.is_complex():
            raise DataError(f"{what} are complex numbers; give real ones")
        return values.detach().cpu()
    if hasattr(values, "toarray"):
        raise DataError(f"{what} are a sparse matrix; give values.toarray()")
    return _from_array(_array(values, what), what)


def _array(values: Any, what: str) -> np.ndarray:
    try:
        if not hasattr(values, "__array__") and len(values) and not np.isscalar(values[0]):
            _require_room(len(values) * _one(values[0]).nbytes, what)
            return np.stack([_one(value) for value in values])
        found = np.asarray(values)
        if found.dtype.kind == "O" and found.ndim == 1 and len(found) and np.ndim(found[0]):
            return np.stack([_one(value) for value in found])  # a frame's column of arrays
        return found
    except (ValueError, TypeError) as error:
        why = " ".join(str(error).split())[:80]
        raise DataError(f"{what} are not all alike ({why}); crop or pad them") from None


def _require_room(wanted: float, what: str) -> None:
    remedy = "give fewer samples, or smaller ones"
    require_memory(wanted, free_memory(), f"{what}: a copy of them", remedy)


def _one(value: Any) -> np.ndarray:
    """One sample; a picture gets its channels outermost."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    found = np.asarray(value)
    if hasattr(value, "getbands"):  # of PIL
        return found[None] if found.ndim == 2 else found.transpose(2, 0, 1)
    return found


def _from_array(array: np.ndarray, what: str) -> Tensor:
    kind = array.dtype.kind
    if kind not in "fiub":
        texts = kind in "UST" or (array.size and isinstance(array.flat[0], str))
        told = "texts" if texts else _KINDS.get(kind, str(array.dtype))
        remedy = "number them: numpy.unique(values, return_inverse=True)[1]"
        raise DataError(f"{what} are {told}; {remedy if texts else 'give an array of numbers'}")
    dtype = array.dtype if kind == "b" or array.dtype == np.uint8 else np.dtype(_KEPT[kind])
    usable = array.flags.c_contiguous and array.flags.writeable
    if array.dtype != dtype or not usable:
        _require_room(array.size * dtype.itemsize, what)
        array = array.astype(dtype, order="C")
    return torch.from_numpy(array)
