from pathlib import Path

import pytest
import torch

from secureafl import from_mapping
from secureafl.runtime import records
from secureafl.runtime.records import describe_session


def test_session_says_in_which_precision_layers_compute():
    """On a CPU all is float32, whatever is asked for."""
    asked = from_mapping({"training": {"precision": "bfloat16"}})
    assert describe_session(asked, torch.device("cpu"), 0)["precision"] == "float32"


def test_commit_of_code_without_its_repository_is_what_the_environment_says(monkeypatch, tmp_path):
    copy = tmp_path / "a/b/src/secureafl/runtime/records.py"
    monkeypatch.setattr(records, "__file__", str(copy))
    assert records._commit() is None
    monkeypatch.setenv("SECUREAFL_COMMIT", "31b4460")
    assert records._commit() == "31b4460"
    monkeypatch.setenv("SECUREAFL_COMMIT", "")
    assert records._commit() is None


@pytest.mark.skipif(not Path(__file__).parents[2].joinpath(".git").exists(), reason="no checkout")
def test_commit_of_a_checkout_is_its_own(monkeypatch):
    monkeypatch.setenv("SECUREAFL_COMMIT", "another")
    assert records._commit() != "another"
