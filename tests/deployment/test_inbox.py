"""Replies as Flower's server keeps them: pieces of bytes that name each other."""

import json
import resource
import tracemalloc

import numpy as np
import pytest
from deployment.grids import as_server
from deployment.hostile import COUNT, LAYOUT, good
from flwr.app import Error, Message, MessageType
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

from secureafl.deployment.inbox import Inbox, assemble
from secureafl.deployment.messages import FAILED, Answer, UploadSchema

FORM = UploadSchema(LAYOUT)


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
    message = assemble(root, pieces, FORM.most_bytes)
    assert isinstance(FORM.read(message.content), Answer)


def test_chunk_named_again_and_again_is_measured_not_put_in_a_row():
    root, pieces = pieces_of()
    name = array_of(pieces)
    head, _, body = pieces[name].partition(b"\0")
    facts = json.loads(body)
    facts["arraychunk_ids"] = [0] * 50_000
    pieces[name] = head + b"\0" + json.dumps(facts).encode()
    tracemalloc.start()
    assert assemble(root, pieces, FORM.most_bytes) == "oversized"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * 2**20  # put in a row they would take 10


def test_piece_that_contains_itself_is_malformed():
    root, pieces = pieces_of()
    name = array_of(pieces)
    pieces[name] = pieces[name].replace(pieces[name].split(b" ")[1][:64], name.encode())
    assert assemble(root, pieces, FORM.most_bytes) == "malformed"


def test_reply_that_is_no_message_is_malformed():
    _, pieces = pieces_of()
    assert assemble(array_of(pieces), pieces, FORM.most_bytes) == "malformed"


def test_lacking_piece_is_malformed():
    root, pieces = pieces_of()
    for name in list(pieces):
        rest = {n: p for n, p in pieces.items() if n != name}
        assert assemble(root, rest, FORM.most_bytes) == "malformed"


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
        message = assemble(root, pieces, FORM.most_bytes)
        if isinstance(message, str):
            assert message in ("malformed", "oversized")
        elif not message.has_error():
            answer = FORM.read(message.content)  # numbers may have changed into other numbers
            assert isinstance(answer, str) or np.isfinite(answer.vector).all()


def test_mangled_pieces_never_raise():
    mangle(np.random.default_rng(1), 2000)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_mangled_pieces_never_raise_and_take_no_memory():
    rng = np.random.default_rng(2)
    mangle(rng, 10_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mangle(rng, COUNT // 5)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"memory grew by {grown / 2**10:.0f} MiB")
    assert grown < 32 * 2**10  # KiB


class Link:
    """The SuperLink's side: replies by request, and pieces that are here or not yet."""

    def __init__(self):
        self.replies, self.pieces, self.confirmed, self.asked = {}, {}, [], []

    def answer(self, request, node, pieces, root, tree=None):
        message = message_to_proto(as_reply(request, node, root))
        self.replies[request] = message, tree or flat_tree(root, pieces)
        self.pieces |= pieces

    def PullMessages(self, request):  # noqa: N802  (Flower's name)
        self.asked.append(list(request.message_ids))
        found = [self.replies.pop(i) for i in request.message_ids if i in self.replies]
        messages, trees = zip(*found, strict=True) if found else ((), ())
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def PullObject(self, request):  # noqa: N802
        here = request.object_id in self.pieces
        content = self.pieces.get(request.object_id, b"")
        return PullObjectResponse(object_found=True, object_available=here, object_content=content)

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)


def as_reply(request, node, root):
    """What the SuperLink has checked of a reply."""
    as_server()
    message = Message(good(np.random.default_rng(0)), dst_node_id=1, message_type=MessageType.TRAIN)
    facts = {"_reply_to_message_id": request, "_src_node_id": node, "_message_id": root}
    message.metadata.__dict__.update(facts)
    return remove_content_from_message(message)


def flat_tree(root, pieces):
    children = [ObjectTree(object_id=name) for name in pieces if name != root]
    return ObjectTree(object_id=root, children=children)


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def inbox(link):
    as_server()
    grid = HttpGrid(token="x")
    grid._client = link
    grid.set_run(Run.create_empty(1))
    return Inbox(grid, FORM.most_bytes)


def test_reply_is_known_by_what_the_superlink_has_checked(link, inbox):
    root, pieces = pieces_of()  # says of itself that it is somebody else's
    link.answer("request", 7, pieces, root)
    (found,) = inbox.replies(["request", "other"])
    assert (found.request, found.node, found.reason) == ("request", 7, "")
    assert isinstance(FORM.read(found.content), Answer)
    assert link.confirmed == [root]


def test_announced_pieces_that_do_not_come_hold_up_nobody(link, inbox):
    root, pieces = pieces_of()
    late = {array_of(pieces): pieces.pop(array_of(pieces))}
    link.answer("slow", 7, pieces, root, flat_tree(root, {**pieces, **late}))
    assert inbox.replies(["slow", "quick"]) == []
    other, parts = pieces_of(1)
    link.answer("quick", 8, parts, other)
    assert [found.request for found in inbox.replies(["slow", "quick"])] == ["quick"]
    link.pieces |= late
    (found,) = inbox.replies(["slow"])
    assert isinstance(FORM.read(found.content), Answer)
    assert link.asked == [["slow", "quick"], ["quick"]]  # asked again it would be an error


def test_reply_nobody_waits_for_any_longer_is_let_go(link, inbox):
    root, pieces = pieces_of()
    link.answer("slow", 7, {}, root, flat_tree(root, pieces))
    assert inbox.replies(["slow"]) == []
    assert inbox.replies(["new"]) == []
    assert inbox._arriving == {}


def test_oversized_reply_is_refused_before_all_of_it_is_fetched(link, inbox):
    root, pieces = pieces_of()
    huge = {f"{n:064}": bytes(30_000) for n in range(100)}
    link.answer("request", 7, {**pieces, **huge}, root)
    (found,) = inbox.replies(["request"])
    assert (found.reason, found.content) == ("oversized", None)


def test_reply_of_too_many_pieces_is_refused_before_any_is_fetched(link, inbox):
    root, _ = pieces_of()
    names = {f"{n:064}": b"" for n in range(5000)}
    link.answer("request", 7, {}, root, flat_tree(root, names))
    (found,) = inbox.replies(["request"])
    assert found.reason == "oversized"


def test_broken_reply_is_refused_and_others_arrive(link, inbox):
    root, pieces = pieces_of()
    link.answer("broken", 7, {**pieces, root: b"nonsense"}, root)
    other, parts = pieces_of(1)
    link.answer("whole", 8, parts, other)
    reasons = {found.request: found.reason for found in inbox.replies(["broken", "whole"])}
    assert reasons == {"broken": "malformed", "whole": ""}


def test_word_of_the_superlink_itself_has_no_sender(link, inbox):
    as_server()
    message = Message(Error(code=5, reason="offline"), reply_to=as_reply("request", 7, "x"))
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    link.answer("request", 1, parts, message.object_id)
    (found,) = inbox.replies(["request"])
    assert (found.node, found.reason) == (None, FAILED)
