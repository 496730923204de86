# SPDX-License-Identifier: Apache-2.0
"""packattn.attention on NumPy arrays and torch tensors, right calls."""

import numpy as np
import packattn
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

LENGTHS_Q, LENGTHS_K = [5, 0, 3, 4, 1], [7, 2, 3, 0, 9]


def inputs(rng, kind=None, heads=4, key_heads=2, d=16, dv=8):
    make = kind or (lambda x: x)
    f = lambda *s: make(rng.standard_normal(s, np.float32))  # noqa: E731
    tq, tk = sum(LENGTHS_Q), sum(LENGTHS_K)
    return f(tq, heads, d), f(tk, key_heads, d), f(tk, key_heads, dv)


def batch():
    return packattn.PackedBatch.from_lengths(LENGTHS_Q, LENGTHS_K)


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "top_left": {"causal": True, "align": "top_left"},
    "window": {"window": (2, 1)},
    "left": {"window": (1, None)},
    "scale": {"softmax_scale": 0.3},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4], np.float32)},
    "sinks": {"sinks": np.array([0.1, -1, 2, 0], np.float32)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(rng, kind, name):
    q, k, v = inputs(rng, kind)
    options = {
        key: kind(value) if isinstance(value, np.ndarray) else value
        for key, value in OPTIONS[name].items()
    }
    out, lse = packattn.attention(q, k, v, batch(), return_lse=True, **options)
    assert isinstance(out, kind.type()) and isinstance(lse, kind.type())
    want, want_lse = reference.attention(q, k, v, batch().sequences, **OPTIONS[name])
    assert reference.relative_error(out, want) < 2e-6
    assert reference.relative_error(lse, want_lse) < 2e-6


def test_numpy_and_torch_give_the_same_bits(rng):
    torch = pytest.importorskip("torch")
    q, k, v = inputs(rng)
    ours = packattn.attention(q, k, v, batch())
    theirs = packattn.attention(*map(torch.from_numpy, (q, k, v)), batch())
    assert np.array_equal(ours, theirs.numpy())


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(rng, dtype):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(t).to(getattr(torch, dtype)) for t in inputs(rng))
    out = packattn.attention(q, k, v, batch())
    assert out.dtype == q.dtype
    want, _ = reference.attention(*(t.float().numpy() for t in (q, k, v)), batch().sequences)
    assert reference.relative_error(out.float(), want) < (4e-4 if dtype == "float16" else 2.5e-3)
    exact = packattn.attention(q, k, v, batch(), out=torch.empty(out.shape))
    assert torch.equal(exact.to(q.dtype), out)


def test_bfloat16_of_numpy(rng):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (t.astype(bfloat16) for t in inputs(rng))
    out = packattn.attention(q, k, v, batch())
    assert out.dtype == bfloat16
    want, _ = reference.attention(q, k, v, batch().sequences)
    assert reference.relative_error(out.astype(np.float32), want) < 2.5e-3


def test_outputs_that_are_given_are_returned(rng, kind):
    q, k, v = inputs(rng, kind)
    out, lse = kind(np.empty((13, 4, 8), np.float32)), kind(np.empty((4, 13), np.float32))
    got = packattn.attention(q, k, v, batch(), out=out, lse=lse, return_lse=True)
    assert got[0] is out and got[1] is lse
    assert np.array_equal(out, packattn.attention(q, k, v, batch()))


def test_read_only_inputs_and_strides(rng):
    q, k, v = inputs(rng)
    plain = packattn.attention(q, k, v, batch())
    fused = np.zeros((13, 4, 48), np.float32)
    fused[..., 7:23] = q
    fused.flags.writeable = False
    strided = fused[..., 7:23]
    assert np.array_equal(packattn.attention(strided, k, v, batch()), plain)


def test_boundaries_in_every_form(rng, kind):
    q, k, v = inputs(rng, kind)
    ends_q, ends_k = np.cumsum([0, *LENGTHS_Q]), np.cumsum([0, *LENGTHS_K])
    plain = np.asarray(packattn.attention(q, k, v, batch()))
    for integer in (np.int32, np.int64):
        spec = packattn.BatchSpec(
            cu_seqlens_q=kind(ends_q.astype(integer)), cu_seqlens_k=kind(ends_k.astype(integer))
        )
        assert np.array_equal(packattn.attention(q, k, v, spec), plain)
        assert np.array_equal(packattn.attention(q, k, v, packattn.PackedBatch(spec)), plain)
    spec = packattn.BatchSpec(cu_seqlens_q=ends_q.tolist(), cu_seqlens_k=tuple(ends_k.tolist()))
    assert np.array_equal(packattn.attention(q, k, v, spec), plain)
    starts = packattn.PackedBatch.from_starts_and_lengths(
        ends_q[:-1], LENGTHS_Q, ends_k[:-1], LENGTHS_K
    )
    assert np.array_equal(packattn.attention(q, k, v, starts), plain)


