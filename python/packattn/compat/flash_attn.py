# SPDX-License-Identifier: Apache-2.0
"""flash-attention 2, argument for argument, forward only.

fp32, head sizes and int64 boundaries that the original refuses are accepted. Rows behind the last
boundary give 0 and lse -inf. ``max_seqlen_*`` are checked: the original skips rows beyond them.
"""

from __future__ import annotations

from typing import Any

from .._batch import BatchSpec, PackedBatch
from .._tensors import Tensor, empty
from ._flash import causal_alibi_lse, dense, numbers, raising, varlen, with_cache
from ._peer import column, even_batch, refused, window_of


def _options(softmax_scale: Any, causal: Any, window_size: Any, softcap: Any, slopes: Any) -> Any:
    return {
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": window_of(window_size),
        "softcap": softcap,
        "alibi_slopes": slopes,
    }


def _no_dropout(function: str, dropout_p: Any) -> list[list[str]]:
    return refused(function, {"dropout_p": (dropout_p, 0.0, "dropout is for training: pass 0.0")})


def _plainly_causal(causal: bool, window: Any) -> bool:
    left, right = window_of(window)
    return left is None and (causal or right == 0)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """q, k, v ``[B, S, H, D]``. Returns out, or ``(out, lse [B, H, S], an empty tensor)``."""
    del deterministic  # always
    with raising():
        rows = _no_dropout("flash_attn_func", dropout_p)
        options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
        out, lse = dense(q, k, v, rows, return_attn_probs, options)
        if not return_attn_probs:
            return out
        if alibi_slopes is not None and _plainly_causal(causal, window_size):
            count, length = q.shape[:2]
            batch = even_batch(count, length, k.shape[1])
            heads = lse.swapaxes(0, 1).reshape(q.shape[2], count * length)
            added = causal_alibi_lse(heads, alibi_slopes, batch)
            lse = added.reshape(q.shape[2], count, length).swapaxes(0, 1)
        return out, lse, empty((0,), q)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` with keys and values in one tensor ``[B, S, 2, Hk, D]``."""
    return flash_attn_func(
        q, column(kv, 0, 2), column(kv, 1, 2), dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` with all three in one tensor ``[B, S, 3, H, D]``."""
    return flash_attn_func(
        column(qkv, 0, 2), column(qkv, 1, 2), column(qkv, 2, 2), dropout_p, softmax_scale, causal,
        window_size, softcap, alibi_slopes, deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """q ``[Tq, H, D]``, k and v ``[Tk, Hk, D]``, or pages with ``block_table``.

    Returns out, or ``(out, lse [H, Tq], an empty tensor)`` with ``return_attn_probs``.
    """
    del deterministic  # always
    with raising():
        rows = _no_dropout("flash_attn_varlen_func", dropout_p)
        lengths = numbers(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
        if block_table is None:
            spec = BatchSpec(cu_seqlens_q, cu_seqlens_k, capacity=True, **lengths)
        else:
            spec = BatchSpec(
                cu_seqlens_q,
                seqlens_k=None if cu_seqlens_k is None else cu_seqlens_k[1:] - cu_seqlens_k[:-1],
                block_table=block_table,
                capacity=True,
                **lengths,
            )
        options = _options(softmax_scale, causal, window_size, softcap, alibi_slopes)
        result = varlen(q, k, v, spec, rows, return_attn_probs, options)
        if not return_attn_probs:
            return result
        out, lse = result
        if alibi_slopes is not None and _plainly_causal(causal, window_size):
            lse = causal_alibi_lse(lse, alibi_slopes, PackedBatch(spec))
        return out, lse, empty((0,), q)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` with keys and values in one tensor ``[Tk, 2, Hk, D]``."""
    return flash_attn_varlen_func(
        q, column(kv, 0), column(kv, 1), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` with all three in one tensor ``[T, 3, H, D]``."""
    return flash_attn_varlen_func(
        column(qkv, 0), column(qkv, 1), column(qkv, 2), cu_seqlens, cu_seqlens, max_seqlen,
        max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
        deterministic, return_attn_probs,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """q ``[B, S, H, D]`` against a cache ``[B, S_max, Hk, D]``, or pages with ``block_table``.

    New ``k`` and ``v`` ``[B, S_new, Hk, D]`` are first written behind ``cache_seqlens``. Returns
    out, or ``(out, lse [B, H, S])`` with ``return_softmax_lse``.
    """
    del num_splits, rotary_interleaved  # changes no bit here; counts only with rotary_cos
    with raising():
        remedy = "rotate q and k before the call"
        rows = refused(
            "flash_attn_with_kvcache",
            {
                "rotary_cos": (rotary_cos, None, remedy),
                "rotary_sin": (rotary_sin, None, remedy),
                "cache_leftpad": (cache_leftpad, None, "move the keys to the front of the cache"),
            },
        )
        out, lse = with_cache(
            q, (k_cache, v_cache), (k, v), cache_seqlens, block_table, cache_batch_idx, None, None,
            rows, _options(softmax_scale, causal, window_size, softcap, alibi_slopes),
        )  # fmt: skip
        return (out, lse) if return_softmax_lse else out
