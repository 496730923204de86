# SPDX-License-Identifier: Apache-2.0
"""What flash-attention 2 and 3 have in common: dense calls, key caches, their words."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._attention import attention, check_attention
from .._batch import BatchSpec
from .._error import Error
from .._options import plain
from .._tensors import empty, is_torch, shape_of
from ._peer import (
    PeerError,
    arithmetic,
    by_rows,
    even_batch,
    flat_rows,
    refuse_with,
    speaking,
    worded,
)

# Messages of the C++ checks, by the code of the same fault here. Both versions share most.
WORDS = worded(
    {
        "PA1004 k": "query and key must have the same dtype",
        "PA1004 v": "query and value must have the same dtype",
        "PA1005": "FlashAttention only support fp16 and bf16 data type",
        "PA1009": "Number of heads in key/value must divide number of heads in query",
        "PA1011": "Input tensor must have contiguous last dimension",
        "PA1006 v": "v must have shape (total_k, num_heads_k, head_size)",
        "PA1007 v": "v must have shape (total_k, num_heads_k, head_size)",
        "PA1008 k": "k must have shape (total_k, num_heads_k, head_size)",
        "PA2002": "{argument} must have shape (batch_size + 1)",
        "PA2003": "{argument} must have dtype int32",
        "PA2009": "cu_seqlens_k must have shape (batch_size + 1)",
    }
)


def raising() -> Any:
    return speaking(WORDS, PeerError)


def varlen(
    q: Any, k: Any, v: Any, spec: BatchSpec, rows: list[list[str]], want_lse: bool, options: Any
) -> Any:
    """One packed call; ``rows`` are faults of arguments that packattn cannot honour."""
    if rows:
        refuse_with(rows, check_attention(q, k, v, spec, **options))
    return attention(q, k, v, spec, return_lse=want_lse, **options)


def dense(q: Any, k: Any, v: Any, rows: list[list[str]], want_lse: bool, options: Any) -> Any:
    """q, k, v ``[B, S, H, D]``: out ``[B, S, H, D]`` and lse ``[B, H, S]``, or None."""
    shapes = [shape_of(t) for t in (q, k, v)]
    for name, shape in zip("qkv", shapes, strict=True):
        if shape is None or len(shape) != 4:
            rank = "None" if shape is None else str(len(shape))
            rows = [*rows, ["PA1002", name, "", rank, "4 ([B, S, H, D])", ""]]
    if not rows and any(shape[0] != shapes[0][0] for shape in shapes):
        shown = ", ".join(str(list(shape)) for shape in shapes)
        rows = [["PA1010", "k", "", shown, "the same batch size as q", ""]]
    if rows:
        refuse_with(rows, ())
    count, length = shapes[0][:2]
    flat = [flat_rows(t) for t in (q, k, v)]
    if all(t is not None for t in flat):
        batch = even_batch(count, length, shapes[1][1])
        out, lse = attention(*flat, batch, return_lse=True, **options)
        out, lse = out.reshape(count, length, *out.shape[1:]), by_rows(lse, count)
    else:
        # No view has the rows of such strides one after the other. Row by row gives the same bits.
        out = empty((count, length, shapes[0][2], shapes[2][3]), q)
        lse = empty((count, shapes[0][2], length), q, "float32")
        slopes = options.get("alibi_slopes")
        for b in range(count):
            own = slopes[b] if slopes is not None and slopes.ndim == 2 else slopes
            attention(
                q[b], k[b], v[b], even_batch(1, length, shapes[1][1]), out=out[b], lse=lse[b],
                **{**options, "alibi_slopes": own},
            )  # fmt: skip
    return out, lse if want_lse else None


class Cache:
    """Keys and values ``[pages, page_size, Hk, D]`` of N sequences, with room for new ones.

    A cache without a table is one page a sequence, as long as the cache: any strides will do.
    """

    def __init__(
        self, k: Any, v: Any, sequences: int, lengths: Any, table: Any, indices: Any
    ) -> None:
        self.k, self.v = k, v
        size = shape_of(k)[1]
        if table is None:
            table = np.arange(sequences) if indices is None else _host(indices)
            table = table.reshape(-1, 1).astype(np.int32)
        elif indices is not None:  # rows of the table are those of the cache
            table = _host(table)[_host(indices)]
        self.table = _host(table)
        if lengths is None:
            lengths = size * self.table.shape[1]
        self.lengths = np.broadcast_to(_host(lengths), (sequences,)).astype(np.int64)

    def spec(self, cu_seqlens_q: Any, added: Any = 0, **fields: Any) -> BatchSpec:
        """The batch once ``added`` keys of each sequence are in the cache."""
        return BatchSpec(
            cu_seqlens_q=cu_seqlens_q,
            seqlens_k=self.lengths + added,
            block_table=self.table.astype(np.int32),
            **fields,
        )

    def append(self, k: Any, v: Any, added: np.ndarray) -> None:
        """Writes new rows ``[sum(added), Hk, D]`` behind the keys that are there."""
        sequence = np.repeat(np.arange(len(added)), added)
        within = np.arange(added.sum()) - np.repeat(np.cumsum(added) - added, added)
        at = self.lengths[sequence] + within
        size = shape_of(self.k)[1]
        page, row = self.table[sequence, at // size], at % size
        if is_torch(self.k):
            torch = arithmetic(self.k)
            page, row = (torch.from_numpy(np.ascontiguousarray(i)).long() for i in (page, row))
        self.k[page, row] = k
        self.v[page, row] = v


def _host(values: Any) -> np.ndarray:
    if is_torch(values):
        values = values.cpu().numpy()
    return np.asarray(values)


def with_cache(
    q: Any, cache: tuple[Any, Any], new: tuple[Any, Any], lengths: Any, table: Any, indices: Any,
    cu_seqlens_q: Any, cu_seqlens_new: Any, rows: list[list[str]], options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Appends new keys, then attends. q ``[B, S, H, D]``, or packed with its boundaries."""
    wanted = {"q": 4 if cu_seqlens_q is None else 3, "k_cache": 4, "v_cache": 4}
    for (name, rank), tensor in zip(wanted.items(), (q, *cache), strict=True):
        shape = shape_of(tensor)
        if shape is None or len(shape) != rank:
            shown = "None" if shape is None else str(len(shape))
            rows = [*rows, ["PA1002", name, "", shown, str(rank), ""]]
    if rows:
        refuse_with(rows, ())
    if cu_seqlens_q is None:
        sequences, length = q.shape[:2]
        ends = np.arange(sequences + 1) * length
        packed = flat_rows(q)
        packed = q.reshape(-1, *q.shape[2:]) if packed is None else packed  # queries are few
    else:
        sequences, ends, packed = shape_of(cu_seqlens_q)[0] - 1, cu_seqlens_q, q
    store = Cache(*cache, sequences, lengths, table, indices)
    added = np.zeros(sequences, np.int64)
    if new[0] is not None:
        if cu_seqlens_new is None:
            added += new[0].shape[1]
            new = tuple(t.reshape(-1, *t.shape[2:]) for t in new)
        else:
            added = np.diff(_host(cu_seqlens_new))
    spec = store.spec(ends, added, capacity=cu_seqlens_q is not None)
    if added.any():
        # Nothing may be written for a call that is refused afterwards.
        found = check_attention(packed, *cache, spec, **options)
        found += [f for t in new for f in check_new_rows(t, cache[0], added)]
        if found:
            refuse_with([], found)
        store.append(*new, added)
    out, lse = attention(packed, *cache, spec, return_lse=True, **options)
    if cu_seqlens_q is None:
        return out.reshape(*q.shape[:2], *out.shape[1:]), by_rows(lse, sequences)
    return out, lse