def test_cu_seqlens_in_place_of_a_batch(rng, kind):
    q = kind(rng.standard_normal((9, 2, 8), np.float32))
    ready = packattn.PackedBatch.from_cu_seqlens([0, 4, 9])
    for ends in ([0, 4, 9], (0, 4, 9), kind(np.array([0, 4, 9], np.int32))):
        assert np.array_equal(packattn.attention(q, q, q, ends), packattn.attention(q, q, q, ready))


def test_paged_keys(rng, kind):
    q, k, v = inputs(rng)
    page, pages = 4, 12
    table = np.full((5, 3), -7, np.int32)
    cache_k, cache_v = (np.full((pages, page, 2, n), np.nan, np.float32) for n in (16, 8))
    free = iter(rng.permutation(pages))
    for n, (_, _, start, length) in enumerate(batch().sequences):
        for p in range(-(-length // page)):
            table[n, p] = next(free)
            rows = slice(start + p * page, start + min(length, (p + 1) * page))
            cache_k[table[n, p], : rows.stop - rows.start] = k[rows]
            cache_v[table[n, p], : rows.stop - rows.start] = v[rows]
    paged = packattn.PackedBatch.paged(
        np.cumsum([0, *LENGTHS_Q]), kind(np.array(LENGTHS_K, np.int32)), kind(table)
    )
    assert paged.is_paged and paged.block_table(0) == table[0].tolist()
    got = packattn.attention(kind(q), kind(cache_k), kind(cache_v), paged)
    assert reference.relative_error(got, packattn.attention(q, k, v, batch())) < 2e-6


def test_merging_parts_gives_the_whole(rng, kind):
    q, k, v = inputs(rng, kind)
    whole, whole_lse = packattn.attention(q, k, v, batch(), return_lse=True)
    starts_k = np.cumsum([0, *LENGTHS_K])[:-1]
    first = np.array(LENGTHS_K) // 2
    starts_q = np.cumsum([0, *LENGTHS_Q])[:-1]

    def part(starts, lengths):
        piece = packattn.PackedBatch.from_starts_and_lengths(starts_q, LENGTHS_Q, starts, lengths)
        return packattn.attention(q, k, v, piece, return_lse=True)

    a, b = part(starts_k, first), part(starts_k + first, np.array(LENGTHS_K) - first)
    out, lse = packattn.merge_states(*a, *b)
    assert reference.relative_error(out, whole) < 2e-6
    assert reference.relative_error(lse, whole_lse) < 2e-6
    again = packattn.merge_states(*a, *b, out=a[0], lse=a[1])
    assert again[0] is a[0] and np.array_equal(a[0], out)


def test_progress_reaches_the_end(rng):
    q = rng.standard_normal((64, 2, 8), np.float32)
    seen = []
    packattn.attention(q, q, q, [0, 30, 64], progress=lambda *at: seen.append(at))
    assert seen and seen[-1][0] == seen[-1][1]
    assert seen == sorted(seen)


def test_workspace_of_the_caller(rng):
    q, k, v = inputs(rng)
    size = packattn.attention_workspace_bytes(q, k, v, batch())
    memory = np.empty(size + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :]
    got = packattn.attention(q, k, v, batch(), workspace=memory)
    assert np.array_equal(got, packattn.attention(q, k, v, batch()))


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    causal=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_packed_equals_alone_bit_for_bit(lengths, causal, threads, seed):
    q = np.random.default_rng(seed).standard_normal((sum(lengths), 2, 16), np.float32)
    packed = packattn.attention(
        q, q, q, packattn.PackedBatch.from_lengths(lengths), causal=causal, threads=threads
    )
    start = 0
    for length in lengths:
        own = np.ascontiguousarray(q[start : start + length])
        alone = packattn.attention(own, own, own, [0, length], causal=causal)
        assert np.array_equal(packed[start : start + length], alone)
        start += length
