import pytest
import torch

from secureafl.bench import machine, paper
from secureafl.bench.cases import Case, Scope
from secureafl.bench.clock import Timing
from secureafl.bench.figure import draw
from secureafl.bench.findings import Findings
from secureafl.bench.jobs import Job, Measured, Skipped, carry_out, plan
from secureafl.bench.machine import Bandwidth
from secureafl.bench.results import make_rows

CPU, GPU = torch.device("cpu"), torch.device("cuda")
MAIN = Case(10, 1000, 3)
BANDWIDTH = Bandwidth(read=320e6, copy=1e9, buffer_bytes=MAIN.memory_bytes, device="cpu")


def done(method, case, times, floor=None, device=CPU, **more):
    job = Job(method, case, device, lambda: Timing([]), 0, floor, **more)
    return Measured(job, Timing(times, state_bytes=7), peak_bytes=9)


def test_rows_are_compared_with_floor_and_plain_of_their_own_case():
    other = MAIN._replace(buffer=1)
    rows = make_rows(
        [
            done("plain", MAIN, [30.0, 10.0, 20.0], MAIN.memory_bytes),
            done("secure_afl", MAIN, [2.0], MAIN.memory_bytes),
            done("secure_afl", MAIN, [1.0], MAIN.memory_bytes, replicas=8),
            done("plain", other, [5.0], other.memory_bytes),
            done("secure_afl", other, [2.0], other.memory_bytes),
            done("async_sgd", MAIN._replace(buffer=None), [0.5]),
        ],
        BANDWIDTH,
        MAIN,
    )
    # 10 * 8 * 1000 * 4 bytes at 320 MB/s take 1 ms; with one pair it is half.
    assert [row.floor_milliseconds for row in rows] == [1, 1, 1, 0.5, 0.5, None]
    assert [row.times_floor for row in rows] == [20, 2, 1, 10, 4, None]
    assert [row.times_faster_than_plain for row in rows] == [1, 10, 20, 1, 2.5, 40]
    plain = rows[0]
    assert (plain.milliseconds, plain.fastest, plain.slowest, plain.samples) == (20, 10, 30, 3)
    assert (plain.state_bytes, plain.peak_bytes) == (7, 9)


def test_medians_are_compared_with_the_plain_median():
    case = MAIN._replace(buffer=None)
    more = {"floor": case.values_bytes, "yardstick": "median_torch_sort"}
    rows = make_rows(
        [
            done("plain", MAIN, [100.0], MAIN.memory_bytes),
            done("median_torch_sort", case, [4.0], **more),
            done("median_numpy", case, [8.0], **more),
        ],
        BANDWIDTH,
        MAIN,
    )
    assert [row.times_faster_than_plain for row in rows[1:]] == [1, 0.5]
    assert [row.floor_milliseconds for row in rows[1:]] == [0.125, 0.125]


def test_without_plain_on_the_same_device_there_is_nothing_to_compare_with():
    (alone,) = make_rows([done("secure_afl", MAIN, [2.0], 8)], BANDWIDTH, MAIN)
    assert alone.times_faster_than_plain is None
    two = [done("plain", MAIN, [9.0], 8), done("secure_afl", MAIN, [2.0], 8, device=GPU)]
    elsewhere = make_rows(two, BANDWIDTH, MAIN)[1]
    assert (elsewhere.times_floor, elsewhere.times_faster_than_plain) == (None, None)


def test_a_gpu_also_gets_replicas():
    made = plan(Scope((10,), (1000,), (3,)), GPU)
    several = [job for job in made if job.replicas > 1]
    assert [(job.method, job.replicas) for job in several] == [("secure_afl", 8)]
    assert several[0].needed_bytes == 8 * MAIN.memory_bytes
    on_host = {job.method for job in made if job.device == CPU}
    assert on_host == {"median_numpy", "median_flower", "round_flower"}


def test_defences_are_measured_where_they_exist():
    names = [job.method for job in plan(Scope((10,), (1000,), (3,), quick=True), CPU)]
    assert names[:4] == ["plain", "secure_afl", "trust_clipping", "async_sgd"]
    assert len(names) == len(set(names))


