import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secureafl.core.inactivity import InactivityTracker, forget
from secureafl.core.protocols import Remembers
from secureafl.defenses import AsyncSgd, SecureAfl


def forgotten_by_definition(clients, forget_after):
    """(arrivals so far, client) of everybody who was there before and not since."""
    found = []
    for now in range(1, len(clients) + 1):
        start = now - 1 - forget_after
        if start >= 0 and clients[start] not in clients[start + 1 : now]:
            found.append((now, clients[start]))
    return found


def told(clients, forget_after, restart=()):
    ageing, found = InactivityTracker(forget_after), []
    for now, client in enumerate(clients):
        if now in restart:  # as a restored run does
            ageing = InactivityTracker(forget_after)
            for earlier in range(max(0, now - forget_after), now):
                ageing.mark_active(clients[earlier], earlier)
        ageing.mark_active(client, now)
        found += [(now + 1, old) for old in ageing.due(now + 1)]
    return found


@given(
    clients=st.lists(st.integers(0, 5), max_size=60),
    forget_after=st.integers(1, 12),
    restart=st.sets(st.integers(0, 59)),
)
def test_client_is_told_once_when_nothing_came_of_it_for_so_many_rounds(
    clients, forget_after, restart
):
    expected = forgotten_by_definition(clients, forget_after)
    assert told(clients, forget_after) == expected
    assert told(clients, forget_after, restart) == expected


def test_nobody_grows_old_when_it_is_off():
    assert told([0, *[1] * 50], 0) == []


@pytest.mark.parametrize(("defense", "remembers"), [(AsyncSgd(), False), (SecureAfl(), True)])
def test_defence_without_a_memory_of_clients_has_nothing_to_forget(defense, remembers):
    assert isinstance(defense, Remembers) == remembers
    if not remembers:
        assert forget(defense, (), torch.tensor(0)) == ()
