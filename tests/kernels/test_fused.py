"""Pointwise operations put together in one kernel: the same bits as torch, and fewer operations."""

import contextlib
import ctypes
import operator
import subprocess
import sys

import numpy as np
import pytest
import torch
from emulated_cuda import GPU, costly
from simulation import on_cpu
from simulation.on_cpu import recorded_engine
from simulation.small import run, tiny
from test_gpu_defenses import play
from test_gpu_rows import same

from secureafl.attacks import ATTACKS
from secureafl.core.server import Server
from secureafl.defenses import DEFENSES
from secureafl.kernels import fused, rows
from secureafl.kernels.dispatch import using_kernels
from secureafl.kernels.fused import Fused
from secureafl.simulation import cuda_graph
from secureafl.simulation.cuda_graph import fewer_operations
from secureafl.simulation.simulator import Simulation

pytestmark = pytest.mark.usefixtures("gpu")

HERE = torch.empty(0, device=GPU).device
FLOATS, WHOLE = [torch.float32, torch.float64], [torch.int32, torch.int64]
SIZE = 1000
ZERO = -0.0 if GPU != "cpu" else 0.0  # which of two zeros is larger is left open on a CPU


@pytest.fixture
def texts(monkeypatch):
    """The kernels that are written, one for each launch."""
    found, written = [], fused.written

    def noted(file, text, name):
        found.append(text)
        return written(file, text, name)

    monkeypatch.setattr(fused, "written", noted)
    return found


def numbers(dtype, *shape, seed=0):
    """Some of each size, equal ones, and what is special about the type."""
    random = np.random.default_rng(seed)
    if dtype == torch.bool:
        return torch.from_numpy(random.random(shape) < 0.5).to(GPU)
    if dtype in WHOLE:
        return torch.from_numpy(random.integers(-9, 10, shape)).to(dtype).to(GPU)
    found = random.standard_normal(shape) * 10.0 ** random.integers(-6, 7, shape)
    special = random.choice([0.0, ZERO, 1.0, np.inf, -np.inf, np.nan, 1e-42, 3e38], shape)
    chosen = np.where(random.random(shape) < 0.2, special, found)
    return torch.from_numpy(np.asarray(chosen)).to(dtype).to(GPU)


def vectors(dtype, count=2):
    return [numbers(dtype, SIZE, seed=seed) for seed in range(count)]


def check(function, *given):
    """Whether fused calls give what a plain one does, bit by bit."""
    plain = function(*[one.clone() for one in given])
    for spoilt in (True, False):
        with Fused(HERE, spoilt=spoilt):
            found = function(*[one.clone() for one in given])
        assert len(found) == len(plain)
        for number, (one, other) in enumerate(zip(found, plain, strict=True)):
            nan = torch.isnan(other) if other.is_floating_point() else torch.zeros_like(other) > 0
            assert torch.equal(torch.isnan(one) if one.is_floating_point() else nan, nan), number
            assert same(torch.where(nan, 0, one), torch.where(nan, 0, other)), number


def arithmetic(x, y):
    yield from (x + y, x - y, x * y, 2 - x, x * 3, x + 0.5, -x, x.abs(), x * y[3], y[5] - x)
    yield from (torch.add(x, y, alpha=2), torch.sub(x, y, alpha=4), torch.rsub(x, y, alpha=2))
    yield torch.rsub(x, 1, alpha=2)
    yield from (torch.minimum(x, y), torch.maximum(x, y), torch.maximum(x, y[2]))
    yield from (x.clamp(min=0), x.clamp(max=1), x.clamp(-1, 2), x.clamp(min=y), x.clamp_min(y[1]))
    yield from (x.clamp_max(3), x.clone(), x.contiguous(), torch.zeros_like(x), x.new_ones(SIZE))
    yield from (torch.full_like(x, 3), x.new_full((SIZE,), 7), x.new_zeros(3, 4))


def of_floats(x, y):
    yield from (x / y, x / 3.0, 3 / x, x / y[4], (x > 0).to(x.dtype).sqrt(), x.reciprocal(), x**2)
    yield from (x.isnan(), x.isfinite(), x.isinf(), torch.where(x > 0, x, 0.25))
    yield from (torch.where(x > 0, 1.0, 0.25), x.double() + y, (x > 0) * 2.5, x + (y > 0))
    yield from (x.clamp(min=0.3).double(), x.bool(), torch.add(x, y, alpha=-0.5))


