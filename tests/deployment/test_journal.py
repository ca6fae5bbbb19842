from contextlib import closing

import numpy as np
import pytest

from secureafl.deployment.journal import Entry, Journal, pack, unpack


def entry(number, reason=""):
    update = None if reason else np.arange(3, dtype=np.float32) + number
    return Entry(
        number, number % 4, max(0, number - 2), f"m{number}", number % 2 == 1, reason, update
    )


ENTRIES = [entry(5), entry(6, "not_finite"), entry(7)]


def read(folder, number=5):
    with closing(Journal(folder, number)) as journal:
        return journal.read()


def write(folder, number, *entries):
    with closing(Journal(folder, number)) as journal:
        for made in entries:
            journal.append(made)


def same(one, other):
    assert one._replace(update=None) == other._replace(update=None)
    np.testing.assert_array_equal(one.update, other.update)


def test_entries_come_back_as_they_were(tmp_path):
    write(tmp_path, 5, *ENTRIES)
    for found, made in zip(read(tmp_path), ENTRIES, strict=True):
        same(found, made)


def test_cut_anywhere_the_whole_entries_before_it_are_there(tmp_path):
    content = b"".join(map(pack, ENTRIES))
    ends = [end for _, end in unpack(content)]
    for cut in range(len(content)):
        (tmp_path / "journal-5.bin").write_bytes(content[:cut])
        found = read(tmp_path)
        assert len(found) == sum(end <= cut for end in ends)
        if cut % 16 == 0:  # and it can be gone on with
            write(tmp_path, 5, entry(5 + len(found)))
            assert len(read(tmp_path)) == len(found) + 1


def test_changed_byte_ends_the_journal_before_it(tmp_path):
    content = b"".join(map(pack, ENTRIES))
    ends = [0, *(end for _, end in unpack(content))]
    for place in range(len(content)):
        spoilt = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        assert len(list(unpack(spoilt))) == max(n for n, end in enumerate(ends) if end <= place)


def test_journal_of_another_checkpoint_is_deleted(tmp_path):
    write(tmp_path, 5, ENTRIES[0])
    assert read(tmp_path, 6) == []
    assert [path.name for path in tmp_path.iterdir()] == ["journal-6.bin"]


def test_append_is_on_the_disk_when_it_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("os.fsync", lambda number: synced.append(number))
    with closing(Journal(tmp_path, 0)) as journal:
        before = len(synced)
        journal.append(ENTRIES[0])
        assert len(synced) == before + 1
        assert journal.size == len(pack(ENTRIES[0]))


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_any_number_of_parameters(tmp_path, size):
    made = entry(0)._replace(update=np.ones(size, np.float32))
    write(tmp_path, 0, made)
    same(read(tmp_path, 0)[0], made)
