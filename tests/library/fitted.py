"""Samples in several forms and a small module, for the tests of `secureafl.fit`."""

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset

RNG = np.random.default_rng(3)
X = RNG.normal(size=(60, 4))
Y = (X.sum(axis=1) > 0).astype(int)
TOKENS = RNG.integers(0, 9, (60, 4))
FRAME = pd.DataFrame(X, columns=list("abcd")).assign(label=Y)


def linear(inputs=4, outputs=2):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


class Pairs(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, number):
        return X[number].astype(np.float32), Y[number]
