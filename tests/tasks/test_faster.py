"""Which models have hand-written gradients; on a GPU `tests/kernels` compares the gradients."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from secureafl.core.flat_model import FlatModel, flatten, layout
from secureafl.kernels import dispatch
from secureafl.kernels.dispatch import using_kernels
from secureafl.tasks import Cifar10, FashionMnist, Udacity, faster
from secureafl.tasks.models import ResNet20, resnet_gradient


@pytest.fixture
def on_gpu(monkeypatch):
    """As if tensors were on a GPU; a gradient is its name, loss and precision."""

    def resnet_gradient(model, weights, images, loss, mixed):
        return "resnet", loss(torch.ones(len(images), model.last.out_features)), mixed

    monkeypatch.setattr(faster, "on_gpu", lambda _: True)
    monkeypatch.setattr(faster, "_has_tensor_cores", lambda _: True)
    monkeypatch.setattr(faster, "cnn_gradient", lambda *_: "cnn")
    monkeypatch.setattr(faster, "cnn_outputs", lambda weights, images: (len(weights), len(images)))
    monkeypatch.setattr(faster, "resnet_gradient", resnet_gradient)
    monkeypatch.setattr(
        faster, "resnet_outputs", lambda model, _, images: images.new_ones(len(images), 10)
    )


def found(task, model, shape, mixed=False):
    labels = torch.zeros(shape[0], dtype=torch.int64)
    return faster.fast_gradient(task, model, flatten(model), torch.zeros(shape), labels, mixed)


@pytest.mark.parametrize(
    "task", [FashionMnist(), SimpleNamespace(loss=lambda out, _: out[:, 3].sum())]
)
def test_on_a_cpu_the_papers_cnn_has_one_with_any_loss(task):
    pytest.importorskip("llvmlite")
    model, shape = FashionMnist().model(), (2, 1, 28, 28)
    labels, images = torch.zeros(2, dtype=torch.int64), torch.zeros(shape)
    expected = FlatModel(model).gradient(
        flatten(model), images, lambda outputs: task.loss(outputs, labels)
    )
    torch.testing.assert_close(found(task, model, shape), expected)
    outputs = faster.fast_outputs(model, flatten(model), images)
    torch.testing.assert_close(outputs, model(images))


def test_on_a_cpu_everything_else_is_left_to_autograd():
    cnn, images = FashionMnist().model(), torch.zeros(2, 1, 28, 28)
    others = [
        (Cifar10(), Cifar10().model(), torch.zeros(2, 3, 32, 32)),
        (FashionMnist(), nn.Sequential(*cnn), images),
        (FashionMnist(), cnn.double(), images.double()),
        (FashionMnist(), cnn.float(), torch.zeros(2, 1, 30, 30)),
        (FashionMnist(), cnn, images[:0]),
    ]
    for task, model, inputs in others:
        labels = torch.zeros(len(inputs), dtype=torch.int64)
        given = (flatten(model), inputs)
        assert faster.fast_gradient(task, model, *given, labels, False) is None
        assert faster.fast_outputs(model, *given) is None
    with using_kernels("reference"):
        assert found(FashionMnist(), cnn, (2, 1, 28, 28)) is None
        assert faster.fast_outputs(cnn, flatten(cnn), images) is None


def test_without_llvmlite_the_papers_cnn_is_left_to_autograd(monkeypatch):
    monkeypatch.setattr(dispatch, "_module", lambda kind: None)
    assert found(FashionMnist(), FashionMnist().model(), (2, 1, 28, 28)) is None


def test_the_papers_cnn_has_one_in_float32(on_gpu):
    task = FashionMnist()
    gradient, moved = found(task, task.model(), (2, 1, 28, 28))
    assert gradient == "cnn"
    assert not moved.numel()
    assert found(task, task.model(), (2, 1, 28, 28), mixed=True) is None
    assert found(task, task.model(), (1001, 1, 28, 28)) is None
    assert found(Udacity(), task.model(), (2, 1, 28, 28)) is None  # a loss it does not know


def test_a_gpu_has_the_outputs_of_the_papers_cnn(on_gpu):
    model = FashionMnist().model()
    weights, images = flatten(model), torch.zeros(1001, 1, 28, 28)
    assert faster.fast_outputs(model, weights, images) == (139_960, 1001)
    others = [(model, weights.double(), images), (model, weights, images[:0])]
    others += [(Cifar10().model(), weights, images), (frozen_cnn(), weights, images)]
    others += [(model, weights, torch.zeros(2, 1, 32, 32))]
    assert [faster.fast_outputs(*other) for other in others] == [None] * 5


def frozen_cnn():
    model = FashionMnist().model()
    next(model.parameters()).requires_grad_(False)
    return model


def test_with_a_frozen_layer_the_papers_cnn_is_left_to_autograd():
    model, images = frozen_cnn(), torch.zeros(2, 1, 28, 28)
    assert found(FashionMnist(), model, images.shape) is None
    assert faster.fast_outputs(model, flatten(model), images) is None


def test_with_a_frozen_layer_a_gpu_leaves_it_to_autograd_too(on_gpu):
    assert found(FashionMnist(), frozen_cnn(), (2, 1, 28, 28)) is None


@pytest.mark.parametrize("mixed", [False, True])
def test_resnet_has_one_with_the_loss_of_its_task(on_gpu, mixed):
    task = Cifar10()
    name, loss, precision = found(task, task.model(), (2, 3, 32, 32), mixed)
    assert (name, precision) == ("resnet", mixed)
    assert float(loss) == pytest.approx(2.302585)


def test_what_a_task_does_with_outputs_belongs_to_the_loss(on_gpu):
    task = SimpleNamespace(loss=lambda outputs, labels: outputs.sum())
    model = nn.Sequential(ResNet20(10), nn.Flatten(0), nn.ReLU())
    assert float(found(task, model, (2, 3, 8, 8))[1]) == 20
    steered = found(Udacity(), Udacity().model(), (2, 3, 64, 64))[1]
    assert float(steered) == pytest.approx((1 / 8 / 0.3) ** 2)


def test_layers_after_training_ended_train_again(on_gpu):
    model = nn.Sequential(ResNet20(10), nn.Dropout(1.0)).eval()
    task = SimpleNamespace(loss=lambda outputs, labels: outputs.sum())
    assert float(found(task, model, (2, 3, 8, 8))[1]) == 0


def test_some_images_have_outputs_of_a_resnet_and_of_what_comes_after_it(on_gpu):
    model = nn.Sequential(ResNet20(10), nn.Dropout(1.0)).train()
    images = torch.zeros(3, 3, 32, 32)
    outputs = faster.fast_outputs(model, flatten(model), images)
    assert torch.equal(outputs, torch.ones(3, 10)), "layers drop nothing when a model is judged"
    assert faster.fast_outputs(model, flatten(model).double(), images.double()) is None
    many = torch.zeros(1).expand(257, 3, 32, 32)
    assert faster.fast_outputs(model, flatten(model), many) is None
    next(model.parameters()).requires_grad_(False)
    frozen = nn.Sequential(*model)
    assert faster.fast_outputs(frozen, flatten(frozen), images) is None


OTHERS = {
    "group normalisation": (ResNet20(10, "group"), (2, 3, 32, 32)),
    "more layers": (nn.Sequential(ResNet20(10), nn.Linear(10, 10)), (2, 3, 32, 32)),
    "something before": (nn.Sequential(nn.Flatten(), ResNet20(10)), (2, 3, 32, 32)),
    "no layers": (nn.Sequential(), (2, 3, 32, 32)),
    "other channels": (ResNet20(10), (2, 1, 32, 32)),
    "one value to normalise": (ResNet20(10), (1, 3, 4, 3)),
    "too large": (ResNet20(10), (2**12, 3, 2**8, 2**7)),
}


@pytest.mark.parametrize(("model", "shape"), OTHERS.values(), ids=OTHERS)
def test_others_are_left_to_autograd(on_gpu, model, shape):
    weights = torch.zeros(3)
    inputs = torch.zeros(1).expand(shape)  # one number in memory
    given = (weights, inputs, torch.zeros(shape[0], dtype=torch.int64), False)
    assert faster.fast_gradient(Cifar10(), model, *given) is None
    assert faster.fast_outputs(model, weights, inputs) is None


def test_other_types_are_left_to_autograd(on_gpu):
    model, inputs = ResNet20(10), torch.zeros(2, 3, 32, 32)
    for weights, images in ((flatten(model).double(), inputs), (flatten(model), inputs.double())):
        assert faster.fast_gradient(Cifar10(), model, weights, images, inputs, False) is None


def test_where_it_does_not_compile_autograd_takes_over_and_says_so_once(on_gpu, monkeypatch):
    calls = []

    def refuse(*_):
        calls.append(1)
        raise ValueError("no such instruction")

    monkeypatch.setattr(faster, "resnet_gradient", refuse)
    monkeypatch.setattr(faster, "_refused", [])
    task = Cifar10()
    with pytest.warns(RuntimeWarning, match=r"do not compile here.*no such instruction"):
        assert found(task, task.model(), (2, 3, 32, 32)) is None
    assert found(task, task.model(), (2, 3, 32, 32)) is None
    assert calls == [1]


def test_without_the_tensor_cores_of_ampere_there_is_none(monkeypatch):
    for capability in ((9, 0), (8, 0), (7, 5)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, its=capability: its)
        found = faster._has_tensor_cores.__wrapped__(torch.device("cuda"))
        assert found == (capability >= (8, 0))


def test_convolutions_are_where_the_flat_vector_has_them():
    begin, places = 0, {}
    for name, shape in layout(ResNet20(10)).items():
        places[name], begin = (begin, shape), begin + torch.Size(shape).numel()
    norms = [place for name, (place, _) in places.items() if name.endswith("norm.weight")]
    statistics = [place for name, (place, _) in places.items() if name.endswith("running_mean")]
    convolutions = [place for place in places.values() if len(place[1]) == 4]
    ours = resnet_gradient._CONVOLUTIONS
    assert [(one.weight, (one.after, one.before, 3, 3)) for one in ours] == convolutions
    assert [one.norm for one in ours] == norms
    assert places["last.weight"][0] == resnet_gradient._LAST
    assert begin - resnet_gradient._STATISTICS == statistics[0]
