"""Settings shared by all tests.

`HYPOTHESIS_PROFILE=thorough` draws new and many more examples than the suite's fixed ones.
"""

import os

# Two test processes share few cores; threads of what they start would wait for each other, busily.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import shapes

shapes.install()  # before anything imports the package

import pytest  # noqa: E402
import torch  # noqa: E402
from command import Cli  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

torch.set_num_threads(1)

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "suite", max_examples=30, deadline=None, derandomize=True, suppress_health_check=_SLOW
)
settings.register_profile(
    "thorough",
    max_examples=1000,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_runtest_setup():
    shapes.begin_test()
    torch.manual_seed(0)  # what a test draws does not depend on the tests before it


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path)