def check_new_rows(new: Any, cache: Any, added: np.ndarray) -> list[Any]:
    """Faults of rows that are to be written into the cache."""
    wanted = (int(added.sum()), *shape_of(cache)[2:3])
    shape = shape_of(new)
    if shape is not None and shape[:2] == wanted and new.dtype == cache.dtype:
        return []
    try:
        shown = "None" if shape is None else f"{list(shape)} {new.dtype}"
        row = ["PA1010", "k and v", "", shown, f"{[*wanted, 'D']} {cache.dtype}", ""]
        refuse_with([row], ())
    except Error as error:
        return list(error.faults)


def causal_alibi_lse(lse: Any, slopes: Any, batch: Any) -> Any:
    """flash-attention 2 adds ``slope * j`` where ALiBi is ``-slope * |i + shift - j|``: for causal
    calls its lse is larger by ``slope * (i + shift)``, and a row's softmax is the same."""
    position = np.zeros(lse.shape[-1], np.float32)
    owner = np.zeros(lse.shape[-1], np.int64)
    for n, (start, length, _, keys) in enumerate(batch.sequences):
        position[start : start + length] = np.arange(length) + keys - length
        owner[start : start + length] = n
    if is_torch(lse):
        torch = arithmetic(lse)
        position, owner = (torch.from_numpy(t).to(lse.device) for t in (position, owner))
        slopes = slopes.to(lse.device)
    per_row = slopes[owner].T if slopes.ndim == 2 else slopes[:, None]
    return lse + per_row * position


def numbers(**values: Any) -> dict[str, Any]:
    """Lengths that libraries also pass as tensors of one element."""
    return {name: plain(value) for name, value in values.items()}
