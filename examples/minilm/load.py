# SPDX-License-Identifier: Apache-2.0
"""Read the captured batch with NumPy alone."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

FILE = Path(__file__).resolve().parent / "minilm_layer3.safetensors"
DTYPES = {"F32": "<f4", "I32": "<i4"}


class Captured(NamedTuple):
    """q, k, v, out_torch fp32 [T, 12, 32]; cu_seqlens int32 [N + 1]; metadata of strings."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    out_torch: np.ndarray
    cu_seqlens: np.ndarray
    metadata: dict


def read_safetensors(path):
    """Tensors and metadata. The file is a JSON header, its length (u64) before it, and raw data."""
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        flat = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def load():
    """The captured batch."""
    tensors, metadata = read_safetensors(FILE)
    return Captured(**tensors, metadata=metadata)
