"""ResNet-20's gradient written out for a GPU against autograd's, where there is a GPU.

The same kernels are compared in `test_emulated_resnet.py` on a CPU.
"""

import pytest
import torch
from resnet_cases import case_of, error, evaluation_of, loss_for

from secureafl.core.flat_model import FlatModel, count_statistics, flatten
from secureafl.tasks.cifar10 import Cifar10
from secureafl.tasks.faster import fast_gradient, fast_outputs
from secureafl.tasks.models.resnet_gradient import resnet_gradient, resnet_outputs
from secureafl.tasks.udacity import Udacity

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# Images, height, width and outputs.
USUAL, FEW, LARGE, ODD = (64, 32, 32, 10), (7, 32, 32, 100), (64, 64, 64, 200), (7, 33, 18, 10)
CASES = [(sizes, mixed) for sizes in (USUAL, FEW, LARGE, ODD) for mixed in (False, True)]
both = pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])


def by_kernels(model, weights, inputs, labels, mixed):
    return resnet_gradient(model, weights, inputs, loss_for(labels), mixed)


def by_autograd(model, weights, inputs, labels, mixed=False):
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=True):
        return FlatModel(model, mixed).gradient(weights, inputs, loss_for(labels))


@pytest.mark.parametrize(("sizes", "mixed"), CASES)
def test_as_close_to_the_gradient_as_autograd_in_the_same_precision(sizes, mixed):
    model, weights, inputs, labels = case_of(*sizes)
    expected = by_autograd(model, weights.double(), inputs.double(), labels)
    usual = error(by_autograd(model, weights, inputs, labels, mixed), expected)
    found = error(by_kernels(model, weights, inputs, labels, mixed), expected)
    # Where a value is all but 0, rounding decides whether it passes a ReLU: a matter of luck.
    for ours, autograds in zip(found, usual, strict=True):
        assert ours < 2 * autograds + 2e-3


@both
def test_errors_of_a_usual_batch_are_small(mixed):
    model, weights, inputs, labels = case_of(*USUAL)
    expected = by_autograd(model, weights.double(), inputs.double(), labels)
    gradient, moved = error(by_kernels(model, weights, inputs, labels, mixed), expected)
    # Factors of products in float32 are rounded to TF32's ten bits, as in torch's convolutions.
    assert gradient < (0.1 if mixed else 0.03)
    assert moved < (0.01 if mixed else 0.003)


@both
def test_no_gradient_for_statistics(mixed):
    model, *given = case_of(*FEW)
    gradient, moved = by_kernels(model, *given, mixed)
    assert moved.shape == (count_statistics(model),)
    assert not gradient[-moved.numel() :].any()


@both
@pytest.mark.parametrize("sizes", [USUAL, FEW])
def test_the_same_bits_every_time(sizes, mixed):
    given = case_of(*sizes)
    first = torch.cat(by_kernels(*given, mixed))
    assert all(torch.equal(first, torch.cat(by_kernels(*given, mixed))) for _ in range(20))


@both
def test_a_recorded_gradient_is_that_of_new_weights_and_images(mixed):
    model, weights, inputs, labels = case_of(*USUAL)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            by_kernels(model, weights, inputs, labels, mixed)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            found = by_kernels(model, weights, inputs, labels, mixed)
        weights.mul_(1.1)
        inputs.copy_(torch.randn_like(inputs))
        graph.replay()
    stream.synchronize()
    expected = by_kernels(model, weights, inputs, labels, mixed)
    assert torch.equal(torch.cat(found), torch.cat(expected))


@both
@pytest.mark.parametrize("place", [0, 440, 460, 5_000, 100_000, 200_000, 269_050, -1377])
def test_what_is_not_a_number_in_weights_is_not_hidden(place, mixed):
    model, weights, inputs, labels = case_of(*FEW)
    weights[place] = torch.nan
    gradient, moved = by_kernels(model, weights, inputs, labels, mixed)
    assert gradient[[0, -1 - moved.numel()]].isnan().all()  # the way back ends at the first


@both
def test_what_is_not_a_number_in_statistics_and_images_is_not_hidden(mixed):
    model, weights, inputs, labels = case_of(*FEW)
    weights[-1] = torch.nan
    gradient, moved = by_kernels(model, weights, inputs, labels, mixed)
    assert gradient.isfinite().all()
    assert moved[-1].isnan()
    assert moved[:-1].isfinite().all()
    inputs[3, 1, 5, 5] = torch.inf
    gradient, moved = by_kernels(model, weights, inputs, labels, mixed)
    assert gradient[[0, -1 - moved.numel()]].isnan().all()


@pytest.mark.parametrize("sizes", [(100, 32, 32, 10), FEW, (100, 64, 64, 200), ODD, (1, 4, 4, 10)])
def test_outputs_are_as_close_as_those_of_torchs_layers_in_tf32(sizes):
    model, weights, inputs = evaluation_of(*sizes)
    flat = FlatModel(model)
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=True):
        expected = flat.outputs(weights.double(), inputs.double())
        usual = float((flat.outputs(weights, inputs) - expected).norm() / expected.norm())
    found = resnet_outputs(model, weights, inputs)
    assert torch.equal(found, resnet_outputs(model, weights, inputs))
    assert (found - expected).norm() / expected.norm() < 2 * usual + 2e-3


def test_recorded_outputs_are_those_of_new_weights():
    model, weights, inputs = evaluation_of(*FEW)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        resnet_outputs(model, weights, inputs)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            found = resnet_outputs(model, weights, inputs)
        weights.mul_(1.1)
        graph.replay()
    stream.synchronize()
    assert torch.equal(found, resnet_outputs(model, weights, inputs))


def test_a_task_has_the_outputs_of_some_images_and_not_of_a_test_set():
    for task in (Cifar10(), Udacity()):
        model = task.model().cuda().train()
        weights, inputs = flatten(model), torch.randn(100, 3, 32, 32, device="cuda")
        usual = FlatModel(model).outputs(weights, inputs)
        torch.testing.assert_close(
            fast_outputs(model, weights, inputs), usual, rtol=0.05, atol=0.05
        )
        assert fast_outputs(model, weights, inputs.repeat(10, 1, 1, 1)) is None


@both
def test_tasks_with_it_have_it(mixed):
    _, _, inputs, labels = case_of(*USUAL)
    for task, given in ((Cifar10(), labels), (Udacity(), torch.randn(64, device="cuda"))):
        model = task.model().cuda()
        found = fast_gradient(task, model, flatten(model), inputs, given, mixed)
        flat = FlatModel(model, mixed)
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=True):
            usual = flat.gradient(flatten(model), inputs, lambda out: task.loss(out, given))  # noqa: B023
        assert max(error(found, usual)) < (0.6 if mixed else 0.1)
