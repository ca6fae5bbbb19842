"""Rows of tables on a GPU against those in plain torch, bit by bit."""

import pytest
import torch
from emulated_cuda import GPU, costly

from secureafl.core.server import moved
from secureafl.core.types import Decision
from secureafl.kernels import rows
from secureafl.kernels.dispatch import using_kernels
from secureafl.runtime.standardisation import Standardisation

pytestmark = pytest.mark.usefixtures("gpu")

DTYPES = [torch.bool, torch.int64, torch.float16, torch.float32, torch.float64]
SIZES = [1, 7, 1023, 1025, 139_960, costly(1_000_003)]


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that are launched."""
    names, kernel = [], rows._kernel

    def noted(name, *types):
        names.append(name)
        return kernel(name, *types)

    monkeypatch.setattr(rows, "_kernel", noted)
    return names


def there(value, dtype=None):
    return torch.tensor(value, dtype=dtype, device=GPU)


def any_bits(dtype, *shape):
    """Every bit by chance, so also numbers that are none."""
    count = torch.Size(shape).numel() * dtype.itemsize
    found = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    return found.view(dtype).view(shape).to(GPU)


def same(one, other):
    """Whether two tensors have the same bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(x.contiguous().view(-1).view(torch.uint8) for x in (one, other)))


