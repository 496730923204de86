# SPDX-License-Identifier: Apache-2.0
"""What a Python call costs before and after the computation: the smallest problem, a ready batch.

    python bench/python_overhead.py > bench/results/python-overhead.json

Microseconds, the least of many rounds, so that other programs on the machine count little. One
sequence of one token, one head of 16: what is computed is next to nothing. ``beyond_allocation``
is what a call takes beyond the allocation of its output.
"""

import json
import platform
import timeit

import packattn
import torch
from packattn import _native

torch.set_num_threads(1)
q = torch.randn(1, 1, 16)
out = torch.empty_like(q)
padded = q[None].contiguous()
array = q.numpy()
batch = packattn.PackedBatch.from_cu_seqlens([0, 1])
ends = torch.tensor([0, 1], dtype=torch.int32)
native = (None, q, q, q, out, batch._handle, False)
kda = (padded, padded, padded, -padded.abs(), torch.rand(1, 1, 1), batch)
# Not updated in place: after 20 000 calls its changes are subnormal numbers, which cost 80 us.
kda_options = {"initial_state": torch.zeros(1, 1, 16, 16), "state_layout": "v_first"}
sdpa = torch.nn.functional.scaled_dot_product_attention

CASES = {
    "allocation of out (torch.empty_like)": lambda: torch.empty_like(q),
    "native call alone": lambda: _native.attention(*native),
    "attention, ready batch, out given": lambda: packattn.attention(q, q, q, batch, out=out),
    "attention, ready batch": lambda: packattn.attention(q, q, q, batch),
    "attention, ready batch, causal": lambda: packattn.attention(q, q, q, batch, causal=True),
    "attention, cu_seqlens": lambda: packattn.attention(q, q, q, ends),
    "attention, NumPy arrays": lambda: packattn.attention(array, array, array, batch),
    "kda_recurrent, ready batch": lambda: packattn.kda_recurrent(*kda, **kda_options),
    "torch scaled_dot_product_attention": lambda: sdpa(padded, padded, padded),
}

with torch.no_grad():
    times = {
        name: round(min(timeit.repeat(case, number=50, repeat=300)) / 50 * 1e6, 2)
        for name, case in CASES.items()
    }
beyond = times["attention, ready batch"] - times["allocation of out (torch.empty_like)"]
print(
    json.dumps(
        {
            "problem": "fp32, one sequence of 1 token, 1 head of 16",
            "unit": "us",
            "times": times,
            "beyond_allocation": round(beyond, 2),
            "packattn": packattn.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        indent=2,
    )
)
