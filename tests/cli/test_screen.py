"""Tables on the terminal fit on narrow screens, and cut nothing off."""

import pytest
from simulation.small import tiny

from secureafl.cli.screen import print_comparison
from secureafl.simulation.run import start_run


@pytest.fixture
def runs(tmp_path):
    for name in ("one", "a_much_longer_name"):
        for _ in start_run(tiny(clients=3, rounds=6), tmp_path / name, 1e9):
            pass
    return sorted(tmp_path.iterdir())


def shown(runs, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print_comparison(runs)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [120, 80, 60, 44])
def test_a_comparison_fits_and_cuts_nothing_off(runs, width, monkeypatch, capsys):
    wide, text = (shown(runs, columns, monkeypatch, capsys) for columns in (200, width))
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert ("over rounds" in text) == (width >= max(map(len, wide.splitlines())))
    figures = [sorted(c for c in found.split() if "0." in c or "%" in c) for found in (wide, text)]
    assert figures[0] == figures[1]
