import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureafl.core.errors import RunError
from secureafl.deployment.slots import SLOTS, SlotRegistry


def test_slots_are_given_in_order_and_kept(tmp_path):
    slots = SlotRegistry(tmp_path, 3, 0)
    assert [slots.assign(node, 0) for node in (50, 40, 50, 30, 40)] == [0, 1, 0, 2, 1]


def test_without_a_slot_there_is_no_assignment(tmp_path):
    slots = SlotRegistry(tmp_path, 1, 0)
    slots.assign(1, 0)
    assert slots.assign(2, 10**6) is None
    assert slots.slot(2) is None


def test_assignments_are_the_same_after_a_restart(tmp_path):
    slots = SlotRegistry(tmp_path, 3, 0)
    before = {node: slots.assign(node, 5) for node in (9, 8)}
    again = SlotRegistry(tmp_path, 3, 0)
    assert {node: again.slot(node) for node in (9, 8)} == before
    assert again.assign(7, 6) == 2


@pytest.mark.parametrize("cut", range(1, 20))
def test_line_that_a_kill_has_cut_is_passed_over(tmp_path, cut):
    SlotRegistry(tmp_path, 3, 0).assign(9, 5)
    path = tmp_path / SLOTS
    path.write_bytes(path.read_bytes() + json.dumps({"round": 1, "node": 2}).encode()[:cut])
    slots = SlotRegistry(tmp_path, 3, 0)
    assert slots.slot(9) == 0
    assert slots.assign(4, 6) == 1
    assert SlotRegistry(tmp_path, 3, 0).slot(4) == 1


@pytest.mark.parametrize("spoil", [
    lambda lines: [b"[1]\n", *lines],
    lambda lines: [lines[0].replace(b'"node": 9', b'"node": 8'), lines[1]],
    lambda lines: [lines[1]],
    lambda lines: [lines[0], lines[0], lines[1]],
    lambda lines: [lines[1], lines[0]],
])  # fmt: skip
def test_altered_file_is_named(tmp_path, spoil):
    slots = SlotRegistry(tmp_path, 3, 0)
    slots.assign(9, 5)
    slots.assign(7, 6)
    lines = (tmp_path / SLOTS).read_bytes().splitlines(keepends=True)
    (tmp_path / SLOTS).write_bytes(b"".join(spoil(lines)))
    with pytest.raises(RunError, match=r"slots\.jsonl is damaged at its line [12]"):
        SlotRegistry(tmp_path, 3, 0)


def test_forgotten_slot_is_its_owners_until_somebody_needs_it(tmp_path):
    slots = SlotRegistry(tmp_path, 1, 100)
    slots.assign(1, 0)
    slots.mark_active(0, 1)
    slots.release(0, 2)
    assert slots.assign(1, 5) == 0
    assert slots.assign(2, 6) == 0
    assert slots.slot(1) is None
    assert slots.assign(1, 7) is None  # it is a stranger now, and the slot is taken


def test_client_that_uploads_again_keeps_its_slot(tmp_path):
    slots = SlotRegistry(tmp_path, 1, 100)
    slots.assign(1, 0)
    slots.mark_active(0, 1)
    slots.release(0, 2)
    slots.mark_active(0, 3)
    assert slots.assign(2, 6) is None


def test_slot_of_a_node_that_never_uploaded_can_be_taken_after_long(tmp_path):
    slots = SlotRegistry(tmp_path, 1, 100)
    slots.assign(1, 50)
    assert slots.assign(2, 150) is None
    assert slots.assign(2, 151) == 0


def test_slot_of_a_node_that_was_put_out_goes_to_another(tmp_path):
    slots = SlotRegistry(tmp_path, 1, 0)
    slots.assign(1, 0)
    slots.mark_active(0, 3)
    assert slots.assign(2, 4) is None
    slots.remove(1)
    assert slots.is_released(0)
    assert slots.assign(2, 4) == 0
    assert not slots.is_released(0)


def test_what_an_earlier_owner_did_is_not_taken_for_the_new_ones_after_a_restart(tmp_path):
    slots = SlotRegistry(tmp_path, 1, 100)
    slots.assign(1, 0)
    slots.mark_active(0, 0)
    slots.release(0, 101)
    slots.assign(2, 101)
    again = SlotRegistry(tmp_path, 1, 100)  # which is told of all arrivals once more
    again.mark_active(0, 0)
    again.release(0, 101)
    assert not again.is_released(0)
    assert again.assign(3, 150) is None, "the slot is node 2's"
    assert again.assign(3, 202) == 0, "but node 2 never uploaded"


@given(nodes=st.lists(st.integers(0, 2**64 - 1), max_size=30))
def test_no_two_nodes_share_a_slot(tmp_path_factory, nodes):
    slots = SlotRegistry(tmp_path_factory.mktemp("slots"), 8, 0)
    assigned = {node: slots.assign(node, 0) for node in nodes}
    taken = [slot for slot in assigned.values() if slot is not None]
    assert len(set(taken)) == len(taken) <= 8
    assert len(taken) == min(8, len(set(nodes)))
