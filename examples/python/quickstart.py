# SPDX-License-Identifier: Apache-2.0
"""Packed attention in one minute: three sequences, a refused call, and KDA with its states."""

import numpy as np
import packattn

rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape, dtype=np.float32)


# Three sequences of 5, 7 and 3 tokens lie end to end. The boundaries are checked once, here.
batch = packattn.PackedBatch.from_cu_seqlens([0, 5, 12, 15])

# Eight query heads share two key heads.
q, k, v = normal(15, 8, 64), normal(15, 2, 64), normal(15, 2, 64)
out, lse = packattn.attention(q, k, v, batch, causal=True, return_lse=True)
print("attention:", out.shape, "lse:", lse.shape)

# The second sequence alone gives the same bits as in the batch.
one = packattn.PackedBatch.from_lengths([7])
alone = packattn.attention(q[5:12], k[5:12], v[5:12], one, causal=True)
assert np.array_equal(out[5:12], alone)

# A wrong call is refused before anything runs, with every fault that was found.
try:
    packattn.attention(q, k.astype(np.float16), v[:14], batch)
except packattn.Error as error:
    print("\n" + str(error))
    assert len(error.faults) >= 2
else:
    raise SystemExit("a call with two mistakes must not run")

# Kimi Delta Attention: batch dimension 1, one log decay per key channel, one state a sequence.
q, k, v = normal(1, 15, 2, 64), normal(1, 15, 2, 64), normal(1, 15, 2, 128)
g, beta = -np.abs(normal(1, 15, 2, 64)), np.full((1, 15, 2), 0.5, np.float32)
out, states = packattn.kda_recurrent(
    q, k, v, g, beta, batch, l2norm=True, output_final_state=True, state_layout="k_first"
)
print("\nkda:", out.shape, "states:", states.shape)
