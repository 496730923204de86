# SPDX-License-Identifier: Apache-2.0
"""What a Python call costs before and after the computation: a tiny problem, a ready batch.

    python bench/python_overhead.py > bench/results/python-overhead.json

Microseconds, the least of several rounds, so that other programs on the machine count little.
"""

import json
import platform
import timeit

import packattn
import torch
from packattn import _native

torch.set_num_threads(1)
q = torch.randn(4, 2, 16)
out = torch.empty_like(q)
padded = q.transpose(0, 1)[None].contiguous()
array = q.numpy()
batch = packattn.PackedBatch.from_cu_seqlens([0, 4])
ends = torch.tensor([0, 4], dtype=torch.int32)
native = (None, q, q, q, out, None, None, None, False, 0, None, None, None, 0.0, None, 0, 0, None,
          None, batch._handle)  # fmt: skip

CASES = {
    "allocation of out (torch.empty_like)": lambda: torch.empty_like(q),
    "native call alone": lambda: _native.attention(*native),
    "attention, ready batch, out given": lambda: packattn.attention(q, q, q, batch, out=out),
    "attention, ready batch": lambda: packattn.attention(q, q, q, batch),
    "attention, cu_seqlens": lambda: packattn.attention(q, q, q, ends),
    "attention, NumPy arrays": lambda: packattn.attention(array, array, array, batch),
    "torch scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(
        padded, padded, padded
    ),
}

with torch.no_grad():
    times = {
        name: round(min(timeit.repeat(case, number=500, repeat=15)) / 500 * 1e6, 2)
        for name, case in CASES.items()
    }
print(
    json.dumps(
        {
            "problem": "fp32, one sequence of 4 tokens, 2 heads of 16",
            "unit": "us",
            "times": times,
            "packattn": packattn.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        indent=2,
    )
)
