"""Which version of the hot operations runs, and what is said when it cannot."""

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from command import TESTS
from stepping import Case, always_compiled, same_bits

from secureafl.core.errors import ConfigError
from secureafl.kernels import dispatch, operations, reference
from secureafl.kernels.dispatch import using_kernels, version_for

HERE = torch.zeros(3)
ON_GPU = SimpleNamespace(device=torch.device("cuda", 1), is_cpu=False)
ELSEWHERE = torch.zeros(3, device="meta")


def forget():
    dispatch._module.cache_clear()
    dispatch._say_once.cache_clear()


@pytest.fixture(autouse=True)
def _nothing_chosen_nor_said():
    forget()
    yield
    forget()


@pytest.fixture
def without(monkeypatch):
    """A function that makes a package impossible to import."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def cpu():
    pytest.importorskip("llvmlite")
    from secureafl.kernels import cpu

    return cpu


def said(caplog):
    assert all(record.name == "secureafl" for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("kind", ["auto", "cpu"])
def test_compiled_version_runs_on_a_cpu(cpu, kind, caplog):
    with caplog.at_level(logging.DEBUG, logger="secureafl"), using_kernels(kind):
        assert version_for(HERE) is cpu
    assert not said(caplog)


@pytest.mark.parametrize("tensor", [HERE, ON_GPU, ELSEWHERE], ids=["cpu", "cuda", "meta"])
def test_plain_version_runs_wherever_it_is_asked_for(tensor, caplog):
    with caplog.at_level(logging.DEBUG, logger="secureafl"), using_kernels("reference"):
        assert version_for(tensor) is reference
    assert not said(caplog)


@pytest.mark.parametrize("kind", ["auto", "reference"])
def test_plain_version_runs_on_devices_that_have_no_other(kind):
    with using_kernels(kind):
        assert version_for(ELSEWHERE) is reference


def test_innermost_choice_counts_and_the_earlier_one_comes_back(cpu):
    with using_kernels("reference"):
        with using_kernels("auto"):
            assert version_for(HERE) is cpu
        assert version_for(HERE) is reference
    assert version_for(HERE) is cpu


def refusal(ask, *args):
    """The one line of a refusal."""
    with pytest.raises(ConfigError) as caught:
        ask(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_version_for_a_cpu_without_llvmlite_is_refused_with_the_remedy(without):
    without("llvmlite")
    message = refusal(using_kernels, "cpu")
    assert "kernels = 'cpu'" in message
    assert "llvmlite" in message
    assert "auto" in message


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_version_for_a_gpu_without_one_is_refused_with_the_remedy():
    message = refusal(using_kernels, "gpu")
    assert "kernels = 'gpu'" in message
    assert "no GPU" in message
    assert "auto" in message


@pytest.mark.usefixtures("no_gpu")
def test_refused_choice_changes_nothing():
    with using_kernels("reference"):
        refusal(using_kernels, "gpu")
        refusal(using_kernels, "tpu")
        assert version_for(HERE) is reference


@pytest.mark.parametrize("kind", ["tpu", "", "CPU", None, 3])
def test_unknown_choice_is_refused_with_all_there_are(kind):
    message = refusal(using_kernels, kind)
    assert f"kernels = {kind!r}" in message
    assert all(name in message for name in ("auto", "reference", "cpu", "gpu"))


@pytest.mark.usefixtures("cpu")
def test_version_for_a_cpu_is_refused_for_a_model_on_a_gpu():
    with using_kernels("cpu"):
        message = refusal(version_for, ON_GPU)
    assert "kernels = 'cpu'" in message
    assert "cuda" in message
    assert "auto" in message
    assert "gpu" in message


def test_version_for_a_gpu_is_refused_for_a_model_on_a_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with using_kernels("gpu"):
        message = refusal(version_for, HERE)
    assert "kernels = 'gpu'" in message
    assert "auto or cpu" in message


def test_missing_llvmlite_is_told_once(without, caplog):
    without("llvmlite")
    with caplog.at_level(logging.DEBUG, logger="secureafl"):
        assert [version_for(HERE) for _ in range(3)] == [reference] * 3
    (message,) = said(caplog)
    assert "pip install llvmlite" in message
    assert caplog.records[0].levelno == logging.WARNING


def test_missing_llvmlite_is_no_news_to_who_asked_for_the_plain_version(without, caplog):
    without("llvmlite")
    with caplog.at_level(logging.DEBUG, logger="secureafl"), using_kernels("reference"):
        assert version_for(HERE) is reference
    assert not said(caplog)


NO_LLVMLITE = """
import logging, sys
sys.modules["llvmlite"] = None
logging.basicConfig(format="%(name)s: %(message)s")
import torch
from secureafl.core.server import Server, Upload
from secureafl.defenses import SecureAfl

