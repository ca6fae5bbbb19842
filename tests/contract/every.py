"""Every defence of the tables, as parameters of tests."""

import pytest
import torch
from contract.cases import DEFENSE_CASES, SLOW_CASES
from stepping import always_compiled, always_plain

from secureafl.defenses import SecureAfl


def marks(name):
    return pytest.mark.slow if name in SLOW_CASES else ()


for_every_defense = pytest.mark.parametrize(
    "defense", [pytest.param(d, id=name, marks=marks(name)) for name, d in DEFENSE_CASES.items()]
)
KERNELS = {"plain": always_plain, "compiled": always_compiled}
# Only SecureAFL has operations of more than one version.
with_every_kernel = pytest.mark.parametrize(
    ("defense", "kernels"),
    [
        pytest.param(defense, kernels, id=f"{name}-{version}", marks=marks(name))
        for name, defense in DEFENSE_CASES.items()
        for version, kernels in KERNELS.items()
        if version == "plain" or isinstance(defense, SecureAfl)
    ],
)
for_both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