def of_whole_numbers(x, y):
    y = torch.where(y == 0, 5, y)
    yield from (x // y, x % y, x // 4, x % 7, x / y, x * 2.5, x.float(), x.double(), x.bool())
    yield from (x + (y > 0), torch.where(x > y, x, -1), x > 1.5, x == 3, x.long() + 2**40)


def comparisons(x, y):
    for compared in (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne):
        yield from (compared(x, y), compared(x, 1), compared(x, y[7]))
    yield from (torch.where(x < y, x, y), torch.where(x < y, x[0], y))
    yield torch.where(x[0] < y[0], x, y)


def logic(x, y):
    yield from (x & y, x | y, x ^ y, ~x, x.logical_not(), x.logical_and(y), x.logical_or(y))
    yield from (x.logical_xor(y), x & y[0], x == y, x != y, x.double(), x.long(), x.float() + y)
    yield from (x * y, x + y, torch.where(x, y, x[1]), torch.ones_like(x), x & True)
    yield torch.add(x, y, alpha=False)


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_arithmetic_has_the_bits_of_torch(dtype, texts):
    more = of_floats if dtype in FLOATS else of_whole_numbers

    def everything(x, y):
        return [*arithmetic(x, y), *comparisons(x, y), *more(x, y)]

    check(everything, *vectors(dtype))
    assert len(texts) <= 8, "two calls, of so many operations"


def test_flags_have_the_bits_of_torch(texts):
    check(lambda x, y: [*logic(x, y)], *vectors(torch.bool))
    assert len(texts) <= 4


@pytest.mark.parametrize("to", [torch.float32, torch.float64, torch.int32, torch.int64, torch.bool])
def test_conversions_have_the_bits_of_torch(to):
    small = [torch.linspace(-99.5, 99.5, SIZE, dtype=dtype, device=GPU) for dtype in FLOATS]
    check(lambda *given: [one.to(to) + 0 for one in given], *small, *vectors(torch.int64))


def test_single_numbers_are_put_side_by_side(texts):
    def listed(x, y, flag):
        numbers = [x[3] * 2, y[5] + 1, flag.double(), x[0].double()]
        yield torch.stack(numbers)
        yield torch.stack([flag, x[1] > 0]), torch.stack([x[2] - 1]), torch.cat([x[4:5], y[1:2]])
        yield torch.stack(list(x[:20])), torch.cat([x[:2], y[:1]])
        yield torch.stack([x[0] + 1, y[0] + 1]).view(2, 1), torch.stack(numbers)[1:] * 2

    def all_listed(*given):
        found = [*listed(*given)]
        return [leaf for one in found for leaf in (one if isinstance(one, tuple) else [one])]

    check(all_listed, *vectors(torch.float32), torch.tensor(True, device=GPU))
    texts.clear()
    with Fused(HERE):
        found = torch.stack([torch.ones((), device=GPU) * 2, torch.zeros((), device=GPU)])
    assert found.tolist() == [2, 0]
    assert len(texts) == 1


def test_numbers_that_nearly_agree_are_compared_exactly():
    def compared(close, large):
        near = close * (1 + 1e-12), large + 1
        return [x < y for x, y in zip((close, large), near, strict=True)]

    check(
        compared,
        torch.linspace(1, 2, SIZE, dtype=torch.float64, device=GPU),
        vectors(WHOLE[1])[0] + 2**53,
    )


@pytest.mark.skipif(GPU == "cpu", reason="needs a GPU: a CPU's torch rounds in other places")
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_quotients_and_roots_are_rounded_as_on_a_gpu(dtype):
    def odd(x, y):
        sums = torch.add(x, y, alpha=0.3), torch.sub(x, y, alpha=1e-7)
        return [*sums, x / 7, x / 0.3, x.div(1e-3), x.sqrt(), x.abs().sqrt()]

    check(odd, *vectors(dtype))


def test_rows_are_taken_where_they_lie():
    def taken(table, count, client):
        yield table.index_select(0, client.view(1)).squeeze(0) * 2
        yield count.index_select(0, client.view(1)) + 1
        yield count.index_select(0, (client + 1).view(1) % 5)
        yield table.index_select(0, client.int().view(1))
        yield table.T.index_select(0, client.view(1))
        yield table.index_select(1, client.view(1))
        yield table[:, :5].contiguous().index_select(1, client.view(1))
        yield table.index_select(0, torch.stack([client, client - 1]))

    given = numbers(torch.float32, 5, SIZE), numbers(torch.int64, 5), torch.tensor(3, device=GPU)
    check(lambda *given: [*taken(*given)], *given)


def test_what_waits_is_one_kernel_and_what_nobody_holds_is_not_written(texts):
    x, y = vectors(torch.float32)
    with Fused(HERE):
        found = torch.where((x - y).abs() > 1, x * 2.5 + y, 0)
    assert len(texts) == 1
    assert sum(f"[{place}] = " in texts[0] for place in ("0", "i")) == 1, "one result is stored"
    assert same(found, torch.where((x - y).abs() > 1, x * 2.5 + y, 0))


def test_numbers_of_the_host_are_no_part_of_a_kernel(texts):
    x, _ = vectors(torch.float32)
    for factor in (0.5, 3.0):
        with Fused(HERE):
            x * factor + 1
        with Fused(HERE):
            held = x * factor + 1
        assert same(held, x * factor + 1)
    assert len(texts) == 2, "what nobody holds is not carried out"
    assert texts[0] == texts[1]


def small_steps(x, y, flag):
    """What has to be written before what comes next."""
    a = x + y
    a += 1  # in place
    b = a * 2
    a.zero_()  # after it was read
    c = x * 3
    c[:10] = 7  # a part
    d = y * 5
    e = d[5:] + 1  # a part of what waits
    f = d.view(-1, 10) - 1
    g = f.T + 0.0  # not as it lies
    h = torch.stack([d, c]).sum(0)
    total = h.norm()
    i = torch.where(flag, h / total.clamp(min=1), 0)
    j = x.expand(3, -1) * 2
    k = (x[0] + 1).expand(4) * 3
    m = (y.double() * 2).float()
    x.copy_(y)  # after `j` was asked for
    return a, b, c, d, e, f, g, h, i, j, k, m, x, (total + 1).view(1, 1)


def test_order_is_kept_where_memory_is_written_to():
    x, y = (torch.linspace(-1, 2, SIZE, device=GPU) * factor for factor in (1, 3))
    check(small_steps, x, y, torch.tensor(True, device=GPU))


def test_kernels_of_this_package_come_after_what_they_read(texts):
    def rows_set(table, x, client):
        rows.set_row(table, client, x * 2, client > 1)
        yield table
        yield x + table[2]

    table, x = numbers(torch.float32, 5, SIZE), numbers(torch.float32, SIZE)
    check(lambda *given: [*rows_set(*given)], table, x, torch.tensor(2, device=GPU))
    assert len(texts) == 4


def test_a_gradient_is_the_same():
    def learnt(x, y):
        x.requires_grad_()
        loss = ((x * y).clamp(-1, 1) + torch.where(x > 0, x, 0.5 * x)).square().sum()
        (gradient,) = torch.autograd.grad(loss, x)
        return [loss.detach(), gradient]

    check(learnt, *(torch.linspace(-1, 2, SIZE, device=GPU) * factor for factor in (1, 3)))


def test_many_operations_are_several_kernels(texts):
    def long(x, y):
        for number in range(100):
            x = x * 0.5 + y * number
        return [x]

    check(long, *(torch.linspace(-1, 2, 7, device=GPU) * factor for factor in (1, 3)))
    assert len(texts) == 2 * 5


def test_after_an_error_nothing_is_carried_out(texts):
    x, _ = vectors(torch.float32)
    with pytest.raises(ValueError, match="mine"), Fused(HERE):  # noqa: PT012  (two steps)
        held = x + 1
        raise ValueError("mine")
    assert not texts
    assert held.shape == x.shape


def test_vectors_of_several_sizes_are_one_kernel(texts):
    sizes = [2, 300, 100_000, 7]
    with Fused(HERE):
        found = [torch.full((size,), size, device=GPU) * 2 + 1 for size in sizes]
    assert len(texts) == 1
    assert all((one == 2 * size + 1).all() for one, size in zip(found, sizes, strict=True))


def test_results_lie_as_those_of_torch():
    x = numbers(torch.float32, 6, 4)
    with Fused(HERE):
        found = torch.zeros_like(x.T), x.T + 1, x[:, :2].clone(), x.T.double(), x[None] * 2
    plain = torch.zeros_like(x.T), x.T + 1, x[:, :2].clone(), x.T.double(), x[None] * 2
    assert [one.stride() for one in found] == [one.stride() for one in plain]
    assert all(map(same, found, plain))


class _Held(torch.Tensor):
    """As users' own kinds of tensors: another is inside, and calls are carried out on that."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inner = [one.inner if isinstance(one, cls) else one for one in args]
        return func(*inner, **(kwargs or {}))


def test_kinds_of_tensors_that_are_not_known_are_left_to_themselves():
    x = torch.linspace(-1, 2, SIZE, device=GPU)
    with Fused(HERE):
        found = _Held(x + 1) * 2
        sparse = torch.eye(3, device=GPU).to_sparse()
        total = (sparse + sparse).to_dense()
    assert same(found, (x + 1) * 2)
    assert same(total, 2 * torch.eye(3, device=GPU))


def test_torchs_own_compiler_is_not_loaded_for_it():
    lines = [
        "import sys, torch",
        "from secureafl.kernels.fused import Fused",
        "with Fused(torch.device('meta')): torch.ones(3).add_(2)",
        "assert 'torch._dynamo' not in sys.modules, 'it takes seconds'",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=60)


def test_other_devices_and_types_are_left_to_torch(texts):
    half, meta = numbers(torch.float16, SIZE), torch.ones(3, device="meta")
    with Fused(HERE):
        held = half * 2, meta + 1, half.to_sparse() if GPU == "cpu" else half
        assert torch.zeros(3, device="meta").device.type == "meta"
    assert same(held[0], half * 2)
    assert not texts


OPERATIONS = [
    *(operator.add, operator.sub, operator.mul, torch.minimum, torch.maximum),
    *(lambda x, y: torch.where(x > y, x, y), lambda x, y: (x <= y).to(x.dtype) + x),
    *(lambda x, y: x.clamp(-2, 2) - y, lambda x, y: x * 0.5, lambda x, y: -y + 1),
]


@pytest.mark.parametrize("seed", [0, 1, costly(2), costly(3), costly(4), costly(5)])
def test_any_program_gives_the_same(seed):
    def program(*given):
        random, known = np.random.default_rng(seed), [*given]
        for _ in range(60):
            one, other = (known[random.integers(len(known))] for _ in range(2))
            kind = random.integers(14)
            if kind < len(OPERATIONS):
                known.append(OPERATIONS[kind](one, other))
            elif kind == 10:
                one.mul_(0.5)
            elif kind == 11:
                one[: len(one) // 2].copy_(other[0].clone())
            elif kind == 12:
                known.append(other.sum() + one)
            else:
                del known[random.integers(len(known) - 2)]  # its memory may be taken again
        return known

    x, y = (torch.linspace(-1, 2, 300, device=GPU) * factor for factor in (1, 3))
    check(program, x, y)


@contextlib.contextmanager
def fused_decisions(monkeypatch):
    """Every decision of a server is made with operations put together."""
    decide = Server.decide

    def deciding(self, *given):
        with Fused(HERE, spoilt=True):
            return decide(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Server, "decide", deciding)
        yield


@pytest.mark.parametrize("name", [costly(name) for name in DEFENSES])
def test_a_defence_decides_the_same(name, monkeypatch):
    expected, as_expected = play(DEFENSES[name]())
    with fused_decisions(monkeypatch):
        found, decided = play(DEFENSES[name]())
    assert decided == as_expected
    assert same(found, expected)


def test_a_function_is_replaced_by_one_with_fewer_operations(texts):
    x, count = torch.linspace(-1, 2, SIZE, device=GPU), torch.tensor([3], device=GPU)

    def step():
        count.add_(1)
        return torch.where(count > 4, x * 2, x - 1), {"norm": x.norm() + count}

    made = fewer_operations(step, [count], HERE)
    assert made is not step
    assert count.item() == 3, "as before"
    texts.clear()
    for _ in range(3):
        found, scores = made()
    assert len(texts) == 3
    assert same(found, x * 2)
    assert same(scores["norm"], x.norm() + count + 0)
    assert count.item() == 6


def test_roots_are_the_nearest_numbers():
    x = torch.linspace(0, 50, SIZE, dtype=torch.float64, device=GPU)
    with Fused(HERE):
        exact, short = x.sqrt(), x.float().sqrt()
    assert same(exact.cpu(), torch.from_numpy(np.sqrt(x.cpu().numpy())))
    assert same(short.cpu(), torch.from_numpy(np.sqrt(x.float().cpu().numpy())))


def first_number(vector):
    """What lies in memory, read behind torch's back."""
    address = ctypes.cast(vector.data_ptr(), ctypes.POINTER(ctypes.c_float))
    return torch.tensor([address[0]])


@pytest.mark.skipif(GPU != "cpu", reason="the host reads the memory")
def test_a_function_that_reads_memory_behind_torchs_back_stays_as_it_is(monkeypatch):
    x = torch.linspace(-1, 2, SIZE)

    def behind():
        return first_number(x + 1)

    with Fused(HERE, spoilt=True):
        assert first_number(x + 1).isnan().all(), "whatever lay there before"
    tried = []
    monkeypatch.setattr(
        cuda_graph, "Fused", lambda *given, **how: tried.append(how) or Fused(*given, **how)
    )
    assert fewer_operations(behind, [], HERE) is behind
    assert tried == [{"spoilt": True}]


def test_a_function_that_is_never_the_same_stays_as_it_is():
    x, drawn = torch.ones(SIZE, device=GPU), torch.zeros(3, device=GPU)

    def gives():
        return torch.rand(3, device=GPU) + x[:3]

    def changes():
        drawn.copy_(torch.rand(3, device=GPU))

    assert fewer_operations(gives, [], HERE) is gives
    assert fewer_operations(changes, [drawn], HERE) is changes
    assert not drawn.any()


def test_a_function_that_fails_when_operations_wait_stays_as_it_is(caplog):
    count = torch.zeros(1, device=GPU)

    def refuses():
        count.add_(1)
        if torch.utils._python_dispatch._get_current_dispatch_mode_stack():
            raise RuntimeError("not inside a mode")
        return count * 2

    assert fewer_operations(refuses, [count], HERE) is refuses
    assert not count.any()
    assert caplog.messages == [
        "operations are carried out one by one, which is slower: not inside a mode"
    ]


def test_without_kernels_of_a_gpu_a_function_stays_as_it_is():
    def gives():
        return torch.ones(3, device=GPU) + 1

    with using_kernels("reference"):
        assert fewer_operations(gives, [], HERE) is gives
    assert fewer_operations(gives, [], HERE) is not gives


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, *FLOATS, *WHOLE])
def test_a_checksum_tells_bits_and_their_order(dtype):
    x = torch.arange(40, device=GPU).view(5, 8).to(dtype)
    turned, changed = x.flip(0), x.clone()
    changed[4, 7] = 0
    of = [int(cuda_graph._checksum(one)) for one in (x, turned, changed, x.T, x.clone())]
    assert of[0] == of[4]
    if dtype != torch.bool:
        assert len(set(of)) == 4
    assert of[2] != of[0]


