"""What tests of this folder share: run folders written by hand, and short runs of `fit`."""

import pytest
from report.run_folders import make_run as make_run

from secureafl.library.fitting import fit


@pytest.fixture
def short(tmp_path):
    def run(model, data, *more, **changes):
        few = {"rounds": 2, "clients": 3, "evaluation": {"late": 1}, "threads": 1, "device": "cpu"}
        return fit(model, data, *more, out=tmp_path / "run", **few | changes)

    return run
