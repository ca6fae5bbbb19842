import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from secureafl.core.errors import DataError
from secureafl.tasks.idx import find_idx, read_idx


def as_idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape)
    return header + array.astype(np.uint8).tobytes()


IMAGES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
GOOD = as_idx(IMAGES)

shapes = arrays.array_shapes(min_dims=1, max_dims=3, max_side=6)


@given(array=arrays.arrays(np.uint8, shapes), packed=st.booleans())
def test_array_survives_a_file(tmp_path_factory, array, packed):
    path = tmp_path_factory.mktemp("idx") / ("a.gz" if packed else "a")
    raw = as_idx(array)
    path.write_bytes(gzip.compress(raw) if packed else raw)
    found = read_idx(path)
    assert found.dtype == np.uint8
    assert np.array_equal(found, array)


BAD_FILES = {
    "empty": b"",
    "three_bytes": b"\0\0\x08",
    "header_only": b"\0\0\x08\x03",
    "wrong_magic": b"\x01" + GOOD[1:],
    "of_floats": bytes([0, 0, 0x0D]) + GOOD[3:],
    "without_axes": bytes([0, 0, 8, 0]) + GOOD[4:],
    "truncated_header": GOOD[:9],
    "truncated": GOOD[:-1],
    "too_long": GOOD + b"\0",
    "lying_header": bytes([0, 0, 8, 3]) + struct.pack(">3i", 200, 3, 4) + GOOD[16:],
    "negative_header": bytes([0, 0, 8, 2]) + struct.pack(">2i", -4, -6) + GOOD[16:],
    "enormous_header": bytes([0, 0, 8, 3]) + struct.pack(">3i", *[2**31 - 1] * 3) + GOOD[16:],
    "html": b"<!DOCTYPE html><html>404 Not Found</html>",
}


def refused(path):
    with pytest.raises(DataError) as caught:
        read_idx(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message


@pytest.mark.parametrize("kind", BAD_FILES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
def test_damaged_file_is_refused_in_one_line(tmp_path, kind, packed):
    path = tmp_path / ("images.gz" if packed else "images")
    path.write_bytes(gzip.compress(BAD_FILES[kind]) if packed else BAD_FILES[kind])
    refused(path)


@pytest.mark.parametrize(
    "raw",
    [b"", GOOD, gzip.compress(GOOD)[:-9], gzip.compress(GOOD)[:30] + b"\xff" * 20],
    ids=["empty", "not_gzip", "cut_off", "scrambled"],
)
def test_damaged_gzip_is_refused_in_one_line(tmp_path, raw):
    path = tmp_path / "images.gz"
    path.write_bytes(raw)
    refused(path)


def test_absent_file_is_refused_in_one_line(tmp_path):
    refused(tmp_path / "nowhere")


@given(position=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255))
def test_any_single_changed_byte_is_read_or_refused_but_never_raises_anything_else(
    tmp_path_factory, position, value
):
    path = tmp_path_factory.mktemp("idx") / "images"
    path.write_bytes(GOOD[:position] + bytes([value]) + GOOD[position + 1 :])
    try:
        found = read_idx(path).size
    except DataError:
        found = IMAGES.size
    assert found == IMAGES.size


def test_gzipped_file_is_found_before_the_plain_one(tmp_path):
    assert find_idx(tmp_path, "images") is None
    (tmp_path / "images").touch()
    assert find_idx(tmp_path, "images") == tmp_path / "images"
    (tmp_path / "images.gz").touch()
    assert find_idx(tmp_path, "images") == tmp_path / "images.gz"
