# SPDX-License-Identifier: Apache-2.0
"""Writes and reads safetensors files with the standard library alone."""

import json
import math
import struct
from pathlib import Path

CODES = {"F32": "f", "I32": "i", "I64": "q"}


def floats(*shape, step=0.37):
    """A tensor of smooth values between -1 and 1."""
    return ("F32", list(shape), [math.sin(step * i) for i in range(math.prod(shape))])


def integers(*values, dtype="I32"):
    return (dtype, [len(values)], list(values))


def save(path, tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(packed)],
        }
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    """{name: (shape, values)}, metadata"""
    content = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        code = CODES[entry["dtype"]]
        count = (end - begin) // struct.calcsize(code)
        values = struct.unpack_from(f"<{count}{code}", content, 8 + length + begin)
        tensors[name] = (entry["shape"], list(values))
    return tensors, metadata
