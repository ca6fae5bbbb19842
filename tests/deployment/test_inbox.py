"""Replies as Flower's server keeps them: pieces of bytes that name each other."""

import json
import tracemalloc

import numpy as np
import pytest
from deployment.grids import as_server
from deployment.hostile import LAYOUT, good
from flwr.app import Message, MessageType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from secureafl.deployment.inbox import put_together
from secureafl.deployment.messages import Answer, Form

FORM = Form(LAYOUT)


def pieces_of(seed=0):
    """An honest reply in pieces, and the name of the first."""
    as_server()
    message = Message(
        good(np.random.default_rng(seed)), dst_node_id=7, message_type=MessageType.TRAIN
    )
    parts = get_all_nested_objects(message)
    return message.object_id, {name: part.deflate() for name, part in parts.items()}


def array_of(pieces):
    return next(name for name, piece in pieces.items() if piece.startswith(b"Array "))


def test_pieces_of_an_honest_reply_make_it():
    root, pieces = pieces_of()
    message = put_together(root, pieces, FORM.most_bytes)
    assert isinstance(FORM.read(message.content), Answer)


def test_chunk_named_again_and_again_is_measured_not_put_in_a_row():
    root, pieces = pieces_of()
    name = array_of(pieces)
    head, _, body = pieces[name].partition(b"\0")
    facts = json.loads(body)
    facts["arraychunk_ids"] = [0] * 50_000
    pieces[name] = head + b"\0" + json.dumps(facts).encode()
    tracemalloc.start()
    assert put_together(root, pieces, FORM.most_bytes) == "oversized"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * 2**20  # put in a row they would take 10


def test_piece_that_contains_itself_is_malformed():
    root, pieces = pieces_of()
    name = array_of(pieces)
    pieces[name] = pieces[name].replace(pieces[name].split(b" ")[1][:64], name.encode())
    assert put_together(root, pieces, FORM.most_bytes) == "malformed"


def test_reply_that_is_no_message_is_malformed():
    _, pieces = pieces_of()
    assert put_together(array_of(pieces), pieces, FORM.most_bytes) == "malformed"


def test_lacking_piece_is_malformed():
    root, pieces = pieces_of()
    for name in list(pieces):
        rest = {n: p for n, p in pieces.items() if n != name}
        assert put_together(root, rest, FORM.most_bytes) == "malformed"


def mangled(rng, piece):
    """Bytes cut, turned over, doubled, or put in."""
    place = int(rng.integers(len(piece) + 1))
    how = rng.integers(4)
    if how == 0:
        return piece[:place]
    if how == 1:
        return piece[:place] + bytes([rng.integers(256)]) + piece[place + 1 :]
    return piece[:place] + (piece if how == 2 else rng.bytes(9)) + piece[place:]


def mangle(rng, count):
    root, whole = pieces_of()
    names = list(whole)
    for _ in range(count):
        pieces = dict(whole)
        for _ in range(rng.integers(1, 4)):
            name = names[rng.integers(len(names))]
            pieces[name] = mangled(rng, pieces[name])
        message = put_together(root, pieces, FORM.most_bytes)
        if isinstance(message, str):
            assert message in ("malformed", "oversized")
        elif not message.has_error():
            answer = FORM.read(message.content)  # numbers may have changed into other numbers
            assert isinstance(answer, str) or np.isfinite(answer.vector).all()


def test_mangled_pieces_never_raise():
    mangle(np.random.default_rng(1), 2000)


@pytest.mark.slow
def test_many_mangled_pieces_never_raise():
    mangle(np.random.default_rng(2), 200_000)
