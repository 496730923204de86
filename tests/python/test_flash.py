# SPDX-License-Identifier: Apache-2.0
"""packattn.compat.flash_attn, flash_attn_3 and torch_varlen: arguments, conventions, words."""

import numpy as np
import packattn
import pytest
import reference
from packattn.compat import flash_attn as fa2
from packattn.compat import flash_attn_3 as fa3
from packattn.compat import torch_varlen

LENGTHS_Q, LENGTHS_K = [5, 0, 3], [7, 2, 3]
SEQUENCES = packattn.PackedBatch.from_lengths(LENGTHS_Q, LENGTHS_K).sequences


def ends(lengths, kind):
    return kind(np.cumsum([0, *lengths]).astype(np.int32))


def packed(rng, kind, spare=0):
    f = lambda *s: kind(rng.standard_normal(s, np.float32))  # noqa: E731
    q, k, v = f(8 + spare, 4, 16), f(12 + spare, 2, 16), f(12 + spare, 2, 16)
    return q, k, v, ends(LENGTHS_Q, kind), ends(LENGTHS_K, kind), 5, 7


@pytest.mark.parametrize(
    ("given", "native"),
    [
        ({}, {}),
        ({"causal": True}, {"causal": True}),
        ({"window_size": (2, -1)}, {"window": (2, None)}),
        ({"window_size": (-1, 0), "softcap": 3.0}, {"window": (None, 0), "softcap": 3.0}),
        ({"softmax_scale": 0.5, "deterministic": True}, {"softmax_scale": 0.5}),
    ],
)
def test_fa2_varlen(rng, kind, given, native):
    q, k, v, *rest = packed(rng, kind)
    out, lse, nothing = fa2.flash_attn_varlen_func(q, k, v, *rest, return_attn_probs=True, **given)
    want, want_lse = reference.attention(q, k, v, SEQUENCES, **native)
    assert reference.relative_error(out, want) < 2e-6
    assert reference.relative_error(lse, want_lse) < 2e-6 and nothing.shape[0] == 0
    assert np.array_equal(fa2.flash_attn_varlen_func(q, k, v, *rest, **given), out)
    other = fa3.flash_attn_varlen_func(
        q, k, v, *rest, return_attn_probs=True, num_splits=3, pack_gqa=True, sm_margin=2, **given
    )
    assert np.array_equal(other[0], out) and np.array_equal(other[1], lse)


def test_dense_tensors_in_one(rng, kind):
    q, k, v = (rng.standard_normal((2, 5, 4, 16), np.float32) for _ in range(3))
    want = fa2.flash_attn_func(*map(kind, (q, k, v)), causal=True)
    kv, qkv = kind(np.stack([k, v], 2)), kind(np.stack([q, k, v], 2))
    assert np.array_equal(fa2.flash_attn_kvpacked_func(kind(q), kv, causal=True), want)
    out, lse, _ = fa2.flash_attn_qkvpacked_func(qkv, causal=True, return_attn_probs=True)
    assert np.array_equal(out, want) and tuple(lse.shape) == (2, 4, 5)
    with pytest.raises(packattn.Error, match="PA1002"):
        fa2.flash_attn_qkvpacked_func(qkv[0])


def test_packed_tensors_and_spare_rows(rng, kind):
    q, k, v, cu_q, cu_k, max_q, max_k = packed(rng, kind, spare=3)
    out = fa2.flash_attn_varlen_func(q, k, v, cu_q, cu_k, max_q, max_k)
    assert not np.asarray(out)[8:].any()
    kv = kind(np.stack([np.asarray(k), np.asarray(v)], 1))
    same = fa2.flash_attn_varlen_kvpacked_func(q, kv, cu_q, cu_k, max_q, max_k)
    assert np.array_equal(same, out)
    qkv = kind(np.stack([np.asarray(k)] * 3, 1))
    own = fa2.flash_attn_varlen_qkvpacked_func(qkv, cu_k, max_k, causal=True)
    want = fa2.flash_attn_varlen_func(k, k, k, cu_k, cu_k, max_k, max_k, causal=True)
    assert np.array_equal(own, want)


