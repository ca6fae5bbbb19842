"""The trained model of a run: what its file holds, and a module ready for use."""

import sys

import pytest
import safetensors.torch
import torch
from simulation.small import tiny
from torch import nn

import secureafl
from secureafl.core.errors import ConfigError, DataError, RunError
from secureafl.core.flat_model import call_flat, flatten, named_state
from secureafl.runs.layout import MODEL
from secureafl.simulation.run import start_run


def finished(path, **changes):
    recording = start_run(tiny(**changes), path, 60)
    list(recording)
    return recording.simulation


@pytest.mark.parametrize("task", ["TinyTask", "TinyNormed", "TinyRegression"])
def test_loaded_model_says_of_raw_inputs_what_the_run_said_of_its_test_set(tmp_path, task):
    settings = {"task": f"reference.tiny_task:{task}", "attack": "sign_flip", "partition": "iid"}
    run = finished(tmp_path / "run", **settings)
    model = secureafl.load_model(tmp_path / "run")
    data = run.experiment.task.load()
    with torch.no_grad():
        outputs = model(data.test_inputs)
        assert torch.equal(model(data.test_inputs.numpy()), outputs)
    assert not model.training
    assert torch.equal(outputs, run.clients.test_outputs(run.weights))
    result = secureafl.RunResult(tmp_path / "run")
    assert run.experiment.task.metrics(outputs, data.test_labels) == result.metrics


def test_file_is_a_state_dict_that_the_network_takes(tmp_path):
    run = finished(tmp_path / "run", task="reference.tiny_task:TinyNormed")
    tensors = safetensors.torch.load_file(tmp_path / "run" / MODEL)
    network = run.experiment.task.model()
    network.load_state_dict(tensors)
    statistics = [name for name in tensors if "running" in name]
    assert len(statistics) == 2
    assert torch.equal(flatten(network), run.weights)
    assert tensors["1.running_var"].ne(1).all()


def test_variance_that_a_poisoned_step_made_negative_is_stored_as_it_is_used():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    weights = flatten(model)
    weights[-2:] = -4.0  # of two variances
    inputs = torch.randn(5, 2)
    expected = call_flat(model, weights, inputs)
    model.load_state_dict(named_state(model, weights))
    assert torch.equal(model.eval()(inputs), expected)


def test_tensor_that_two_layers_share_is_stored_under_both_names():
    first = nn.Linear(3, 3)
    model = nn.Sequential(first, nn.ReLU(), first)
    weights = torch.arange(12.0)
    state = named_state(model, weights)
    assert list(state) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert torch.equal(state["0.weight"], state["2.weight"])
    assert torch.equal(state["2.bias"], weights[9:])


def test_inputs_of_another_kind_than_in_training_are_refused_in_one_line():
    def model(dtype):
        return secureafl.TrainedModel(nn.Identity(), dtype, torch.zeros(1), torch.ones(1))

    for dtype, given, said in (
        (torch.uint8, torch.rand(2, 1), "give raw bytes"),
        (torch.int64, torch.rand(2, 1), "give whole numbers"),
        (torch.float32, torch.rand(2, 1) + 1j, "in training they were torch.float32"),
    ):
        with pytest.raises(DataError, match=said) as caught:
            model(dtype)(given)
        assert "\n" not in str(caught.value)
    assert model(torch.float32)(torch.ones(2, 1, dtype=torch.float64)).dtype == torch.float32
    assert model(torch.int64)(torch.ones(2, 1, dtype=torch.int16)).dtype == torch.int64


def test_folder_without_the_model_or_with_another_is_refused_in_one_line(tmp_path, make_run):
    with pytest.raises(RunError, match="not a run folder"):
        secureafl.load_model(tmp_path)
    with pytest.raises(RunError, match="unfinished, so it has no model yet"):
        secureafl.load_model(make_run("one", finished=False))
    with pytest.raises(RunError, match="no model, or of an earlier version"):
        secureafl.load_model(make_run("two"))
    finished(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"'0.bias' is \(3,\) in the network and absent"):
        secureafl.load_model(tmp_path / "run", nn.Sequential(nn.Linear(36, 3)))


def test_model_with_one_bit_changed_is_refused(tmp_path):
    finished(tmp_path / "run")
    file = tmp_path / "run" / MODEL
    stored = bytearray(file.read_bytes())
    stored[-1] ^= 1  # of the last weight: a file that can be read
    file.write_bytes(stored)
    with pytest.raises(RunError, match=MODEL):
        secureafl.load_model(tmp_path / "run")


def test_exported_program_takes_raw_inputs_of_any_number(tmp_path):
    run = finished(tmp_path / "run", task="reference.tiny_task:TinyNormed")
    path = secureafl.export_model(tmp_path / "run", tmp_path / "model.pt2")
    inputs = run.experiment.task.load().test_inputs
    program, model = torch.export.load(path).module(), secureafl.load_model(tmp_path / "run")
    for count in (1, 7):
        torch.testing.assert_close(program(inputs[:count]), model(inputs[:count]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter's own
def test_onnx_says_what_the_model_says(tmp_path):
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    run = finished(tmp_path / "run")
    path = secureafl.export_model(tmp_path / "run", tmp_path / "model.onnx")
    inputs = run.experiment.task.load().test_inputs
    (found,) = reference.ReferenceEvaluator(str(path)).run(None, {"inputs": inputs.numpy()})
    expected = secureafl.load_model(tmp_path / "run")(inputs).detach()
    torch.testing.assert_close(torch.from_numpy(found), expected)


def test_onnx_without_its_package_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    finished(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"pip install 'secureafl\[onnx\]'"):
        secureafl.export_model(tmp_path / "run", tmp_path / "model.onnx")
