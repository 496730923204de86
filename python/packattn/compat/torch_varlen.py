# SPDX-License-Identifier: Apache-2.0
"""``torch.nn.attention.varlen``, argument for argument, forward only."""

from __future__ import annotations

from typing import Any

from .._attention import attention
from .._batch import BatchSpec
from .._tensors import Tensor, shape_of
from ._flash import numbers
from ._peer import refuse_with, speaking, window_of, worded

_WORDS = worded(
    {
        "PA1104 window": "window_size must have length 2, got {value}",
        "PA1009": "Expect number of query heads to be a multiple of kv heads for GQA but got "
        "Hq={value} and Hkv={limit}.",
        "PA1007 key": "Expect query and key/value to have the same number of heads but got "
        "Hq={value} and Hkv={limit}. Try setting enable_gqa=True for GQA.",
        "PA1004 k": "query and key must have the same dtype",
        "PA1004 v": "query and value must have the same dtype",
        "PA1011": "Input tensor must have contiguous last dimension",
        "PA2009": "cu_seqlens_k must have shape (batch_size + 1)",
    }
)


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Any:
    """query ``[Tq, Hq, D]``, key and value ``[Tk, Hk, D]``, or pages with ``block_table``.

    Causal is ``window_size=(-1, 0)``, or ``is_causal`` of older versions. Returns out, or
    ``(out, lse)`` if ``return_aux.lse``: lse ``[Hq, Tq]``, as torch's kernels give it.
    """
    return _attend(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal, return_aux, scale,
        window_size, enable_gqa, seqused_k, block_table, None,
    )  # fmt: skip


def varlen_attn_out(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Any:
    """`varlen_attn` into ``out``."""
    return _attend(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, False, return_aux, scale,
        window_size, enable_gqa, seqused_k, block_table, out,
    )  # fmt: skip


def _attend(
    query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: Any, max_k: Any,
    is_causal: bool, return_aux: Any, scale: Any, window_size: Any, enable_gqa: bool,
    seqused_k: Any, block_table: Any, out: Any,
) -> Any:  # fmt: skip
    with speaking(_WORDS):
        q_shape, k_shape = shape_of(query), shape_of(key)
        if not enable_gqa and q_shape is not None and k_shape is not None:
            heads = (q_shape[-2:-1], k_shape[-2:-1])
            if heads[0] != heads[1] and all(heads):
                row = ["PA1007", "key", "enable_gqa=False", str(heads[0][0]), str(heads[1][0]), ""]
                refuse_with([row], ())
        lengths = numbers(max_seqlen_q=max_q, max_seqlen_k=max_k)
        if block_table is not None:
            used = seqused_k
            if used is None and cu_seq_k is not None:
                used = cu_seq_k[1:] - cu_seq_k[:-1]
            spec = BatchSpec(
                cu_seq_q, seqlens_k=used, block_table=block_table, capacity=True, **lengths
            )
        elif seqused_k is not None:
            spec = BatchSpec(
                starts_q=cu_seq_q[:-1],
                lengths_q=cu_seq_q[1:] - cu_seq_q[:-1],
                starts_k=cu_seq_k[:-1],
                lengths_k=seqused_k,
                capacity=True,
            )
        else:
            spec = BatchSpec(cu_seq_q, cu_seq_k, capacity=True, **lengths)
        return attention(
            query, key, value, spec, softmax_scale=scale, causal=is_causal, out=out,
            window=window_of(window_size), return_lse=bool(getattr(return_aux, "lse", False)),
        )  # fmt: skip
