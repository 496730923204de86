# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's ragged and paged wrappers and its merging of states.

lse is of base 2 and ``[T, H]``. ``plan`` checks the boundaries; ``run`` uses them for every layer.
"""

from __future__ import annotations

import math
from functools import partialmethod
from typing import Any

import numpy as np

from .._attention import attention, check_attention
from .._attention import merge_states as merge_natural
from .._batch import BatchSpec, PackedBatch
from .._tensors import Tensor, is_torch, shape_of
from ._peer import arithmetic, refuse_all, refuse_with, refused, speaking, unknown_arguments, worded

_LN2 = math.log(2)

_WORDS = worded(
    {
        "PA1007 q": "num_qo_heads ({limit}) does not match the {value} heads of q",
        "PA1009": "num_qo_heads ({value}) must be a multiple of num_kv_heads ({limit})",
        "PA2009": "The length of qo_indptr and kv_indptr should be the same.",
        "PA2006": "q.shape[0] ({limit}) does not match qo_indptr[-1] ({value}).",
        "PA2008": "q.shape[0] ({limit}) does not match qo_indptr[-1] ({value}).",
        "PA2007": "{argument} {value} at {position}: lengths should be non-negative",
    }
)

_ROTARY = "rotate q and k before the call"
_MASK = "packattn has causal masks and windows"
_REFUSED = {
    "custom_mask": (None, _MASK),
    "packed_custom_mask": (None, _MASK),
    "pos_encoding_mode": ("NONE", _ROTARY),
    "rope_scale": (None, _ROTARY),
    "rope_theta": (None, _ROTARY),
    "prefix_len_ptr": (None, _MASK),
    "token_pos_in_items_ptr": (None, _MASK),
    "token_pos_in_items_len": (0, _MASK),
    "max_item_len_ptr": (None, _MASK),
    "v_indptr": (None, "values share the keys' boundaries"),
    "o_indptr": (None, "outputs share the queries' boundaries"),
    "use_token_head_sf": (False, "packattn has no 8-bit caches"),
    "kv_cache_sf": (None, "packattn has no 8-bit caches"),
    "skip_softmax_threshold_scale_factor": (None, "every key is looked at"),
    "q_len_per_req": (None, "use the prefill wrapper for several queries a request"),
    "o_scale": (None, "scale the output"),
}
# How a GPU works, or what the boundaries say already.
_NO_EFFECT = {
    "use_fp16_qk_reduction", "non_blocking", "fixed_split_size", "disable_split_kv", "seq_lens",
    "seq_lens_q", "block_tables", "max_token_per_sequence", "max_sequence_kv", "qo_indptr_cpu",
    "kv_indptr_cpu", "uniform_q_len", "enable_pdl", "use_fp16_softmax", "uses_spcompress",
    "q_data_type", "kv_data_type", "o_data_type", "data_type", "backend",
}  # fmt: skip


def _others(function: str, given: dict[str, Any]) -> list[list[str]]:
    """Rows of faults for keyword arguments that have no parameter of their own here."""
    known = {name: (value, *_REFUSED[name]) for name, value in given.items() if name in _REFUSED}
    unknown = given.keys() - known.keys() - _NO_EFFECT
    return refused(function, known) + unknown_arguments(
        function, unknown, ", ".join(sorted([*_REFUSED, *_NO_EFFECT]))
    )


class _Wrapper:
    """What the wrappers share: options of a plan, and the running of it."""

    def __init__(
        self,
        float_workspace_buffer: Any = None,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        *buffers: Any,
        **others: Any,
    ) -> None:
        """Buffers are taken and not used: packattn allocates its scratch memory."""
        del float_workspace_buffer, use_cuda_graph, buffers, others
        if kv_layout not in ("NHD", "HND"):
            refuse_all([["PA1104", "kv_layout", "", repr(kv_layout), "'NHD' or 'HND'", ""]])
        self._heads_first = kv_layout == "HND"
        self._batch: PackedBatch | None = None
        self._options: dict[str, Any] = {}
        self._num_heads = (0, 0)
        self._scale: float | None = None

    def _plan(
        self, spec: BatchSpec, heads: tuple[int, int], causal: bool, window_left: int,
        soft_cap: float | None, sm_scale: float | None, rows: list[list[str]],
    ) -> None:  # fmt: skip
        with speaking(_WORDS):
            if heads[1] <= 0 or heads[0] % heads[1]:
                shown = [str(heads[0]), str(heads[1])]
                rows = [*rows, ["PA1009", "num_qo_heads", "num_kv_heads", *shown, ""]]
            found = spec.check()
            if rows or found:
                refuse_with(rows, found)
            self._batch = PackedBatch(spec)
        self._num_heads = heads
        self._options = {
            "causal": causal,
            "window": (None if window_left < 0 else window_left, None),
            "softcap": soft_cap or 0.0,
        }
        self._scale = sm_scale

    def _run(
        self, q: Any, k: Any, v: Any, scales: tuple[Any, Any, Any], out: Any, lse: Any,
        return_lse: bool, rows: list[list[str]], **options: Any,
    ) -> Any:  # fmt: skip
        function = f"{type(self).__name__}.run"
        options = {**self._options, **options}
        with speaking(_WORDS):
            if self._batch is None:
                refuse_all([["PA2001", "qo_indptr", "", "", "", "call plan first"]])
            shape = shape_of(q)
            if shape is not None and len(shape) == 3 and shape[1] != self._num_heads[0]:
                expected = ["PA1007", "q", "num_qo_heads of plan", str(shape[1])]
                rows = [*rows, [*expected, str(self._num_heads[0]), ""]]
            for name, scale in zip(("q_scale", "k_scale", "v_scale"), scales, strict=True):
                if shape_of(scale) is not None:
                    rows = [*rows, ["PA3009", name, function, "a tensor", "pass a number", ""]]
            if rows:
                refuse_with(rows, check_attention(q, k, v, self._batch, **options))
            q_scale, k_scale, v_scale = (1.0 if scale is None else scale for scale in scales)
            factor = q_scale * k_scale
            scale = self._scale
            if factor != 1 and shape is not None:
                scale = factor * (shape[-1] ** -0.5 if scale is None else scale)
            result = attention(
                q, k, v, self._batch, softmax_scale=scale, out=out, return_lse=return_lse, **options
            )
        out, natural = result if return_lse else (result, None)
        if v_scale != 1:
            out *= v_scale
        if not return_lse:
            return out
        return out, _base2(natural, lse)

    def end_forward(self) -> None:
        """Nothing: a plan is forgotten with its wrapper."""


def _base2(natural: Any, lse: Any = None) -> Any:
    """lse ``[T, H]`` of base 2 from ``[H, T]`` of base e."""
    turned = arithmetic(natural).swapaxes(natural, 0, 1) / _LN2
    if lse is None:
        return turned.contiguous() if is_torch(turned) else np.ascontiguousarray(turned)
    lse[...] = turned
    return lse


def _natural(lse: Any) -> Any:
    """The inverse of `_base2`, one head after the other."""
    turned = arithmetic(lse).swapaxes(lse, 0, 1) * _LN2
    return turned.contiguous() if is_torch(turned) else np.ascontiguousarray(turned)


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    """Packed queries over packed keys."""

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        **others: Any,
    ) -> None:
        """``qo_indptr``, ``kv_indptr`` ``[N + 1]`` int32 or int64. Window and causal mask are
        aligned to the last key."""
        del head_dim_qk, head_dim_vo, use_fp16_qk_reduction
        others |= {
            "custom_mask": custom_mask, "packed_custom_mask": packed_custom_mask,
            "pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale,
            "rope_theta": rope_theta,
        }  # fmt: skip
        rows = _others("BatchPrefillWithRaggedKVCacheWrapper.plan", others)
        spec = BatchSpec(cu_seqlens_q=qo_indptr, cu_seqlens_k=kv_indptr)
        heads = (num_qo_heads, num_kv_heads)
        self._plan(spec, heads, causal, window_left, logits_soft_cap, sm_scale, rows)

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        **others: Any,
    ) -> Any:
        """q ``[Tq, H, D]``, k ``[Tk, Hk, D]``, v ``[Tk, Hk, Dv]``."""
        rows = _jit_arguments(self, args) + _others(f"{type(self).__name__}.run", others)
        scales = (q_scale, k_scale, v_scale)
        return self._run(q, k, v, scales, out, lse, return_lse, rows)

    begin_forward = plan
    run_return_lse = partialmethod(run, return_lse=True)
    forward_return_lse = run_return_lse


def _jit_arguments(wrapper: Any, args: tuple[Any, ...]) -> list[list[str]]:
    if not args:
        return []
    remedy = "remove them: there are no generated kernels to pass them to"
    return [["PA3009", "args", f"{type(wrapper).__name__}.run", repr(len(args)), remedy, ""]]


def _pages(indptr: Any, indices: Any, last_page_len: Any, page_size: int) -> tuple[Any, Any]:
    """Key counts and a table ``[N, most pages]`` from FlashInfer's compressed form."""
    ends, numbers, last = (np.asarray(_on_host(t)) for t in (indptr, indices, last_page_len))
    counts = np.diff(ends)
    table = np.zeros((len(counts), max(1, counts.max(initial=0))), np.int32)
    for n, (start, count) in enumerate(zip(ends[:-1], counts, strict=True)):
        table[n, : max(count, 0)] = numbers[start : start + count]
    return np.where(counts > 0, (counts - 1) * page_size + last, 0).astype(np.int64), table