@pytest.mark.parametrize("per_sequence", [False, True])
def test_fa2_alibi_lse(rng, kind, per_sequence):
    q, k, v, *rest = packed(rng, kind)
    slopes = np.abs(rng.standard_normal((3, 4) if per_sequence else (4,), np.float32))
    for causal in (True, False):
        _, lse, _ = fa2.flash_attn_varlen_func(
            q, k, v, *rest, causal=causal, alibi_slopes=kind(slopes), return_attn_probs=True
        )
        _, ours = packattn.attention(
            q, k, v, packattn.BatchSpec(rest[0], rest[1]), causal=causal, return_lse=True,
            alibi_slopes=kind(slopes),
        )  # fmt: skip
        want = np.asarray(ours).astype(np.float64)
        for n, (start, length, _, keys) in enumerate(SEQUENCES if causal else []):
            m = slopes[n] if per_sequence else slopes
            want[:, start : start + length] += m[:, None] * (np.arange(length) + keys - length)
        assert reference.relative_error(lse, want) < 1e-6


def test_dense(rng, kind):
    f = lambda *s: kind(rng.standard_normal(s, np.float32))  # noqa: E731
    q, k, v = f(2, 5, 4, 16), f(2, 7, 2, 16), f(2, 7, 2, 16)
    out, lse, _ = fa2.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert tuple(out.shape) == (2, 5, 4, 16) and tuple(lse.shape) == (2, 4, 5)
    for b in range(2):
        want, want_lse = reference.attention(q[b], k[b], v[b], [[0, 5, 0, 7]], causal=True)
        assert reference.relative_error(out[b], want) < 2e-6
        assert reference.relative_error(lse[b], want_lse) < 2e-6
    # Heads before tokens: no view has the rows one after the other, and nothing is copied.
    turned = kind(np.ascontiguousarray(np.asarray(k).swapaxes(0, 1))).swapaxes(0, 1)
    again, lse_again, _ = fa2.flash_attn_func(q, turned, v, causal=True, return_attn_probs=True)
    assert np.array_equal(again, out) and np.array_equal(lse_again, lse)
    slopes = kind(np.abs(rng.standard_normal((2, 4), np.float32)))
    with_slopes = fa2.flash_attn_func(q, k, v, alibi_slopes=slopes)
    assert np.array_equal(fa2.flash_attn_func(q, turned, v, alibi_slopes=slopes), with_slopes)