QUICK = [("kardam", "sign_flip"), ("async_sgd", "min_max")]
ALL = [*((name, "sign_flip") for name in DEFENSES), *(("async_sgd", name) for name in ATTACKS)]
ALL += [(name, "adaptive") for name in ("aflguard", "zeno_pp", "sageflow", "kardam", "fed_buff")]


@pytest.mark.parametrize(
    ("defense", "attack"), [*QUICK, *(costly(*case) for case in ALL if case not in QUICK)]
)
def test_recorded_runs_have_fewer_operations_and_the_same_bits(defense, attack, monkeypatch):
    made = tiny(defense=defense, attack=attack, rounds=24, device=GPU)
    with recorded_engine() if GPU == "cpu" else contextlib.nullcontext():
        with monkeypatch.context() as patched:
            patched.setattr(cuda_graph, "on_gpu", lambda tensor: False)
            plain = Simulation(made)
            expected = run(plain, 24)
        kept, fewer = [], cuda_graph.fewer_operations

        def noted(function, *given):
            kept.append(fewer(function, *given))
            assert kept[-1] is not function, "it has the same bits"
            return kept[-1]

        for module in (cuda_graph, on_cpu):
            monkeypatch.setattr(module, "fewer_operations", noted)
        recorded = Simulation(made)
        assert run(recorded, 24) == expected
    assert kept
    assert torch.equal(recorded.weights, plain.weights)