def _on_host(tensor: Any) -> Any:
    return tensor.cpu() if is_torch(tensor) else tensor


class _PagedWrapper(_Wrapper):
    def _cache(self, cache: Any) -> tuple[Any, Any]:
        """k and v ``[pages, page_size, Hk, D]`` as views of any of the cache's forms."""
        if not isinstance(cache, (tuple, list)):
            cache = (cache[:, 0], cache[:, 1])
        if self._heads_first:
            cache = tuple(t.swapaxes(1, 2) for t in cache)
        return cache[0], cache[1]

    def run(
        self,
        q: Tensor,
        paged_kv_cache: Any,
        *args: Any,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """``paged_kv_cache``: k and v ``[pages, page_size, Hk, D]`` (NHD) or
        ``[pages, Hk, page_size, D]`` (HND), or both in one tensor ``[pages, 2, ...]``."""
        rows = _jit_arguments(self, args) + _others(f"{type(self).__name__}.run", others)
        options: dict[str, Any] = {"sinks": sinks}
        if window_left is not None:
            options["window"] = (None if window_left < 0 else window_left, None)
        k, v = self._cache(paged_kv_cache)
        scales = (q_scale, k_scale, v_scale)
        return self._run(q, k, v, scales, out, lse, return_lse, rows, **options)

    run_return_lse = partialmethod(run, return_lse=True)
    forward_return_lse = run_return_lse


class BatchPrefillWithPagedKVCacheWrapper(_PagedWrapper):
    """Packed queries over keys in pages."""

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        **others: Any,
    ) -> None:
        """Request n has the pages ``paged_kv_indices[paged_kv_indptr[n]: paged_kv_indptr[n + 1]]``,
        of which the last one holds ``paged_kv_last_page_len[n]`` keys."""
        del head_dim_qk, head_dim_vo, use_fp16_qk_reduction
        others |= {
            "custom_mask": custom_mask, "packed_custom_mask": packed_custom_mask,
            "pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale,
            "rope_theta": rope_theta,
        }  # fmt: skip
        rows = _others("BatchPrefillWithPagedKVCacheWrapper.plan", others)
        keys, table = _pages(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        spec = BatchSpec(cu_seqlens_q=qo_indptr, seqlens_k=keys, block_table=table)
        heads = (num_qo_heads, num_kv_heads)
        self._plan(spec, heads, causal, window_left, logits_soft_cap, sm_scale, rows)

    begin_forward = plan


class BatchDecodeWithPagedKVCacheWrapper(_PagedWrapper):
    """One query a request over keys in pages: q ``[N, H, D]``."""

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
        o_data_type: Any = None,
        data_type: Any = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        **others: Any,
    ) -> None:
        """As of the prefill wrapper, with one query a request."""
        del head_dim, q_data_type, kv_data_type, o_data_type, data_type
        others |= {
            "pos_encoding_mode": pos_encoding_mode, "rope_scale": rope_scale,
            "rope_theta": rope_theta,
        }  # fmt: skip
        rows = _others("BatchDecodeWithPagedKVCacheWrapper.plan", others)
        keys, table = _pages(indptr, indices, last_page_len, page_size)
        ends = np.arange(len(keys) + 1)
        spec = BatchSpec(cu_seqlens_q=ends, seqlens_k=keys, block_table=table)
        heads = (num_qo_heads, num_kv_heads)
        self._plan(spec, heads, False, window_left, logits_soft_cap, sm_scale, rows)

    begin_forward = plan


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Any, Any]:
    """Two partial results: v ``[T, H, D]``, s ``[T, H]`` of base 2. Returns ``(v, s)``."""
    with speaking(_WORDS):
        out, natural = merge_natural(v_a, _natural(s_a), v_b, _natural(s_b))
    return out, _base2(natural)


def merge_state_in_place(
    v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None
) -> None:
    """Merges the other part into ``v`` and ``s``; ``mask`` ``[T]`` says for which rows."""
    merged, base2 = merge_state(v, s, v_other, s_other)
    if mask is None:
        v[...], s[...] = merged, base2
    else:
        chosen = mask.bool() if is_torch(mask) else np.asarray(mask, bool)
        v[chosen], s[chosen] = merged[chosen], base2[chosen]


def merge_states(v: Tensor, s: Tensor) -> tuple[Any, Any]:
    """Many partial results: v ``[T, parts, H, D]``, s ``[T, parts, H]`` of base 2, in order."""
    xp = arithmetic(v)
    parts = range(v.shape[1])
    with speaking(_WORDS):
        out = xp.zeros_like(v[:, 0]) + v[:, 0]
        natural = _natural(s[:, 0])
        for n in parts[1:]:
            merge_natural(out, natural, v[:, n], _natural(s[:, n]), out=out, lse=natural)
    return out, _base2(natural)