@pytest.mark.parametrize("module", [fa2, fa3])
@pytest.mark.parametrize("paged", [False, True])
def test_cache(rng, kind, module, paged):
    f = lambda *s: kind(rng.standard_normal(s, np.float32))  # noqa: E731
    q, k, v = f(2, 2, 4, 16), f(2, 3, 2, 16), f(2, 3, 2, 16)
    lengths = np.array([4, 6], np.int32)
    keys, values = f(2, 12, 2, 16), f(2, 12, 2, 16)
    table = np.array([[4, 0, 2], [1, 5, 3]], np.int32)
    if paged:
        pages = [kind(np.zeros((6, 4, 2, 16), np.float32)) for _ in range(2)]
        for page, dense in zip(pages, (keys, values), strict=True):
            for n in range(2):
                for p in range(3):
                    page[table[n, p]] = dense[n, 4 * p : 4 * p + 4]
        extra = {"block_table" if module is fa2 else "page_table": kind(table)}
    else:
        pages, extra = [keys, values], {}
    out, lse = module.flash_attn_with_kvcache(
        q, *pages, k, v, cache_seqlens=kind(lengths), causal=True, return_softmax_lse=True, **extra
    )
    assert tuple(lse.shape) == (2, 4, 2)
    for n, length in enumerate(lengths):
        own_k = np.concatenate([np.asarray(keys)[n, :length], np.asarray(k)[n]])
        own_v = np.concatenate([np.asarray(values)[n, :length], np.asarray(v)[n]])
        rows = [[0, 2, 0, length + 3]]
        want, want_lse = reference.attention(q[n], own_k, own_v, rows, causal=True)
        assert reference.relative_error(out[n], want) < 2e-6
        assert reference.relative_error(lse[n], want_lse) < 2e-6
        if paged:
            at = [(table[n, p // 4], p % 4) for p in range(length, length + 3)]
            assert all(np.array_equal(pages[0][a], k[n, i]) for i, a in enumerate(at))
    untouched = [np.asarray(t).copy() for t in pages]
    with pytest.raises(packattn.Error):  # refused before anything is written
        module.flash_attn_with_kvcache(q, *pages, k, v[:, :2], cache_seqlens=4, **extra)
    assert all(np.array_equal(a, b) for a, b in zip(untouched, pages, strict=True))


def test_fa3_cache_of_packed_queries(rng, kind):
    f = lambda *s: kind(rng.standard_normal(s, np.float32))  # noqa: E731
    q, cache_k, cache_v = f(5, 4, 16), f(3, 8, 2, 16), f(3, 8, 2, 16)
    new = f(4, 2, 16)
    out, lse = fa3.flash_attn_with_kvcache(
        q, cache_k, cache_v, new, new, cache_seqlens=kind(np.array([2, 5], np.int32)),
        cache_batch_idx=kind(np.array([2, 0], np.int32)), cu_seqlens_q=ends([2, 3], kind),
        cu_seqlens_k_new=ends([1, 3], kind), return_softmax_lse=True,
    )  # fmt: skip
    assert np.array_equal(cache_k[2, 2], new[0]) and np.array_equal(cache_v[0, 5:], new[1:])
    for row, start, length, keys in ((2, 0, 2, 3), (0, 2, 3, 8)):
        want, want_lse = reference.attention(
            q[start : start + length], cache_k[row], cache_v[row], [[0, length, 0, keys]]
        )
        assert reference.relative_error(out[start : start + length], want) < 2e-6
        assert reference.relative_error(lse[:, start : start + length], want_lse) < 2e-6


def test_fa3_used_rows(rng, kind):
    q, k, v, cu_q, cu_k, *most = packed(rng, kind)
    used_q, used_k = [2, 0, 3], [7, 0, 1]
    out, lse = fa3.flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, *most, seqused_q=kind(np.array(used_q, np.int32)),
        seqused_k=kind(np.array(used_k, np.int32)), return_attn_probs=True,
    )  # fmt: skip
    rows = SEQUENCES.copy()
    rows[:, 1], rows[:, 3] = used_q, used_k
    want, want_lse = reference.attention(q, k, v, rows)
    assert reference.relative_error(out, want) < 2e-6
    assert reference.relative_error(lse, want_lse) < 2e-6
    assert not np.asarray(out)[2:5].any()


def test_fa3_combine(rng, kind):
    f = lambda *s: rng.standard_normal(s, np.float32)  # noqa: E731
    parts, lses = f(3, 2, 5, 4, 8), f(3, 2, 5, 4)
    lses[1, 0, 2] = -np.inf
    out, lse = fa3.flash_attn_combine(kind(parts), kind(lses))
    want_lse = np.logaddexp.reduce(lses.astype(np.float64), axis=0)
    want = (np.exp(lses - want_lse)[..., None] * parts).sum(0)
    assert reference.relative_error(out, want) < 2e-6
    assert reference.relative_error(lse, want_lse) < 2e-6


def test_torch_varlen(rng, kind):
    class Aux:
        lse = True

    q, k, v, *rest = packed(rng, kind)
    call = {"enable_gqa": True, "return_aux": Aux(), "num_splits": 1}
    out, lse = torch_varlen.varlen_attn(q, k, v, *rest, window_size=(-1, 0), **call)
    want, want_lse = reference.attention(q, k, v, SEQUENCES, causal=True)
    assert reference.relative_error(out, want) < 2e-6
    assert reference.relative_error(lse, want_lse) < 2e-6
    again, _ = torch_varlen.varlen_attn(q, k, v, *rest, True, **call)
    assert np.array_equal(again, out)
    given = kind(np.empty((8, 4, 16), np.float32))
    torch_varlen.varlen_attn_out(given, q, k, v, *rest, window_size=(-1, 0), enable_gqa=True)
    assert np.array_equal(given, out)
    used = kind(np.array([1, 2, 3], np.int32))
    rows = SEQUENCES.copy()
    rows[:, 3] = [1, 2, 3]
    got = torch_varlen.varlen_attn(q, k, v, *rest, enable_gqa=True, seqused_k=used)
    assert reference.relative_error(got, reference.attention(q, k, v, rows)[0]) < 2e-6
    with pytest.raises(ValueError, match=r"Try setting enable_gqa=True for GQA"):
        torch_varlen.varlen_attn(q, k, v, *rest)


REFUSED_FA2 = {
    "query and key must have the same dtype": {"k": lambda t: t.astype(np.float16)},
    "Number of heads in key/value must divide number of heads in query": {
        "q": lambda t: np.ascontiguousarray(t[:, :3])
    },
    "Input tensor must have contiguous last dimension": {"v": lambda t: t[..., ::-1]},
    "cu_seqlens_q must have dtype int32": {"cu_seqlens_q": lambda t: t.astype(np.float32)},
    "cu_seqlens_k must have shape (batch_size + 1)": {"cu_seqlens_k": lambda t: t[[0, 1, 3]]},
}


@pytest.mark.parametrize("words", REFUSED_FA2)
def test_words_of_flash_attention(rng, words):
    names = ["q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
    call = dict(zip(names, packed(rng, np.asarray), strict=True))
    for name, change in REFUSED_FA2[words].items():
        call[name] = change(call[name])
    with pytest.raises(RuntimeError) as caught:
        fa2.flash_attn_varlen_func(**call)
    assert isinstance(caught.value, packattn.Error)
    assert words in str(caught.value).split("error[PA")[0].splitlines()


def test_max_seqlen_is_checked(rng):
    *call, _, max_k = packed(rng, np.asarray)
    with pytest.raises(packattn.Error) as caught:
        fa2.flash_attn_varlen_func(*call, 4, max_k)
    assert caught.value.code == "PA2012"


def test_how_to_rotate_counts_only_with_a_rotation(rng, kind):
    q, cache = (kind(rng.standard_normal((2, n, 2, 16), np.float32)) for n in (1, 8))
    want = fa2.flash_attn_with_kvcache(q, cache, cache)
    same = fa2.flash_attn_with_kvcache(q, cache, cache, rotary_interleaved=False)
    lengths = kind(np.array([3, 3], np.int32))
    other = fa3.flash_attn_with_kvcache(
        q, cache, cache, rotary_interleaved=False, rotary_seqlens=lengths
    )
    assert np.array_equal(same, want) and np.array_equal(other, want)
    with pytest.raises(packattn.UnsupportedError, match="rotary_cos"):
        fa2.flash_attn_with_kvcache(q, cache, cache, rotary_cos=lengths, rotary_interleaved=False)


def test_chosen_rows_of_a_page_table(rng, kind):
    q = kind(rng.standard_normal((2, 1, 2, 16), np.float32))
    pages = kind(rng.standard_normal((5, 4, 2, 16), np.float32))
    table, rows = np.array([[4, 1], [0, 0], [2, 3]], np.int32), np.array([2, 0], np.int32)
    options = {"cache_seqlens": kind(np.array([6, 3], np.int32))}
    want = fa3.flash_attn_with_kvcache(q, pages, pages, page_table=kind(table[rows]), **options)
    got = fa3.flash_attn_with_kvcache(
        q, pages, pages, page_table=kind(table), cache_batch_idx=kind(rows), **options
    )
    assert np.array_equal(got, want)
