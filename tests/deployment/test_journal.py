import stat
from contextlib import closing

import numpy as np
import pytest

from secureafl.core.errors import RunError
from secureafl.deployment.journal import (
    FORMAT,
    Entry,
    Journal,
    Removal,
    count_rounds,
    journal_path,
    journals,
    pack,
    read_journal,
)


def entry(number):
    update = np.arange(3, dtype=np.float32) + number
    return Entry(number, number % 4, max(0, number - 2), f"m{number}", number % 2 == 1, update)


ENTRIES = [entry(5), entry(6), entry(7)]


def read(folder, number=5):
    return read_journal(journal_path(folder, number), number)


def write(folder, number, *entries):
    with closing(Journal(folder, number)) as journal:
        for made in entries:
            journal.append(made)
    return journal_path(folder, number)


def same(one, other):
    assert one._replace(update=None) == other._replace(update=None)
    np.testing.assert_array_equal(one.update, other.update)


def test_entries_come_back_as_they_were(tmp_path):
    write(tmp_path, 5, *ENTRIES[:2])
    path = write(tmp_path, 5, ENTRIES[2])
    content = read(tmp_path)
    for found, made in zip(content.records, ENTRIES, strict=True):
        same(found, made)
    assert (content.end, content.fault) == (path.stat().st_size, "")


def test_cut_anywhere_the_whole_entries_before_it_are_there(tmp_path):
    whole = write(tmp_path, 5, *ENTRIES).read_bytes()
    head = len(whole) - sum(len(pack(made)) for made in ENTRIES)
    ends = np.cumsum([head, *(len(pack(made)) for made in ENTRIES)]).tolist()
    for cut in range(head, len(whole)):
        journal_path(tmp_path, 5).write_bytes(whole[:cut])
        content = read(tmp_path)
        assert len(content.records) == sum(end <= cut for end in ends[1:])
        assert content.end == max(end for end in ends if end <= cut)
        assert content.cut == (cut not in ends)


def test_any_changed_byte_is_a_fault_at_its_record(tmp_path):
    whole = write(tmp_path, 5, *ENTRIES).read_bytes()
    head = len(whole) - sum(len(pack(made)) for made in ENTRIES)
    ends = np.cumsum([head, *(len(pack(made)) for made in ENTRIES)]).tolist()
    for place in range(len(whole)):
        spoilt = bytes([whole[place] ^ 1])
        journal_path(tmp_path, 5).write_bytes(whole[:place] + spoilt + whole[place + 1 :])
        if place in range(8, 12):  # the number of the format
            with pytest.raises(RunError, match="format"):
                read(tmp_path)
            continue
        content = read(tmp_path)
        assert content.fault
        assert len(content.records) == sum(end <= place for end in ends[1:])


def test_record_that_is_missing_or_doubled_is_a_fault(tmp_path):
    write(tmp_path, 5, ENTRIES[0], ENTRIES[2])
    assert read(tmp_path).fault == "journal-5.bin has round 7 for 6"
    write(tmp_path, 0, entry(0), entry(0))
    assert len(read(tmp_path, 0).records) == 1
    assert read(tmp_path, 0).fault


def test_journal_under_anothers_name_is_a_fault(tmp_path):
    write(tmp_path, 5, ENTRIES[0]).rename(journal_path(tmp_path, 6))
    assert read(tmp_path, 6) == ([], 0, "journal-6.bin is the journal of round 5", False)
    assert read(tmp_path, 5).fault == "journal-5.bin is missing"


@pytest.mark.parametrize("head", [b"SAFJ" + bytes(40), b"SAFLJRNL\2\0\0\0" + bytes(8)])
def test_journal_of_another_version_is_refused_with_both_formats(tmp_path, head):
    journal_path(tmp_path, 5).write_bytes(head)
    with pytest.raises(
        RunError, match=rf"format [12], and this version's is {FORMAT}; finish the run"
    ):
        read(tmp_path)


def test_append_is_on_the_disk_when_it_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda number: synced.append(number))
    with closing(Journal(tmp_path, 0)) as journal:
        before, size = len(synced), journal.size
        journal.append(ENTRIES[0])
        assert len(synced) == before + 1
        assert journal.size == size + len(pack(ENTRIES[0]))


def test_journal_is_for_its_user_alone(tmp_path):
    assert stat.S_IMODE(write(tmp_path, 5).stat().st_mode) == 0o600
    assert journals(tmp_path) == {5: tmp_path / "journal-5.bin"}


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_any_number_of_parameters(tmp_path, size):
    made = entry(0)._replace(update=np.ones(size, np.float32))
    write(tmp_path, 0, made)
    same(read(tmp_path, 0).records[0], made)


def test_removed_client_is_a_record_between_two_rounds(tmp_path):
    removal = Removal(6, 1, 2**63 + 5)
    write(tmp_path, 5, ENTRIES[0], removal, *ENTRIES[1:])
    content = read(tmp_path)
    assert content.fault == ""
    assert content.records[1] == removal
    assert count_rounds(content.records) == len(ENTRIES)
    write(tmp_path, 0, entry(0), removal)
    assert read(tmp_path, 0).fault == "journal-0.bin has round 6 for 1"