def test_floor_of_trust_clipping_grows_with_parameters_and_not_with_clients():
    jobs = plan(Scope((10, 20), (1000, 5000), (3,)), CPU)
    found = {(j.case.clients, j.case.parameters): j for j in jobs if j.method == "trust_clipping"}
    # Upload, centre, model and signs for the sketches; two vectors in, two out for the step.
    assert {case: job.floor_bytes for case, job in found.items()} == {
        (clients, parameters): (3 * 4 + 1 + 4 * 4) * parameters
        for clients in (10, 20)
        for parameters in (1000, 5000)
    }
    more = found[20, 5000].needed_bytes - found[10, 5000].needed_bytes
    assert more == 10 * 3 * 4096 * 4  # three sketches of each further client


@pytest.mark.parametrize(("free", "fits"), [(100, True), (99, False)])
def test_too_large_a_job_is_skipped_with_the_reason(monkeypatch, free, fits):
    monkeypatch.setattr(machine, "free_memory", lambda device: free)
    job = Job("plain", MAIN, CPU, lambda: Timing([1.0]), needed_bytes=60, floor_bytes=None)
    outcome = carry_out(job)
    assert isinstance(outcome, Measured if fits else Skipped)
    if not fits:
        assert "more than 60% of the" in outcome.reason
        assert "--clients" in outcome.reason


def test_memory_that_runs_out_all_the_same_skips_the_job():
    def measure():
        raise torch.OutOfMemoryError

    assert "ran out" in carry_out(Job("plain", MAIN, CPU, measure, 0, None)).reason


def test_what_is_not_installed_is_skipped_by_name():
    def measure():
        import no_such_library  # noqa: F401

    outcome = carry_out(Job("median_flower", MAIN, CPU, measure, 0, None))
    assert outcome.reason == "no_such_library is not installed"


def test_interrupt_leaves_what_was_measured(monkeypatch):
    findings = Findings(Scope((4,), (100,), (3,), quick=True), CPU)
    calls = iter([Measured(None, None, 0), KeyboardInterrupt()])

    def until_interrupted(job):
        outcome = next(calls)
        if isinstance(outcome, KeyboardInterrupt):
            raise outcome
        return outcome._replace(job=job, timing=Timing([1.0]))

    monkeypatch.setattr("secureafl.bench.findings.carry_out", until_interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(findings.gather())
    assert [row.method for row in findings.rows()] == ["plain"]


def test_better_bandwidth_counts():
    other = BANDWIDTH._replace(read=1.0, copy=5e9)
    assert BANDWIDTH.best(other) == BANDWIDTH._replace(copy=5e9)


def test_paper_is_found_for_its_own_settings_only():
    row = done("secure_afl", Case(50, 139_960, 3), [1.0])
    (row,) = make_rows([row], BANDWIDTH, MAIN)
    assert paper.figure_for(row).milliseconds == 30
    assert paper.figure_for(row._replace(parameters=150_000)) is None
    assert paper.figure_for(row._replace(clients=1000)) is None
    assert paper.figure_for(row._replace(method="plain")) is None
    assert paper.WITH_MEMORY in paper.FIGURES
    assert len(paper.FIGURES) == len(set(paper.FIGURES)) == 20


@pytest.mark.parametrize("methods", [[], ["median_numpy"], ["plain"], ["secure_afl"]])
def test_picture_is_drawn_of_whatever_was_measured(methods):
    made = [done(method, MAIN, [2.0], MAIN.memory_bytes) for method in methods]
    picture = draw(make_rows(made, BANDWIDTH, MAIN), MAIN, "an abacus")
    assert picture.startswith(b"\x89PNG")


def test_jobs_never_need_less_than_their_floor():
    for job in plan(Scope((10, 20), (1000, 2000), (1, 3)), CPU):
        assert job.floor_bytes is None or job.needed_bytes >= job.floor_bytes
