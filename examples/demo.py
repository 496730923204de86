# SPDX-License-Identifier: Apache-2.0
"""What packattn does, shown on a real batch and on the classic mistakes. Needs NumPy only.

Everything it prints it also checks; the exit status is 1 if anything is not as it should be.
"""

import importlib.util
import itertools
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import packattn
from console import accepted, bar, call, expect, failures, refused, say, title
from joint import guidance_pair
from minilm import load as minilm

# ---- small helpers ------------------------------------------------------------------------------


def ends(lengths):
    """Lengths to cu_seqlens: 0, then the running ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def to_numpy(x):
    """NumPy has no bfloat16, so torch tensors come back as fp32."""
    return x.float().numpy() if hasattr(x, "float") else x


def relative_error(got, want):
    """Norm of the difference over the norm of `want`, in fp64."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def best_ms(call, repeats=7):
    """The fastest of several runs, in milliseconds, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def attention_fp64(q, k, v, cu_q, cu_k):
    """Softmax attention of each sequence, straight from its definition."""
    out = np.empty((*q.shape[:2], v.shape[2]))
    for (a, b), (c, d) in zip(itertools.pairwise(cu_q), itertools.pairwise(cu_k), strict=True):
        qn, kn, vn = (x.astype(np.float64).swapaxes(0, 1) for x in (q[a:b], k[c:d], v[c:d]))
        x = qn @ kn.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        p = np.exp(x - x.max(axis=-1, keepdims=True))
        out[a:b] = (p / p.sum(axis=-1, keepdims=True) @ vn).swapaxes(0, 1)
    return out


def expect_attention(scope, limit):
    """`out` is what the definition gives for q, k, v, cu_q, cu_k."""
    names = ("q", "k", "v", "cu_q", "cu_k", "out")
    *inputs, out = (to_numpy(scope[name]) for name in names)
    error = relative_error(out, attention_fp64(*inputs))
    expect(error <= limit, f"accepted, and right: {error:.1e} from fp64")


# ---- the demonstration --------------------------------------------------------------------------


def real_batch():
    data = minilm.load()
    q, k, v, cu = data.q, data.k, data.v, data.cu_seqlens
    lengths = np.diff(cu)
    longest, count = int(lengths.max()), len(lengths)

    title("1. A real batch, against PyTorch")
    say(f"{data.metadata['model']}, attention layer {data.metadata['layer']}")
    say(f"{count} sentences, {cu[-1]} tokens, {q.shape[1]} heads of {q.shape[2]}, fp32\n")
    say("tokens     sentences")
    for low in (1, 8, 16, 32, 64, 128):
        n = np.count_nonzero((lengths >= low) & (lengths < max(2 * low, 8)))
        say(f"{low:3} – {max(2 * low, 8) - 1:3}  {n:3} {bar(n, count)}")

    batch = packattn.PackedBatch.from_cu_seqlens(cu)
    out = packattn.attention(q, k, v, batch)
    ran = next(verdict for verdict in packattn.why(q, k, v, batch) if verdict)
    exact = attention_fp64(q, k, v, cu, cu)
    ours, theirs = relative_error(out, exact), relative_error(data.out_torch, exact)
    say(f"\ncomputed by {ran.implementation}")
    say(f"against PyTorch {data.metadata['torch']}, which ran every sentence alone:")
    say(
        f"  largest difference {np.abs(out - data.out_torch).max():.1e} in values up to "
        f"{np.abs(data.out_torch).max():.1f}; relative {relative_error(out, data.out_torch):.1e}"
    )
    say(f"against fp64: packattn {ours:.1e}, PyTorch {theirs:.1e}")
    expect(relative_error(out, data.out_torch) <= 2e-6, "packattn and PyTorch agree to 2e-6")
    expect(ours <= 2e-6, "packattn is within 2e-6 of fp64")

    a, b = cu[3:5].tolist()
    alone = packattn.attention(q[a:b], k[a:b], v[a:b], packattn.PackedBatch.from_lengths([b - a]))
    expect(np.array_equal(alone, out[a:b]), "a sentence alone gives the bits it has in the batch")

    packed_scores, padded_scores = np.sum(lengths.astype(np.int64) ** 2), count * longest**2
    padded = [np.zeros((count * longest, *x.shape[1:]), x.dtype) for x in (q, k, v)]
    padded_batch = packattn.PackedBatch.from_lengths([longest] * count)
    packed_ms = best_ms(lambda: packattn.attention(q, k, v, batch))
    padded_ms = best_ms(lambda: packattn.attention(*padded, padded_batch))
    say("\nwhat padding every sentence to the longest would cost, in scores per head:")
    say(f"  packed {packed_scores:9,} {bar(packed_scores, padded_scores)}  {packed_ms:.2f} ms")
    say(f"  padded {padded_scores:9,} {bar(padded_scores, padded_scores)}  {padded_ms:.2f} ms")
    say(
        f"  {padded_scores / packed_scores:.1f} times the scores, "
        f"{count * longest / cu[-1]:.1f} times the rows"
    )


def kda_stepping():
    lengths = [1, 17, 5, 64, 0, 40]
    heads, value_heads, key_dim, value_dim = 2, 4, 64, 128
    rng = np.random.default_rng(1)

    def normal(*shape):
        return rng.standard_normal((1, sum(lengths), *shape), dtype=np.float32)

    q, k = normal(heads, key_dim), normal(heads, key_dim)
    v, g = normal(value_heads, value_dim), -0.1 * np.abs(normal(value_heads, key_dim))
    beta = normal(value_heads)
    options = dict(
        beta_kind="sigmoid", l2norm=True, state_layout="k_first", output_final_state=True
    )

    title("2. Kimi Delta Attention: packed, against token by token")
    say(
        f"sequences of {lengths} tokens; {heads} key heads of {key_dim}, "
        f"{value_heads} value heads of {value_dim}\n"
    )
    batch = packattn.PackedBatch.from_lengths(lengths)
    call = (q, k, v, g, beta, batch)
    out, states = packattn.kda_recurrent(*call, **options)
    ran = next(v for v in packattn.why_kda(*call, op="kda_recurrent", **options) if v)

    stepped, stepped_states = np.zeros_like(out), np.zeros_like(states)
    one = packattn.PackedBatch.from_lengths([1])
    cu = ends(lengths)
    for n, (a, b) in enumerate(itertools.pairwise(cu)):
        state = stepped_states[n : n + 1]
        for t in range(a, b):
            token = [x[:, t : t + 1] for x in (q, k, v, g, beta)]
            stepped[:, t : t + 1], state = packattn.kda_recurrent(
                *token, one, initial_state=state, **options
            )
        stepped_states[n] = state[0]
    say(f"computed by {ran.implementation}, at once and in {cu[-1]} calls of one token")
    if ran.implementation.startswith("ref/"):  # keeps the state in fp64 until the end of a call
        error = max(relative_error(stepped, out), relative_error(stepped_states, states))
        expect(error <= 5e-6, f"outputs and states agree: {error:.1e}")
    else:
        same = np.array_equal(out, stepped) and np.array_equal(states, stepped_states)
        expect(same, f"{cu[-1]} outputs and {len(lengths)} final states are equal, bit for bit")
    expect(not states[lengths.index(0)].any(), "the state of the sequence without tokens stays 0")


# Libraries that have bfloat16: k in fp16 beside q and v in bf16, and the remedy.
BESIDE_BF16 = {
    "torch": (
        """
        import torch
        q, v = torch.from_numpy(q).bfloat16(), torch.from_numpy(v).bfloat16()
        k = torch.from_numpy(k).half()
        out = packattn.attention(q, k, v, batch)
        """,
        """
        k = k.to(q.dtype)
        out = packattn.attention(q, k, v, batch)
        """,
    ),
    "ml_dtypes": (
        """
        import ml_dtypes
        q, v = q.astype(ml_dtypes.bfloat16), v.astype(ml_dtypes.bfloat16)
        k = k.astype(np.float16)
        out = packattn.attention(q, k, v, batch)
        """,
        """
        k = k.astype(q.dtype)
        out = packattn.attention(q, k, v, batch)
        """,
    ),
}


def three_mistakes():
    rng = np.random.default_rng(2)

    def normal(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    title("3. Three classic mistakes")
    say("a) one k length lost: the sequences are (5, 9), (7, 12), (3, 4)\n")
    scope = dict(packattn=packattn, np=np, ends=ends)
    scope.update(q=normal(15, 4, 64), k=normal(25, 4, 64), v=normal(25, 4, 64))
    scope.update(cu_q=ends([5, 7, 3]))
    refused(
        """
        cu_k = ends([9, 12])
        batch = packattn.PackedBatch.from_cu_seqlens(cu_q, cu_k)
        """,
        scope,
        codes=["PA2009"],
    )
    say("\nthe remedy, executed:")
    fixed = """
        cu_k = ends([9, 12, 4])
        batch = packattn.PackedBatch.from_cu_seqlens(cu_q, cu_k)
        out = packattn.attention(q, k, v, batch)
        """
    if accepted(fixed, scope):
        expect_attention(scope, 2e-6)

    say("\n\nb) k in half precision beside q in single precision\n")
    refused(
        """
        k = k.astype(np.float16)
        out = packattn.attention(q, k, v, batch)
        """,
        scope,
        codes=["PA1004"],
    )
    say("\nthe remedy, executed:")
    fixed = """
        k = k.astype(q.dtype)
        out = packattn.attention(q, k, v, batch)
        """
    if accepted(fixed, scope):
        expect_attention(scope, 2e-6)

    library = next((name for name in BESIDE_BF16 if importlib.util.find_spec(name)), None)
    if library:
        wrong, fixed = BESIDE_BF16[library]
        say(f"\nand beside q in bfloat16, with {library}:\n")
        refused(wrong, scope, codes=["PA1004"])
        say("\nthe remedy, executed:")
        if accepted(fixed, scope):
            expect_attention(scope, 2.5e-3)

    say("\n\nc) a padded batch of 2 beside cu_seqlens: rows of 3 and 5 tokens, padded to 5\n")
    scope = dict(packattn=packattn, np=np, ends=ends)
    scope.update(q=normal(2, 5, 4, 64), k=normal(2, 5, 4, 64), v=normal(2, 5, 4, 128))
    scope.update(g=-np.abs(normal(2, 5, 4, 64)), beta=np.full((2, 5, 4), 0.5, np.float32))
    refused(
        """
        batch = packattn.PackedBatch.from_cu_seqlens(ends([3, 5]))
        out = packattn.kda_recurrent(q, k, v, g, beta, batch)
        """,
        scope,
        codes=["PA6001"] * 5,
    )
    say("\nA fix that can be found for this, q.reshape(1, -1, q.shape[-1]), does not work. It")
    say("merges heads into tokens: 2 x 5 tokens of 4 heads become 40 tokens without heads.\n")
    refused(
        """
        flat = [x.reshape(1, -1, x.shape[-1]) for x in (q, k, v, g, beta)]
        out = packattn.kda_recurrent(*flat, batch)
        """,
        scope,
        codes=["PA1002"] * 3,
    )
    say("\nEven when it keeps the heads, it keeps the padding too: 10 rows for 8 tokens.\n")
    refused(
        """
        flat = [x.reshape(1, -1, *x.shape[2:]) for x in (q, k, v, g, beta)]
        out = packattn.kda_recurrent(*flat, batch)
        """,
        scope,
        codes=["PA2008"],
    )
    say("\nthe remedy, executed:")
    fixed = """
        packed = [packattn.pack(x, batch)[None] for x in (q, k, v, g, beta)]
        out = packattn.kda_recurrent(*packed, batch)
        """
    if accepted(fixed, scope):
        row = [scope[name][:1, :3] for name in ("q", "k", "v", "g", "beta")]
        alone = packattn.kda_recurrent(*row)
        expect(np.array_equal(scope["out"][:, :3], alone), "row 0 alone gives the same bits")


def three_faults():
    title("4. One call, three faults")
    scope = dict(packattn=packattn, np=np, ends=ends)
    refused(
        """
        q = np.zeros((15, 4, 64), np.float32)
        k = np.zeros((21, 4, 64), np.float16)
        v = np.zeros((20, 4, 64), np.float32)
        spec = packattn.BatchSpec(cu_seqlens_q=ends([5, 7, 3]), cu_seqlens_k=ends([9, 12]))
        out = packattn.attention(q, k, v, spec)
        """,
        scope,
        codes=["PA2009", "PA1004", "PA1006"],
    )


def empty_prompt():
    title("5. A guidance pair with an empty prompt")
    for name, make in (
        ("joint attention", guidance_pair.joint_pair),
        ("cross-attention", guidance_pair.cross_pair),
    ):
        pair = make()
        batch = packattn.PackedBatch.from_cu_seqlens(pair.cu_seqlens_q, pair.cu_seqlens_k)
        start = time.perf_counter()
        out, lse = packattn.attention(pair.q, pair.k, pair.v, batch, return_lse=True)
        seconds = time.perf_counter() - start
        queries, keys = (np.diff(cu).tolist() for cu in pair[3:])
        say(
            f"{name}: {pair.q.shape[1]} heads of {pair.q.shape[2]}, "
            f"queries {queries}, keys {keys}, {1e3 * seconds:.0f} ms"
        )
        end = pair.cu_seqlens_q[1]
        if keys[1]:
            alone = packattn.PackedBatch.from_lengths([queries[1]])
            same = packattn.attention(pair.q[end:], pair.k[end:], pair.v[end:], alone)
            expect(np.array_equal(out[end:], same), "image without prompt: the bits it has alone")
        else:
            expect(not out[end:].any(), f"{queries[1]} rows without a key: 0")
            expect(np.isneginf(lse[:, end:]).all(), "their lse: -inf")
            expect(np.isfinite(lse[:, :end]).all() and out[:end].any(), "the others: as usual")


def command_line():
    """The first section's batch through the packattn command, if there is one."""
    command = os.environ.get("PACKATTN_CLI") or shutil.which("packattn")
    if not command:
        return
    title("6. The same from the command line")
    data = minilm.load()
    batch = packattn.PackedBatch.from_cu_seqlens(data.cu_seqlens)
    out, lse = packattn.attention(data.q, data.k, data.v, batch, return_lse=True)
    with tempfile.TemporaryDirectory() as folder:
        say(f"$ packattn run {minilm.FILE.name} -o out.safetensors")
        done = call(command, "run", minilm.FILE, "-o", "out.safetensors", folder=folder)
        expect(done.returncode == 0, "the command succeeds")
        if done.returncode == 0:
            written, _ = minilm.read_safetensors(Path(folder) / "out.safetensors")
            same = np.array_equal(out, written["out"]) and np.array_equal(lse, written["lse"])
            expect(same, "out and lse have the bits that Python gets")

        message = "cu_seqlens_q and cu_seqlens_k must describe the same batch"
        say(f'\n$ packattn explain "{message}"')
        done = call(command, "explain", message, folder=folder, lines=8)
        say("│ ...")
        expect("PA2009" in done.stdout, "another library's message is recognised: PA2009")


def main():
    print(f"packattn {packattn.__version__}")
    for part in (
        real_batch,
        kda_stepping,
        three_mistakes,
        three_faults,
        empty_prompt,
        command_line,
    ):
        part()
    print()
    if failures:
        print(f"{len(failures)} of the demo's expectations did not hold:")
        for text in failures:
            say(text)
    else:
        print("Everything above is as it should be.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
