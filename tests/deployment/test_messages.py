import resource
import tracemalloc

import numpy as np
import pytest
from deployment.hostile import COUNT, LAYOUT, NAMES, SIZE, WRONGS, good, hostile
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from secureafl.deployment.messages import REFUSALS, Answer, UploadSchema

FORM = UploadSchema(LAYOUT)


@pytest.mark.parametrize("kind", ["update", "arrays"])
def test_honest_answer_is_the_flat_vector(kind):
    rng = np.random.default_rng(1)
    content = good(rng, kind)
    answer = FORM.read(content)
    assert isinstance(answer, Answer)
    expected = np.concatenate([a.numpy().reshape(-1) for a in content[kind].values()])
    np.testing.assert_array_equal(answer.vector, expected)
    assert answer.vector.dtype == np.float32
    assert (answer.trained, answer.attack) == (kind == "arrays", "")


def test_arrays_may_come_in_any_order_and_memory_layout():
    arrays = {name: np.random.default_rng(2).normal(size=shape) for name, shape in LAYOUT.items()}
    arrays = {name: np.asarray(a, np.float32, order="F") for name, a in arrays.items()}
    record = ArrayRecord({name: Array(arrays[name]) for name in reversed(LAYOUT)})
    answer = FORM.read(RecordDict({"update": record}))
    assert isinstance(answer, Answer), answer
    np.testing.assert_array_equal(
        answer.vector, np.concatenate([arrays[name].ravel() for name in LAYOUT])
    )


def test_metrics_come_along_unread_and_an_attacker_of_a_test_is_named():
    content = good(np.random.default_rng(3))
    content["metrics"] = MetricRecord({"num-examples": 3})
    content["secureafl"] = ConfigRecord({"attack": "sign_flip"})
    assert FORM.read(content).attack == "sign_flip"


@pytest.mark.parametrize("claim", ["x" * 65, "a\nb", 7, ["sign_flip"], b"x"])
def test_odd_claim_about_an_attack_is_no_claim(claim):
    content = good(np.random.default_rng(3))
    content["secureafl"] = ConfigRecord({"attack": claim})
    assert FORM.read(content).attack == ""


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_wrong_message_is_refused_with_a_reason(name):
    rng = np.random.default_rng(4)
    reasons = {FORM.read(WRONGS[name](rng, good(rng))) for _ in range(50)}
    assert reasons <= REFUSALS, reasons


def test_nan_that_signals_is_refused_without_a_warning():
    # Of the bit patterns of NaN some raise the processor's flag; warnings are errors here.
    content = good(np.random.default_rng(4))
    name = "first.bias"
    numbers = np.full(LAYOUT[name], 0x7FA00000, np.uint32).view(np.float32)
    content["update"][name] = Array(numbers)
    assert FORM.read(content) == "not_finite"


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_hostile_messages_are_refused(seed):
    refuse(np.random.default_rng(seed), 500)  # 20,000 in all


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_million_hostile_messages_are_refused_in_bounded_memory():
    rng = np.random.default_rng(5)
    refuse(rng, 10_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refuse(rng, COUNT - 10_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{COUNT:,} messages, memory grew by {grown / 2**10:.0f} MiB")
    assert grown < 32 * 2**10  # KiB


def refuse(rng, count):
    for _ in range(count):
        content, name = hostile(rng)
        reason = FORM.read(content)
        assert isinstance(reason, str), name
        assert reason in REFUSALS, name


def test_claims_about_size_cost_no_memory():
    rng = np.random.default_rng(6)
    messages = [hostile(rng)[0] for _ in range(300)]
    tracemalloc.start()
    for content in messages:
        FORM.read(content)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 * 4 * SIZE + 2**16


@given(data=st.binary(max_size=300), dtype=st.text(max_size=8), kind=st.text(max_size=14))
def test_arbitrary_bytes_never_raise(data, dtype, kind):
    record = ArrayRecord({name: Array(dtype, shape, kind, data) for name, shape in LAYOUT.items()})
    assert FORM.read(RecordDict({"update": record})) in REFUSALS


def test_room_for_an_answer_is_a_little_more_than_its_numbers():
    form = UploadSchema({"w": (1000, 1000)})
    assert 4_000_000 < form.most_bytes < 4_200_000
