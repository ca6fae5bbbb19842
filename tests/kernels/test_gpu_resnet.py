"""ResNet-20's gradient written out for a GPU against autograd's, where there is a GPU.

Without one, `TRITON_INTERPRET=1 pytest tests/kernels/test_gpu_resnet.py` runs one test in Triton's
interpreter, if Triton is installed.
"""

import os
from importlib.util import find_spec

import pytest
import torch
from torch.nn.functional import cross_entropy

from secureafl.core.flat_model import FlatModel, count_statistics, flatten
from secureafl.tasks.cifar10 import Cifar10
from secureafl.tasks.faster import fast_gradient
from secureafl.tasks.models.resnet import ResNet20
from secureafl.tasks.models.resnet_gradient import resnet_gradient
from secureafl.tasks.udacity import Udacity

INTERPRETED = bool(os.environ.get("TRITON_INTERPRET")) and find_spec("triton") is not None
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# Images, height, width and outputs. Kernels are compiled for each size and precision, which takes a
# minute or so; hence Tiny-ImageNet's and an odd size in one precision each.
USUAL, FEW, LARGE, ODD = (64, 32, 32, 10), (7, 32, 32, 100), (64, 64, 64, 200), (7, 33, 18, 10)
CASES = [(USUAL, False), (USUAL, True), (FEW, False), (FEW, True), (LARGE, True), (ODD, False)]
both = pytest.mark.parametrize("mixed", [False, True], ids=["float32", "bfloat16"])


def case(images, height, width, outputs, device="cuda"):
    """A model a few steps from where models begin, so that no factor is 1 and no shift is 0."""
    torch.manual_seed(images)
    model = ResNet20(outputs).to(device)
    weights = flatten(model)
    weights += 0.1 * torch.randn_like(weights) * weights.abs().clamp(min=0.1)
    inputs = torch.randn(images, 3, height, width, device=device)
    return model, weights, inputs, torch.randint(outputs, (images,), device=device)


def by_kernels(model, weights, inputs, labels, mixed):
    return resnet_gradient(model, weights, inputs, loss_for(labels), mixed)


def by_autograd(model, weights, inputs, labels, mixed=False):
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=True):
        return FlatModel(model, mixed).gradient(weights, inputs, loss_for(labels))


def loss_for(labels):
    return lambda outputs: cross_entropy(outputs, labels)


def error(found, expected):
    """Of gradients, relative to their norm, and of statistics."""
    return [float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True)]


@on_gpu
@pytest.mark.parametrize(("sizes", "mixed"), CASES)
def test_as_close_to_the_gradient_as_autograd_in_the_same_precision(sizes, mixed):
    model, weights, inputs, labels = case(*sizes)
    expected = by_autograd(model, weights.double(), inputs.double(), labels)
    usual = error(by_autograd(model, weights, inputs, labels, mixed), expected)
    found = error(by_kernels(model, weights, inputs, labels, mixed), expected)
    # Where a value is all but 0, rounding decides whether it passes a ReLU: a matter of luck.
    for ours, autograds in zip(found, usual, strict=True):
        assert ours < 2 * autograds + 2e-3


@on_gpu
@both
def test_errors_of_a_usual_batch_are_small(mixed):
    model, weights, inputs, labels = case(*USUAL)
    expected = by_autograd(model, weights.double(), inputs.double(), labels)
    gradient, moved = error(by_kernels(model, weights, inputs, labels, mixed), expected)
    # Factors of products in float32 are rounded to TF32's ten bits, as in torch's convolutions.
    assert gradient < (0.1 if mixed else 0.03)
    assert moved < (0.01 if mixed else 0.003)


@pytest.mark.skipif(not INTERPRETED, reason="needs Triton and TRITON_INTERPRET=1")
@pytest.mark.timeout(1200)
def test_in_the_interpreter_the_gradient_is_autograds():
    model, weights, inputs, labels = case(3, 9, 6, 10, device="cpu")
    expected = by_autograd(model, weights.double(), inputs.double(), labels)
    found = by_kernels(model, weights, inputs, labels, mixed=False)
    assert max(error(found, expected)) < 1e-5


@on_gpu
@both
def test_no_gradient_for_statistics(mixed):
    model, *given = case(*FEW)
    gradient, moved = by_kernels(model, *given, mixed)
    assert moved.shape == (count_statistics(model),)
    assert not gradient[-moved.numel() :].any()


@on_gpu
@both
@pytest.mark.parametrize("sizes", [USUAL, FEW])
def test_the_same_bits_every_time(sizes, mixed):
    given = case(*sizes)
    first = torch.cat(by_kernels(*given, mixed))
    assert all(torch.equal(first, torch.cat(by_kernels(*given, mixed))) for _ in range(20))


@on_gpu
@both
def test_a_recorded_gradient_is_that_of_new_weights_and_images(mixed):
    model, weights, inputs, labels = case(*USUAL)
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


@on_gpu
@both
@pytest.mark.parametrize("place", [0, 440, 460, 5_000, 100_000, 200_000, 269_050, -1377])
def test_what_is_not_a_number_in_weights_is_not_hidden(place, mixed):
    model, weights, inputs, labels = case(*FEW)
    weights[place] = torch.nan
    gradient, moved = by_kernels(model, weights, inputs, labels, mixed)
    assert gradient[[0, -1 - moved.numel()]].isnan().all()  # the way back ends at the first


@on_gpu
@both
def test_what_is_not_a_number_in_statistics_and_images_is_not_hidden(mixed):
    model, weights, inputs, labels = case(*FEW)
    weights[-1] = torch.nan
    gradient, moved = by_kernels(model, weights, inputs, labels, mixed)
    assert gradient.isfinite().all()
    assert moved[-1].isnan()
    assert moved[:-1].isfinite().all()
    inputs[3, 1, 5, 5] = torch.inf
    gradient, moved = by_kernels(model, weights, inputs, labels, mixed)
    assert gradient[[0, -1 - moved.numel()]].isnan().all()


@on_gpu
@both
def test_tasks_with_it_have_it(mixed):
    _, _, inputs, labels = case(*USUAL)
    for task, given in ((Cifar10(), labels), (Udacity(), torch.randn(64, device="cuda"))):
        model = task.model().cuda()
        found = fast_gradient(task, model, flatten(model), inputs, given, mixed)
        flat = FlatModel(model, mixed)
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=True):
            usual = flat.gradient(flatten(model), inputs, lambda out: task.loss(out, given))  # noqa: B023
        assert max(error(found, usual)) < (0.6 if mixed else 0.1)