def plain(function, *given):
    """What the function makes of copies in plain torch."""
    copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in given]
    with using_kernels("reference"):
        function(*copies)
    return copies


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5,), (1, 1), (6, 7), (3, 2, 4, 5), (4, 2049)])
@pytest.mark.parametrize("keep", [True, False])
def test_row_is_set_where_it_is_to_be_kept(dtype, shape, keep, launched):
    torch.manual_seed(len(shape))
    for index in {0, shape[0] // 2, shape[0] - 1}:
        table, value = any_bits(dtype, *shape), any_bits(dtype, *shape)[0]
        given = (table, there(index), value, there(keep))
        expected, *_ = plain(rows.set_row, *given)
        rows.set_row(*given)
        assert same(table, expected)
        assert same(table[index], value) or not keep
    assert set(launched) == {"set_row"}


def test_row_and_flags_may_be_parts_of_others(launched):
    table, numbers = any_bits(torch.float32, 8, 30)[2:6], there([7, 1, 3])
    value, keep = any_bits(torch.float32, 61)[31:], there([False, True])
    given = (table, numbers[2], value, keep[1])
    expected, *_ = plain(rows.set_row, *given)
    rows.set_row(*given)
    assert same(table, expected)
    assert launched == ["set_row"]


@pytest.mark.parametrize(
    ("table", "value"),
    [
        (torch.zeros(3, 4), torch.tensor([1.5])),
        (torch.zeros(3, 4, dtype=torch.float64), torch.ones(4)),
        (torch.zeros(4, 3).T, torch.ones(4)),
        (torch.zeros(3, 4), torch.ones(8)),
    ],
)
def test_what_no_kernel_copies_is_set_all_the_same(table, value, launched):
    table, value = table.to(GPU), value.to(GPU)
    value = value[::2] if len(value) == 8 else value  # there: a copy would be contiguous
    rows.set_row(table, there(1), value, there(True))
    expected = torch.zeros(table.shape, dtype=table.dtype)
    expected[1] = value.cpu()
    assert torch.equal(table.cpu(), expected)
    assert launched == []


@pytest.mark.parametrize("size", SIZES)
def test_gradient_is_noted_if_it_is_finite_and_heard(size, launched):
    torch.manual_seed(size)
    heard = there([True, False, True])
    for at in {0, size // 2, size - 1}:
        for spoilt in (1.0, 3.4e38, -3.4e38, torch.inf, -torch.inf, torch.nan):
            gradient = torch.randn(size, device=GPU)
            gradient[at] = spoilt
            for client in range(3):
                table = torch.randn(3, size, device=GPU)
                known = there([False, False, True])
                given = (table, known, there(client), gradient, heard)
                expected = plain(rows.note_row, *given)
                rows.note_row(*given)
                assert same(table, expected[0])
                assert same(known, expected[1])
                told = client != 1 and bool(torch.isfinite(gradient).all())
                assert same(table[client], gradient) == told
    assert launched[:2] == ["finite_parts", "note_row"]
    assert set(launched[::2]) == {"finite_parts"}


def test_gradient_of_another_precision_is_noted(launched):
    table, gradient = torch.zeros(2, 5, device=GPU).double(), there([1.0] * 5).double()
    known, heard = there([False, False]), there([True, True])
    rows.note_row(table, known, there(1), gradient, heard)
    assert table.tolist() == [[0.0] * 5, [1.0] * 5]
    assert known.tolist() == [False, True]
    assert launched == []


IMAGES = [(1, 28, 28), (3, 32, 32), (3, 5, 7), (1,), (9,), (2, 1), (4, 40, 41)]


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("pixel", [torch.uint8, torch.float32])
@pytest.mark.parametrize("by_channel", [True, False])
@pytest.mark.parametrize("label", ["class", "number", "numbers", "byte"])
def test_batch_has_the_bits_of_plain_torch(shape, pixel, by_channel, label, launched):
    torch.manual_seed(sum(shape))
    samples, channels = 50, shape[0] if by_channel else 1
    inputs = torch.randint(0, 256, (samples, *shape), device=GPU).to(pixel)
    if pixel == torch.float32:
        inputs = inputs / 255 * torch.randn(samples, *shape, device=GPU).exp()
        inputs[3].fill_(torch.inf)
    mean, std = 255 * torch.rand(2, channels, device=GPU)
    labels = {
        "class": torch.randint(0, 10, (samples,), device=GPU),
        "number": torch.randn(samples, device=GPU),
        "numbers": torch.randn(samples, 3, 2, device=GPU).double(),
        "byte": torch.randint(0, 10, (samples,), device=GPU).to(torch.uint8),
    }[label]
    drawn = torch.randint(0, samples, (37,), device=GPU)[4:]
    found = rows.draw_batch(inputs, labels, drawn, mean, std)
    assert found is not None
    assert same(found[0], Standardisation(mean, std)(inputs.index_select(0, drawn)))
    assert same(found[1], labels.index_select(0, drawn))
    assert launched == ["draw_batch"]


@pytest.mark.parametrize(("mean", "std"), [(0.2860406, 0.35302424), (0.4914, 0.2470), (0.0, 1e-3)])
def test_every_byte_is_standardised_as_plain_torch_does(mean, std):
    inputs = torch.arange(256, device=GPU).to(torch.uint8).view(256, 1, 1, 1)
    standardisation = Standardisation(255 * there([mean]), 255 * there([std]))
    drawn, labels = torch.arange(256, device=GPU), torch.zeros(256, device=GPU)
    found = rows.draw_batch(inputs, labels, drawn, *standardisation)
    assert found is not None
    assert same(found[0], standardisation(inputs))


@pytest.mark.parametrize(
    "inputs",
    [
        torch.zeros(5, 2, 3, dtype=torch.int64),
        torch.zeros(5, 2, 3, dtype=torch.float64),
        torch.zeros(3, 2, 5).transpose(0, 2),
        torch.zeros(5, 1, 3),  # becomes two channels
    ],
)
def test_other_batches_are_left_to_plain_torch(inputs):
    mean = torch.ones(2, device=GPU)
    labels = torch.zeros(5, device=GPU)
    assert rows.draw_batch(inputs.to(GPU), labels, there([0, 4]), mean, mean) is None


def rounds(size, dtype=torch.float32):
    """The tables that a run's rounds are taken from: three rounds, two models."""
    torch.manual_seed(size)
    jobs = torch.randint(0, 99, (3, 300), device=GPU)
    jobs[:, -2] = there([1, 0, 1])
    models = torch.randn(2, size, device=GPU).to(dtype)
    return there([0]), jobs, torch.zeros_like(jobs[:1]), models, torch.zeros_like(models[0])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_turns_to_one_job_after_the_other(size, dtype, launched):
    number, jobs, job, models, base = given = rounds(size, dtype)
    for now in range(3):
        expected = plain(rows.turn_to_next, *given)
        rows.turn_to_next(*given)
        for found, other in zip(given, expected, strict=True):
            assert same(found, other)
        assert number.tolist() == [now + 1]
        assert same(job[0], jobs[now])
        assert same(base, models[[1, 0, 1][now]])
    assert launched == ["turn_to_next"] * 3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("rate", [0.01, 0.1 / 32, 1, 1 / 3, 3e-5])
def test_model_moves_as_in_plain_torch(size, ready, rate, launched):
    torch.manual_seed(size)
    weights, direction = torch.randn(2, size, device=GPU)
    direction[0] = torch.nan if not ready else 1e30
    decision = Decision(there(True), there(ready), direction, {}, "")
    expected, models = moved(weights, decision, rate), torch.randn(4, size, device=GPU)
    others = models[[0, 1, 3]]
    rows.move_model(weights, decision, rate, models, there([2]))
    assert same(weights, expected)
    assert same(models[2], expected)
    assert same(models[[0, 1, 3]], others)
    assert launched == ["move_model"]


def test_model_moves_in_another_precision(launched):
    weights, models = torch.zeros(5, device=GPU).double(), torch.zeros(2, 5, device=GPU)
    decision = Decision(there(True), there(True), torch.ones_like(weights), {}, "")
    models = models.double()
    rows.move_model(weights, decision, 0.5, models, there([1]))
    assert weights.tolist() == models[1].tolist() == [-0.5] * 5
    assert launched == []


@pytest.mark.skipif(GPU == "cpu", reason="needs a GPU")
def test_kernels_are_recorded():
    number, _, job, models, base = given = rounds(5000)
    table, known, heard = torch.zeros(99, 5000, device=GPU), *there([[False] * 99, [True] * 99])
    weights = torch.randn(5000, device=GPU)

    def arrival():
        rows.turn_to_next(*given)
        rows.note_row(table, known, job[0, 0], base, heard)
        decision = Decision(heard[0], heard[0], base, {}, "")
        rows.move_model(weights, decision, 0.5, models, job[0, -2:-1])

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        arrival()  # compiled before it is recorded
        number.zero_()
        stream.synchronize()
        changing = (number, models, table, known, weights)
        started = [tensor.clone() for tensor in changing]
        with torch.cuda.graph(graph, stream=stream):
            arrival()
        for _ in range(3):
            graph.replay()
        stream.synchronize()
        replayed = [tensor.clone() for tensor in changing]
        for tensor, before in zip(changing, started, strict=True):
            tensor.copy_(before)
        with using_kernels("reference"):
            for _ in range(3):
                arrival()
        stream.synchronize()
    assert number.tolist() == [3]
    assert all(same(one, other) for one, other in zip(replayed, changing, strict=True))
