# SPDX-License-Identifier: Apache-2.0
"""packattn.compat.flashinfer: plan and run, pages in compressed form, lse of base 2."""

import math

import numpy as np
import packattn
import pytest
import reference
from packattn.compat import flashinfer

LENGTHS_Q, LENGTHS_K = [5, 0, 3], [7, 2, 4]
SEQUENCES = packattn.PackedBatch.from_lengths(LENGTHS_Q, LENGTHS_K).sequences


def ends(lengths, kind):
    return kind(np.cumsum([0, *lengths]).astype(np.int32))


def tensors(rng, kind):
    f = lambda *s: kind(rng.standard_normal(s, np.float32))  # noqa: E731
    return f(8, 4, 16), f(13, 2, 16), f(13, 2, 8)


def agree(result, want, want_lse):
    out, lse = result
    assert reference.relative_error(out, want) < 2e-6
    assert tuple(lse.shape) == want_lse.shape[::-1]
    assert reference.relative_error(np.asarray(lse).T * math.log(2), want_lse) < 2e-6


def test_ragged(rng, kind):
    q, k, v = tensors(rng, kind)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(None, "NHD")
    wrapper.plan(
        ends(LENGTHS_Q, kind), ends(LENGTHS_K, kind), 4, 2, 16, head_dim_vo=8, causal=True,
        window_left=2, logits_soft_cap=4.0, q_data_type="float32", disable_split_kv=True,
    )  # fmt: skip
    native = {"causal": True, "window": (2, None), "softcap": 4.0}
    agree(wrapper.run(q, k, v, return_lse=True), *reference.attention(q, k, v, SEQUENCES, **native))
    out, lse = kind(np.empty((8, 4, 8), np.float32)), kind(np.empty((8, 4), np.float32))
    got = wrapper.run(q, k, v, out=out, lse=lse, return_lse=True)
    assert got[0] is out and got[1] is lse
    for older in (wrapper.run_return_lse, wrapper.forward_return_lse):
        assert np.array_equal(older(q, k, v)[1], lse)
    assert np.array_equal(wrapper.run(q, k, v), out)
    wrapper.plan(ends(LENGTHS_Q, kind), ends(LENGTHS_K, kind), 4, 2, 16, sm_scale=0.2)
    scaled = wrapper.run(q, k, v, q_scale=2.0, k_scale=0.5, v_scale=3.0)
    want, _ = reference.attention(q, k, v, SEQUENCES, softmax_scale=0.2)
    assert reference.relative_error(scaled, 3 * want) < 2e-6


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("fused", [False, True])
def test_paged(rng, kind, layout, fused):
    q, k, _ = tensors(rng, kind)
    page, indices = 3, [4, 0, 7, 2, 5, 6]  # 3, 1 and 2 pages
    caches = []
    for source in (np.asarray(k), np.asarray(k)[:, ::-1]):
        cache = np.full((8, page, 2, 16), np.nan, np.float32)
        used = iter(indices)
        for _, _, start, length in SEQUENCES:
            for at in range(0, length, page):
                rows = source[start + at : start + min(length, at + page)]
                cache[next(used), : len(rows)] = rows
        caches.append(cache.swapaxes(1, 2).copy() if layout == "HND" else cache)
    pages = kind(np.stack(caches, 1)) if fused else tuple(map(kind, caches))
    kv = (
        kind(np.array([0, 3, 4, 6], np.int32)),
        kind(np.array(indices, np.int32)),
        kind(np.array([1, 2, 1], np.int32)),
    )
    v = np.asarray(k)[:, ::-1]
    sinks = rng.standard_normal(4, np.float32)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(None, layout)
    wrapper.plan(ends(LENGTHS_Q, kind), *kv, 4, 2, 16, page, causal=True)
    agree(
        wrapper.run(q, pages, return_lse=True, sinks=kind(sinks)),
        *reference.attention(q, k, v, SEQUENCES, causal=True, sinks=sinks),
    )
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(None, layout)
    decode.plan(*kv, 4, 2, 16, page)
    rows = SEQUENCES.copy()
    rows[:, 0], rows[:, 1] = [0, 1, 2], 1
    own = kind(np.asarray(q)[:3].copy())
    want = reference.attention(own, k, v, rows, window=(1, None))
    agree(decode.run(own, pages, return_lse=True, window_left=1), *want)


def test_merging(rng, kind):
    f = lambda *s: rng.standard_normal(s, np.float32)  # noqa: E731
    parts, states = f(5, 3, 4, 8), f(5, 3, 4)
    states[1, 2] = -np.inf
    total = np.logaddexp2.reduce(states.astype(np.float64), axis=1)
    want = (np.exp2(states - total[:, None])[..., None] * parts).sum(1)
    v, s = flashinfer.merge_states(kind(parts), kind(states))
    assert reference.relative_error(v, want) < 2e-6 and reference.relative_error(s, total) < 2e-6
    piece = lambda n: (  # noqa: E731
        kind(parts[:, n].copy()),
        kind(states[:, n].copy()),
    )
    v2, _ = flashinfer.merge_state(*flashinfer.merge_state(*piece(0), *piece(1)), *piece(2))
    assert reference.relative_error(v2, want) < 2e-6
    v3, s3 = piece(0)
    mask = kind(np.array([1, 0, 1, 0, 1], bool))
    flashinfer.merge_state_in_place(v3, s3, *piece(1), mask)
    both, both_s = flashinfer.merge_state(*piece(0), *piece(1))
    assert np.array_equal(np.asarray(v3)[::2], np.asarray(both)[::2])
    assert np.array_equal(np.asarray(v3)[1::2], parts[1::2, 0])
    assert np.array_equal(np.asarray(s3)[::2], np.asarray(both_s)[::2])


def test_refusals(rng):
    q, k, v = tensors(rng, np.asarray)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper()
    good = (ends(LENGTHS_Q, np.asarray), ends(LENGTHS_K, np.asarray), 4, 2, 16)
    with pytest.raises(packattn.Error) as caught:
        wrapper.run(q, k, v)
    assert caught.value.code == "PA2001"
    with pytest.raises(ValueError, match=r"num_qo_heads \(4\) must be a multiple of num_kv_heads"):
        wrapper.plan(*good[:2], 4, 3, 16)
    with pytest.raises(packattn.Error) as caught:
        wrapper.plan(np.array([0, 5, 3]), np.array([0, 5, 3]), 4, 2, 16, custom_mask=q, colour=1)
    assert {"PA2007", "PA3009", "PA1105"} <= {fault.code for fault in caught.value.faults}
    with pytest.raises(packattn.Error) as caught:
        wrapper.plan(*good, pos_encoding_mode="ROPE_LLAMA")
    assert [(f.code, f.argument) for f in caught.value.faults] == [("PA3009", "pos_encoding_mode")]
    wrapper.plan(*good)
    with pytest.raises(packattn.Error) as caught:
        wrapper.run(q[:, :2].copy(), k, v)
    assert "PA1007" in [fault.code for fault in caught.value.faults]
    with pytest.raises(packattn.Error):
        wrapper.run(q[:5], k, v)
