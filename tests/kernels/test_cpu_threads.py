"""The compiled operations on several threads: the same bits, and nobody in anybody's way."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from command import TESTS
from stepping import RULES, Case, always_compiled, same_bits, some, threads

from secureafl.core.server import Server, Upload
from secureafl.core.trees import name_tensors
from secureafl.defenses import SecureAfl
from secureafl.kernels import cpu_threads

BLOCK = 32 * 16  # coordinates in the smallest part of the work
SIZES = [100, 2 * BLOCK, 3 * BLOCK + 1, 20 * BLOCK + 77]  # less than one part; two; four; many


@pytest.fixture(scope="module")
def cpu():
    pytest.importorskip("llvmlite")
    with always_compiled() as module:
        yield module


def everything(case, cpu, rule=RULES["median"]):
    """All that the operations make of a case, by name."""
    step, memory = case.step(cpu, rule)
    return {
        **name_tensors(step, "step"),
        **name_tensors(memory, "memory"),
        **name_tensors(case.store_upload(cpu), "exchanged"),
        "differences": case.differences(cpu),
    }


def all_same_bits(one, other):
    assert one.keys() == other.keys()
    return all(same_bits(one[name], other[name]) for name in one)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_same_bits_come_out_of_every_call(cpu, count, rule):
    case = Case(4, 50, size=2000, present=some(4, 50, 43))
    with threads(count):
        one = everything(case, cpu, RULES[rule])
        for _ in range(4):
            assert all_same_bits(everything(case, cpu, RULES[rule]), one)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rule", ["median", "mean", "trimmed_mean"])
def test_number_of_threads_changes_no_bit(cpu, size, rule):
    case = Case(5, 50, size=size, present=some(5, 50, 44))
    with threads(1):
        expected = everything(case, cpu, RULES[rule])
        case.check_step(cpu, RULES[rule])
    for count in (2, 3, 8, 1):
        with threads(count):
            assert all_same_bits(everything(case, cpu, RULES[rule]), expected)


def run(seed=0, size=2 * BLOCK + 9, rounds=25):
    """All models of a small server with every kind of arrival."""
    generator = torch.Generator().manual_seed(seed)
    server = Server(SecureAfl(window=10), 7, 0.05)
    state, models = server.start(torch.randn(size, generator=generator)), []
    for number in range(rounds):
        base = state.weights
        state.ledger.lend(number, base)
        noise = 0.1 * torch.randn(size, generator=generator)
        _, state = server.receive(state, Upload(number % 3, number, base + noise))
        models.append(state.weights)
    return torch.stack(models)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("count", [2, 3])
def test_whole_runs_are_the_same_with_any_number_of_threads(count):
    with threads(1):
        expected = run()
    with threads(count):
        assert same_bits(run(), expected)


@pytest.fixture
def fresh_workers(cpu):
    """Threads of their own for a test that may spoil them."""
    cpu_threads._workers.cache_clear()
    yield
    cpu_threads._workers.cache_clear()


@pytest.mark.usefixtures("fresh_workers")
def test_two_callers_at_once_get_what_each_would_get_alone(cpu):
    # Many blocks, so that one caller is still at work when the other comes.
    cases = [Case(seed, 7, size=(20 + 30 * seed) * BLOCK) for seed in (0, 1)]
    with threads(2):
        expected = [case.step(cpu)[0] for case in cases]

        def all_right(place):
            for _ in range(20):
                step, _ = cases[place].step(cpu)
                pairs = zip(step, expected[place], strict=True)
                if not all(same_bits(a, b) for a, b in pairs):
                    return False
            return True

        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(all_right, [0, 1])) == [True, True]


@pytest.mark.usefixtures("fresh_workers")
def test_two_callers_at_once_wait_each_for_its_own_work(cpu):
    ranges = cpu_threads.divide(4 * 32, 4 * BLOCK, 2)
    assert len(ranges.ranges) == 2

    def call(own, workers):
        """Which parts were done when the call came back; they take so many seconds."""
        caller, done = threading.current_thread(), []

        def work(size, block, first, last):
            time.sleep(own if threading.current_thread() is caller else workers)
            done.append((first, last))

        ranges.run(work)
        return sorted(done)

    with ThreadPoolExecutor(2) as pool:
        busy = pool.submit(call, 0.3, 0.1)  # the worker is done with it long before the caller
        time.sleep(0.05)
        assert call(0.0, 0.1) == ranges.ranges
        assert busy.result() == ranges.ranges


@pytest.mark.usefixtures("fresh_workers")
def test_interrupted_pass_ends_only_when_nobody_writes_any_more(cpu):
    # Workers hold bare addresses of arrays that are gone once the call is left.
    ranges = cpu_threads.divide(4 * 32, 4 * BLOCK, 2)
    caller, done = threading.current_thread(), []

    def interrupted(size, block, first, last):
        if threading.current_thread() is caller:
            raise KeyboardInterrupt
        time.sleep(0.2)
        done.append((first, last))

    with pytest.raises(KeyboardInterrupt):
        ranges.run(interrupted)
    assert done == ranges.ranges[1:]


@pytest.mark.usefixtures("fresh_workers")
def test_pass_after_an_interrupted_one_waits_for_all_of_its_own_work(cpu):
    ranges = cpu_threads.divide(4 * 32, 4 * BLOCK, 2)
    assert len(ranges.ranges) == 2
    caller = threading.current_thread()

    def interrupted(*_):
        if threading.current_thread() is caller:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ranges.run(interrupted)
    done = []

    def slow_elsewhere(size, block, first, last):
        if threading.current_thread() is not caller:
            time.sleep(0.2)
        done.append((first, last))

    ranges.run(slow_elsewhere)
    assert sorted(done) == ranges.ranges


@pytest.mark.usefixtures("fresh_workers")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_error_on_a_worker_thread_reaches_the_caller(cpu):
    ranges = cpu_threads.divide(4 * 32, 4 * BLOCK, 2)
    raised = []

    def call():
        caller = threading.current_thread()

        def fails_elsewhere(*_):
            if threading.current_thread() is not caller:
                raise MemoryError

        try:
            ranges.run(fails_elsewhere)
        except MemoryError as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(timeout=5)
    assert not thread.is_alive()  # it would wait for ever
    assert len(raised) == 1


FORK = """
import os, warnings
import torch
from stepping import MEDIAN, Case, always_compiled, same_bits

warnings.simplefilter("ignore")  # newer Pythons warn of forks with threads
torch.set_num_threads(2)
case = Case(0, 7, size=3000)
selection = case.selection(MEDIAN)
memories = [case.memory(), case.memory()]  # before the fork: torch's own threads do not survive it


def step(cpu, memory):
    given = memory, case.arrival, case.entry, case.keep, case.weights, selection
    return cpu.order_step(*given)[0]


with always_compiled() as cpu:
    expected = step(cpu, memories[0])
    child = os.fork()
    found = step(cpu, memories[1])
    good = all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    if child == 0:
        os._exit(0 if good else 1)
    print(good, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.usefixtures("cpu")
def test_child_of_a_fork_has_threads_of_its_own():
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True 0\n", done.stderr
