# SPDX-License-Identifier: Apache-2.0
"""flash-attention 3 (``flash_attn_interface``), argument for argument, forward only.

``num_splits``, ``pack_gqa``, ``sm_margin`` and ``scheduler_metadata`` say how a GPU works and
change nothing here.
"""

from __future__ import annotations

from typing import Any

from .._attention import merge_states
from .._batch import BatchSpec
from .._tensors import Tensor, empty, full, shape_of
from ._flash import numbers, raising, varlen, with_cache
from ._peer import arithmetic, refuse_with, refused, window_of


def _options(softmax_scale: Any, causal: Any, window_size: Any, softcap: Any) -> dict[str, Any]:
    return {
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": window_of(window_size),
        "softcap": softcap,
    }


def _refused(function: str, given: dict[str, Any]) -> list[list[str]]:
    scaled = "packattn has no 8-bit inputs: pass fp16 or bf16"
    remedies = {
        "qv": (None, "packattn has no second query for values"),
        "q_descale": (None, scaled),
        "k_descale": (None, scaled),
        "v_descale": (None, scaled),
        "attention_chunk": (0, "pass a window, or cut the sequences into chunks"),
        "rotary_cos": (None, "rotate q and k before the call"),
        "rotary_sin": (None, "rotate q and k before the call"),
        "cache_leftpad": (None, "move the keys to the front of the cache"),
    }
    return refused(function, {name: (value, *remedies[name]) for name, value in given.items()})


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """q ``[Tq, H, D]``, k ``[Tk, Hk, D]``, v ``[Tk, Hk, Dv]``. With ``seqused_*`` ``[B]`` only the
    first rows of each range are used; the other rows of out are 0.

    Returns out, or ``(out, lse [H, Tq])`` with ``return_attn_probs``.
    """
    del num_splits, pack_gqa, deterministic, sm_margin
    with raising():
        rows = _refused(
            "flash_attn_varlen_func",
            {
                "qv": qv, "q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale,
                "attention_chunk": attention_chunk,
            },
        )  # fmt: skip
        lengths = numbers(max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k)
        if seqused_q is None and seqused_k is None:
            spec = BatchSpec(cu_seqlens_q, cu_seqlens_k, capacity=True, **lengths)
        else:
            spec = BatchSpec(
                starts_q=_starts(cu_seqlens_q),
                lengths_q=_lengths(cu_seqlens_q) if seqused_q is None else seqused_q,
                starts_k=_starts(cu_seqlens_k),
                lengths_k=_lengths(cu_seqlens_k) if seqused_k is None else seqused_k,
                capacity=True,
            )
        options = _options(softmax_scale, causal, window_size, softcap)
        return varlen(q, k, v, spec, rows, return_attn_probs, options)


def _starts(ends: Any) -> Any:
    return None if ends is None else ends[:-1]


def _lengths(ends: Any) -> Any:
    return None if ends is None else ends[1:] - ends[:-1]


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """q ``[B, S, H, D]``, or packed ``[Tq, H, D]`` with ``cu_seqlens_q``, against a cache
    ``[B, S_max, Hk, D]``, or pages of any size with ``page_table``.

    New ``k`` and ``v`` are first written behind ``cache_seqlens``. Returns out, or ``(out, lse)``
    with ``return_softmax_lse``, lse ``[B, H, S]`` or ``[H, Tq]``.
    """
    del max_seqlen_q, scheduler_metadata, num_splits, pack_gqa, sm_margin
    del rotary_seqlens, rotary_interleaved  # count only with rotary_cos
    with raising():
        rows = _refused(
            "flash_attn_with_kvcache",
            {
                "qv": qv, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin,
                "cache_leftpad": cache_leftpad, "q_descale": q_descale, "k_descale": k_descale,
                "v_descale": v_descale, "attention_chunk": attention_chunk,
            },
        )  # fmt: skip
        out, lse = with_cache(
            q, (k_cache, v_cache), (k, v), cache_seqlens, page_table, cache_batch_idx,
            cu_seqlens_q, cu_seqlens_k_new, rows,
            _options(softmax_scale, causal, window_size, softcap),
        )  # fmt: skip
        return (out, lse) if return_softmax_lse else out


def flash_attn_combine(
    out_partial: Tensor,
    lse_partial: Tensor,
    out: Tensor | None = None,
    out_dtype: Any = None,
) -> tuple[Any, Any]:
    """Joins partial results over disjoint keys, in the order of the parts.

    :param out_partial: ``[parts, B, S, H, D]``, or ``[parts, T, H, D]``.
    :param lse_partial: ``[parts, B, S, H]``, or ``[parts, T, H]``, fp32.
    :returns: ``(out [B, S, H, D], lse [B, S, H])``, of ``out_dtype`` or of ``out_partial``'s.
    """
    with raising():
        shape, lse_shape = shape_of(out_partial), shape_of(lse_partial)
        if shape is None or lse_shape is None or len(shape) < 4 or lse_shape != shape[:-1]:
            limit = "the shape of out_partial without its last dimension"
            refuse_with([["PA1010", "lse_partial", "", str(lse_shape), limit, ""]], ())
        *_, heads, size = shape
        tokens = shape[1:-2]
        parts = out_partial.reshape(shape[0], -1, heads, size)
        parts_lse = lse_partial.reshape(shape[0], -1, heads).swapaxes(1, 2)
        total = full(parts.shape[1:], out_partial, 0.0)
        total_lse = full(parts_lse.shape[1:], lse_partial, float("-inf"))
        xp = arithmetic(lse_partial)
        for part, part_lse in zip(parts, parts_lse, strict=True):
            part_lse = xp.zeros_like(total_lse) + part_lse  # one head after the other
            wide = part if str(part.dtype).endswith("float32") else total * 0 + part
            merge_states(total, total_lse, wide, part_lse, out=total, lse=total_lse)
        if out is None:
            dtype = out_partial.dtype if out_dtype is None else out_dtype
            out = empty((*tokens, heads, size), out_partial, str(dtype).rpartition(".")[2])
        out[...] = total.reshape(*tokens, heads, size)
        return out, total_lse.swapaxes(0, 1).reshape(*tokens, heads)
