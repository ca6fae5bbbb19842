"""The fast versions of the operations of trust clipping against the plain ones."""

import pytest
import torch
from emulated_cuda import GPU, costly
from stepping import threads

from secureafl.core.clipping import full_standing, no_records
from secureafl.core.panels import draw_panels
from secureafl.core.trees import name_tensors
from secureafl.core.types import Arrival
from secureafl.kernels import cpu, reference
from secureafl.kernels.dispatch import using_kernels
from secureafl.linalg.sketch import draw_sketch

SIZE = 64


@pytest.fixture
def placed(request, version):
    """A version of the operations, and where its tensors are."""
    if version == "gpu":
        return request.getfixturevalue("gpu"), torch.device(GPU)
    return {"reference": reference, "cpu": cpu}[version], torch.device("cpu")


def play(version, device, clients, dim, uploads=60):
    """All that a version keeps after some uploads, and the directions of the steps."""
    torch.manual_seed(clients)
    sketch = draw_sketch(dim, SIZE, torch.device(device))
    centre = torch.zeros(dim, device=device)
    records, standing = no_records(clients, SIZE, centre), full_standing(clients, centre.device)
    members = torch.randperm(clients).to(device)
    kinds, steps, model = torch.randn(3, dim), [], torch.zeros(dim)
    for number in range(uploads):
        client = int(torch.randint(clients, ()))
        gradient = kinds[client % 3] + torch.randn(dim)
        # The only client there is sets the length; what is left after 1e25 would be rounding.
        gradient *= {5: 0.0, 9: 1e25 if clients > 1 else 1.0, 20: 1e-25}.get(number, 1.0)
        model = model - 0.1 * gradient.clamp(-3, 3)
        given = torch.tensor(client), torch.tensor(0), gradient, model
        arrival = Arrival(*(tensor.to(device) for tensor in given))
        position = version.remember_upload(records, sketch, centre, arrival, 0.9)
        due = torch.tensor(number % 3 == 0, device=device)
        version.judge_clients(records, standing.trust, members, due, 0.9)
        _, step = version.take_step(records, standing, centre, arrival, position)
        steps.append(step.cpu())
    return torch.stack(steps), centre.cpu(), records, standing


@pytest.mark.parametrize("version", ["cpu", "gpu"])
def test_an_upload_that_is_a_part_of_something_is_read_before_its_copy_is_gone(placed):
    version, device = placed
    numbers = torch.arange(2_000_000.0, device=device)
    steps = []
    for upload in (numbers[::2], numbers[::2].clone()):  # of one a copy is made, and given back
        torch.manual_seed(0)
        sketch, centre = draw_sketch(len(upload), SIZE, upload.device), torch.zeros_like(upload)
        records, standing = no_records(1, SIZE, centre), full_standing(1, upload.device)
        client = torch.tensor(0, device=device)
        arrival = Arrival(client, client, upload, torch.zeros_like(upload))
        position = version.remember_upload(records, sketch, centre, arrival, 0.9)
        steps.append(version.take_step(records, standing, centre, arrival, position)[1])
    assert steps[0].any()
    assert torch.equal(*steps)


# Some long enough that curvature counts; of 140 clients most are known before the end.
_LENGTHS = [(1, 40, 60), (2, 64, 60), (7, 1000, 150), (33, 1000, 60), (140, 333, 250)]
_CASES = [("cpu", *case) for case in _LENGTHS]
_CASES += [("gpu", *case) if case[0] == 2 else costly("gpu", *case) for case in _LENGTHS]


@pytest.mark.parametrize(("version", "clients", "dim", "uploads"), _CASES)
def test_uploads_leave_what_the_plain_version_leaves(placed, clients, dim, uploads):
    steps, centre, *kept = play(*placed, clients, dim, uploads)
    with using_kernels("reference"):
        plain_steps, plain_centre, *expected = play(reference, "cpu", clients, dim, uploads)
    torch.testing.assert_close(steps, plain_steps, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(centre, plain_centre, rtol=1e-4, atol=1e-5)
    found, expected = (name_tensors(state, "") for state in (kept, expected))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].cpu(), tensor, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("kind", ["curvature", "whole"])
@pytest.mark.parametrize("version", ["reference", "cpu", "gpu"])
def test_either_curvature_can_cost_a_client_its_trust(placed, kind):
    version, place = placed
    records = no_records(5, SIZE, torch.zeros(1000, device=place))
    standing = full_standing(5, place)
    records.known.fill_(True)
    for table in (records.kept, records.curvature.mean, records.whole.mean):
        table.fill_(1)
    for table in (records.curvature.count, records.whole.count):
        table.fill_(10)
    records.history.copy_(torch.eye(5, SIZE))
    getattr(records, kind).mean[3] = 0.1
    members, due = torch.arange(5, device=place), torch.tensor(True, device=place)
    version.judge_clients(records, standing.trust, members, due, 0.9)
    assert standing.trust.tolist() == [1, 1, 1, 0.75, 1]


@pytest.mark.parametrize("clients", [1, 50, 129, 1500, 3000])
@pytest.mark.parametrize("version", ["cpu", "gpu"])
def test_panels_are_called_as_in_the_plain_version(placed, clients):
    torch.manual_seed(0)
    version, device = placed
    plain = draw_panels(clients, torch.device("cpu"))
    panels = type(plain)(*(tensor.to(device, copy=True) for tensor in plain))
    for _ in range(3 * 2 * -(-clients // 128) + 1):
        (members, due), expected = version.call_panel(panels, 2), reference.call_panel(plain, 2)
        assert bool(due) == bool(expected[1])
        if due:
            assert members.tolist() == expected[0].tolist()
        assert [tensor.tolist() for tensor in panels] == [tensor.tolist() for tensor in plain]


def test_number_of_threads_changes_no_bit():
    """Of 100 rows of the sketch, which are more than one block, the last of them short."""
    found = []
    for count in (1, 2, 3):
        with threads(count):
            steps, centre, *kept = play(cpu, "cpu", 5, 6371, uploads=12)
        found.append([steps, centre, *name_tensors(kept, "").values()])
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
