import pytest
import torch

from secureafl.core.flat_model import call_flat, flatten, layout
from secureafl.tasks import Cifar10, Cifar100, FashionMnist, TinyImagenet, Udacity
from secureafl.tasks.models import ResNet20, paper_cnn

STATISTICS = 2 * (7 * 16 + 6 * 32 + 6 * 64)  # a mean and a variance per normalised channel


@pytest.mark.parametrize(("size", "count"), [("140k", 139_960), ("500k", 500_606), ("1m", 999_962)])
def test_cnns_have_the_sizes_of_the_papers_table(size, count):
    model = FashionMnist(cnn=size).model()
    assert flatten(model).numel() == count
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_resnet_has_the_parameters_of_he_et_al():
    # 19 convolutions, their scales and shifts, and the last layer.
    widths = [16] * 3 + [32] * 3 + [64] * 3
    expected = 3 * 16 * 9 + 2 * 16 + 64 * 10 + 10
    for before, after in zip([16, *widths], widths, strict=False):
        expected += 9 * before * after + 9 * after * after + 4 * after
    assert sum(p.numel() for p in ResNet20(10).parameters()) == expected == 269_722
    assert flatten(ResNet20(10)).numel() == expected + STATISTICS
    assert flatten(ResNet20(10, "group")).numel() == expected


@pytest.mark.parametrize(
    ("task", "side", "shape"),
    [
        (Cifar10(), 32, (2, 10)),
        (Cifar100(norm="group"), 32, (2, 100)),
        (TinyImagenet(), 64, (2, 200)),
        (Udacity(), 64, (2,)),
        (Udacity(norm="group"), 64, (2,)),
    ],
    ids=lambda value: str(value),
)
def test_resnet_takes_images_of_both_sizes(task, side, shape):
    model = task.model()
    images = torch.randn(2, 3, side, side)
    outputs = call_flat(model, flatten(model), images)
    assert outputs.shape == shape
    assert torch.isfinite(outputs).all()


def test_shortcut_of_a_stage_keeps_every_second_pixel_and_adds_zeros():
    block = ResNet20(10).blocks[3]
    images = torch.randn(2, 16, 6, 6)
    short = block._shortcut(images)
    assert short.shape == (2, 32, 3, 3)
    assert torch.equal(short[:, 8:24], images[:, :, ::2, ::2])
    assert not short[:, :8].any()
    assert not short[:, 24:].any()


def test_layout_has_parameters_first_and_statistics_last():
    model = ResNet20(10)
    names = list(layout(model))
    count = len(list(model.parameters()))
    assert names[:count] == [name for name, _ in model.named_parameters()]
    assert all("running_" in name for name in names[count:])
    assert len(names) == count + 2 * 19
    assert layout(paper_cnn()) == {n: tuple(p.shape) for n, p in paper_cnn().named_parameters()}


def test_steering_is_learned_with_the_papers_rate():
    torch.manual_seed(0)
    task, images = Udacity(), torch.randn(16, 3, 8, 8)
    angles = images[:, 0].mean(dim=(1, 2)) * 2  # of a deviation of 0.25
    model = task.model()
    descent = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        loss = task.loss(model(images), angles)
        losses.append(loss.item())
        descent.zero_grad()
        loss.backward()
        descent.step()
    assert max(losses) < 2 * losses[0]
    assert losses[-1] < 0.5 * losses[0]
