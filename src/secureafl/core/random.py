"""Named random generators from one seed. Nothing in the package seeds globally.

A generator belongs to (seed, name, index), so drawing more in one place never shifts another, and
a resumed run needs no generator state: the one of round t is made anew.
"""

import hashlib

import numpy as np
import torch


def _key(seed: int, name: str, index: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # torch seeds are signed


def numpy_generator(seed: int, name: str) -> np.random.Generator:
    """The NumPy generator called `name`."""
    return np.random.Generator(np.random.Philox(_key(seed, name, 0)))


def torch_generator(seed: int, name: str, index: int, device: torch.device) -> torch.Generator:
    """The torch generator called `name`, the `index`-th of them."""
    return torch.Generator(device).manual_seed(_key(seed, name, index))
