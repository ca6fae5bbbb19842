import pytest
import torch

from secureafl.core.panels import LARGEST_PANEL, deal_anew, draw_panels, panel_size, sitting

CPU = torch.device("cpu")


def one_pass(panels, turns):
    """Who sat at each of these turns; clients are dealt anew after the last of a pass."""
    seats = []
    for turn in turns:
        seats.append(sitting(panels, torch.tensor(turn)).tolist())
        deal_anew(panels, torch.tensor(turn), torch.tensor(True))
    return seats


@pytest.mark.parametrize("clients", [1, 2, 50, 128, 129, 255, 257, 1000])
def test_everybody_sits_in_every_pass_and_nobody_twice_in_a_panel(clients):
    torch.manual_seed(0)
    panels, size = draw_panels(clients, CPU), panel_size(clients)
    count = -(-clients // LARGEST_PANEL)
    for start in range(0, 3 * count, count):
        seats = one_pass(panels, range(start, start + count))
        assert all(len(panel) == len(set(panel)) == size for panel in seats)
        assert set().union(*seats) == set(range(clients))


def test_after_a_pass_clients_sit_with_others():
    torch.manual_seed(0)
    panels = draw_panels(300, CPU)
    first, _, _, second, _, _ = one_pass(panels, range(6))
    assert len(set(first) & set(second)) < 60  # of 100; a third would by chance


def test_nobody_is_dealt_anew_where_it_is_not_due():
    panels = draw_panels(300, CPU)
    before = panels.order.clone()
    deal_anew(panels, torch.tensor(2), torch.tensor(False))
    assert torch.equal(panels.order, before)