server = Server(SecureAfl(), 4, 0.1)
state = server.start(torch.ones(50))
for number in range(9):
    state.ledger.lend(number, state.weights)
    _, state = server.receive(state, Upload(number % 3, number, state.weights + 0.1 * number))
print(bool(torch.isfinite(state.weights).all()), bool((state.weights < 1).all()))
"""


def test_server_runs_without_llvmlite_and_says_so_once():
    command = [sys.executable, "-c", NO_LLVMLITE]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert done.stdout == "True True\n", done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("secureafl: llvmlite is not installed")


def results(case, version):
    """What the operations make of a case, whoever is asked."""
    step, memory = case.step(version)
    return [*step, *memory, *case.store_upload(version), case.differences(version)]


@pytest.mark.parametrize("kind", ["reference", "cpu"])
def test_operations_run_the_version_that_was_chosen(cpu, kind):
    case = Case(0, 5, size=100)
    with always_compiled():
        with using_kernels(kind):
            found = results(case, operations)
        expected = results(case, {"reference": reference, "cpu": cpu}[kind])
        other = results(case, {"reference": cpu, "cpu": reference}[kind])
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    assert not all(same_bits(a, b) for a, b in zip(found, other, strict=True))


PASSES = ("secant_pass", "store_pass", "order_pass")


def nothing_compiled(monkeypatch, cpu):
    for name in PASSES:
        monkeypatch.delattr(cpu, name)


@pytest.mark.parametrize(
    ("case", "slots_matter"),
    [
        (Case(1, 5, size=100), False),  # far smaller than what pays
        (Case(2, 5, size=100, dtype=torch.float64), False),
        (Case(3, 5, slots=17, size=100), True),
        (Case(4, 5, slots=40, size=20), True),
    ],
    ids=["small", "float64", "17_vectors", "40_vectors"],
)
def test_compiled_version_leaves_to_the_plain_one_what_it_is_not_for(
    cpu, monkeypatch, case, slots_matter
):
    if slots_matter or case.dtype == torch.float64:
        monkeypatch.setattr(cpu, "WORTH_IT", 0)
    nothing_compiled(monkeypatch, cpu)
    step, memory = case.step(cpu)
    found = [*step, *memory, *case.store_upload(cpu)]
    step, memory = case.step(reference)
    expected = [*step, *memory, *case.store_upload(reference)]
    if not slots_matter:  # two of a client's vectors are looked at however many there are
        found, expected = [*found, case.differences(cpu)], [*expected, case.differences(reference)]
    assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))


def test_seventeen_vectors_are_no_obstacle_to_differences(cpu):
    case = Case(5, 5, slots=17, size=100, whole=True)
    with always_compiled():
        assert torch.equal(case.differences(cpu), case.differences(reference))


@pytest.mark.parametrize("operation", ["step", "store_upload", "differences"])
def test_memory_of_just_the_size_that_pays_is_compiled(cpu, monkeypatch, operation):
    case = Case(6, 5, size=100)
    numbers = case.memory().vectors.numel()
    monkeypatch.setattr(cpu, "WORTH_IT", numbers + 1)
    with monkeypatch.context() as patch:
        nothing_compiled(patch, cpu)
        getattr(case, operation)(cpu)
    monkeypatch.setattr(cpu, "WORTH_IT", numbers)
    monkeypatch.setattr(cpu, "reference", None)
    assert len(getattr(case, operation)(cpu)) > 0
