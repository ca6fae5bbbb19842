"""Clients with a task and samples of their own over a real network, and what they are told."""

import numpy as np
import pytest
from deployment.network import Network

TASK = '''
from dataclasses import dataclass
import numpy as np
import torch
from secureafl import Classification, from_tensors


@dataclass(frozen=True)
class Points(Classification):
    """Which side of a line a point is on."""

    def load(self):
        return from_tensors(points(0), points(1), "points")

    def client_samples(self, folder):
        return np.load(folder / "x.npy"), np.load(folder / "y.npy")

    def model(self):
        return torch.nn.Linear(2, 2)


def points(seed):
    inputs = torch.randn(200, 2, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs.sum(1) > 0).long()
'''


def samples(seed):
    inputs = np.random.default_rng(seed).normal(size=(50, 2)).astype(np.float32)
    return inputs, (inputs.sum(1) > 0).astype(np.int64)


def prepare(folder):
    """The task's file beside the experiment, two clients' samples, and a task that differs."""
    (folder / "points_task.py").write_text(TASK)
    inputs, labels = samples(2)
    np.savez(folder / "one.npz", inputs=inputs, labels=labels)
    inputs, labels = samples(3)
    (folder / "two").mkdir()
    np.save(folder / "two" / "x.npy", inputs)
    np.save(folder / "two" / "y.npy", labels)
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "points_task.py").write_text(TASK + "# of another day\n")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_own_task_and_own_samples_train_and_each_client_is_told_how_it_stands(tmp_path):
    prepare(tmp_path)
    with Network(tmp_path, rounds=8, clients=3, task="points_task:Points") as net:
        net.serve()
        net.make_keys("ada", "ben", "cleo", "dan")
        ada = net.join("ada", "--data", "one.npz")
        ben = net.join("ben", "--data", "two")
        net.join("cleo", "--data", tmp_path / "two", where="elsewhere")
        net.wait(lambda: len(net.told("here")) == 3, 120, "three clients")
        net.join("dan", "--data", "one.npz")
        said = {name: lambda name=name: net.log(name).read_text() for name in net.processes}
        net.wait(lambda: "points_task.py differs from the server's" in said["cleo"](), 120, "word")
        net.wait(lambda: "all slots of the run are taken" in said["dan"](), 120, "word of slots")
        net.wait_finished(200)
        assert ada.wait(60) == 0
        assert ben.wait(60) == 0
        for name in ("ada", "ben"):
            assert "taking part as client" in said[name]()
            assert "uploads of this client: " in said[name]()
            assert "the run is finished after 8 rounds" in said[name]()
        assert "accepted" not in said["ada"]()  # that is told of twenty uploads together
