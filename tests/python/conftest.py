# SPDX-License-Identifier: Apache-2.0
"""What every Python test shares: random inputs by seed, and both kinds of tensors."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

try:
    import torch
except ImportError:
    torch = None


class Kind:
    """Makes tensors of one library from NumPy arrays, and arrays from its tensors."""

    def __init__(self, name):
        self.name = name

    def __call__(self, array):
        return torch.from_numpy(array) if self.name == "torch" else array

    def type(self):
        return torch.Tensor if self.name == "torch" else np.ndarray


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def kind(request):
    return Kind(request.param)


@pytest.fixture
def rng():
    return np.random.default_rng(1234)


def pytest_configure(config):
    config.addinivalue_line("markers", "torch: needs torch")


def pytest_collection_modifyitems(items):
    if torch is not None:
        return
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
