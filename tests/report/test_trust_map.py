import numpy as np
import pytest
from report.run_folders import arrival

from secureafl.report.page import write_report
from secureafl.report.tables import read_run
from secureafl.report.trust import _in_order, _table, trust


def weighed(round, client, weight, **changes):
    return arrival(round, client, scores={"weight": weight}, **changes)


def table_of(run):
    clients, malicious = _in_order(run)
    return clients, malicious, _table(run, run.arrivals.weight, clients)


def test_rows_are_clients_with_the_malicious_last_and_a_weight_holds_until_the_next(make_run):
    events = [
        weighed(0, 0, 0.5, malicious=True),
        weighed(1, 2, 1.0),
        weighed(2, 1, 0.25),
        weighed(3, 0, 0.0, malicious=True),
        weighed(4, 2, 0.75),
    ]
    clients, malicious, table = table_of(read_run(make_run(events=events)))
    assert clients.tolist() == [1, 2, 0]
    assert malicious == 1
    never = np.nan
    expected = [
        [never, never, 0.25, 0.25, 0.25],
        [never, 1.0, 1.0, 1.0, 0.75],
        [0.5, 0.5, 0.5, 0.0, 0.0],
    ]
    assert np.array_equal(table, expected, equal_nan=True)


def test_many_rounds_are_averaged_into_few_columns(make_run):
    events = [weighed(t, t % 2, (t // 2) % 2) for t in range(1500)]
    _, _, table = table_of(read_run(make_run(events=events)))
    assert table.shape == (2, 150)
    assert np.abs(table - 0.5).max() <= 0.11  # five uploads each, every second one weighs 1
    assert table.mean() == pytest.approx(0.5, abs=0.01)


def test_undefined_and_absurd_weights_do_no_harm(make_run):
    scores = [None, 1e300, -5.0, 0.5]
    events = [weighed(t, 0, weight) for t, weight in enumerate(scores)]
    _, _, table = table_of(read_run(make_run(events=events)))
    assert np.array_equal(table, [[np.nan, 1.0, 0.0, 0.5]], equal_nan=True)


def test_numbers_of_clients_and_rounds_may_be_large(make_run, tmp_path):
    large = 2**53 - 1
    run = make_run(events=[weighed(0, large, 0.5), weighed(large, 7, 1.0)])
    clients, _, table = table_of(read_run(run))
    assert clients.tolist() == [7, large]
    assert table[:, -1].tolist() == [1.0, 0.5]
    assert trust(read_run(run), 1)


def test_of_rules_without_weights_it_shows_whose_uploads_were_accepted(make_run):
    run = read_run(make_run())  # one client of four is malicious, and refused
    clients, _ = _in_order(run)
    table = _table(run, run.arrivals.accepted, clients)
    assert table[:, -1].tolist() == [1, 1, 1, 0]
    picture = trust(run, 1)
    assert picture
    assert "the more of a client's uploads were accepted: from none to all." in picture.caption
    assert "Map of the accepted shares of 4 clients" in picture.alt


def test_where_all_uploads_count_alike_there_is_no_such_picture(make_run):
    taken = [arrival(t, t % 4, accepted=True) for t in range(8)]
    assert trust(read_run(make_run(events=taken)), 1) is None
    assert trust(read_run(make_run("empty", events=[], finished=False)), 1) is None


@pytest.mark.parametrize("clients", [1, 61, 2500])
def test_any_number_of_clients_can_be_drawn(make_run, tmp_path, clients):
    events = [weighed(c, c, c / clients, malicious=c % 5 == 1) for c in range(clients)]
    page = write_report([make_run(events=events)], tmp_path / "report")
    assert page.stat().st_size < 900_000
    told = page.read_text()
    assert "Whom the server trusted when" in told
    assert ("Malicious clients stand at the bottom" in told) == (clients > 1)
