import numpy as np
import torch

from secureafl.linalg.sketch import draw_sketch, sketched

CPU = torch.device("cpu")


def drawn(length, size, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return draw_sketch(length, size, CPU)


def test_inner_products_are_right_on_average_and_as_close_as_the_size_allows():
    one, other = torch.randn(
        2, 5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    other = other + one
    found = []
    for seed in range(200):
        sketch = drawn(5000, 256, seed)
        found.append(float(sketched(sketch, one, 256) @ sketched(sketch, other, 256)))
    lengths = float(one.norm() * other.norm())
    errors = (np.array(found) - float(one @ other)) / lengths
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(200)
    assert 0.5 < errors.std() * np.sqrt(256) < 2


def test_sketches_are_linear():
    sketch, (one, other) = drawn(103, 10, 1), torch.randn(2, 103, dtype=torch.float64)
    expected = 3 * sketched(sketch, one, 10) - sketched(sketch, other, 10)
    torch.testing.assert_close(sketched(sketch, 3 * one - other, 10), expected)


def test_every_coordinate_is_read_once_and_falls_anywhere():
    """Of two coordinates in one column of the vector, few fall on the same number."""
    places = []
    for seed in range(300):
        order = drawn(1030, 100, seed).order
        assert sorted(order.tolist()) == list(range(1030))
        where = order.argsort() % 100
        places.append([int(where[7]), int(where[507])])
    assert np.mean([a == b for a, b in places]) < 0.04
    assert len({a for a, _ in places}) > 80


def test_vector_no_longer_than_the_sketch_loses_nothing():
    sketch, vector = drawn(50, 64, 2), torch.randn(50)
    found = sketched(sketch, vector, 64)
    assert sorted(found.abs().tolist()) == sorted(vector.abs().tolist())


def test_a_vector_made_for_one_sketch_is_seen_by_another():
    """Whoever knew order and signs could send what the server cannot see."""
    known, secret = drawn(1000, 50, 3), drawn(1000, 50, 4)
    invisible = torch.zeros(1000)
    places, signs = known.order[[7, 57]].long(), known.signs[[7, 57]]
    invisible[places] = torch.tensor([1.0, -1.0]) * signs
    assert sketched(known, invisible, 50).norm() == 0
    assert sketched(secret, invisible, 50).norm() > 1
