# SPDX-License-Identifier: Apache-2.0
"""Copies between padded ``[B, S, ...]`` and packed ``[T, ...]`` tensors."""

from __future__ import annotations

from typing import Any

from . import _native
from ._batch import BatchLike, BatchSpec, PackedBatch
from ._options import SIDE, Side, choice
from ._tensors import Tensor, allocated_here, empty, gradient_faults, shape_of, view


def pack(
    padded: Tensor, batch: BatchLike, *, side: Side = "query", out: Tensor | None = None
) -> Any:
    """Copies the tokens of ``padded`` ``[B, S, ...]`` to a packed tensor ``[T, ...]``.

    A batch made from a padding mask takes the masked positions; any other takes positions
    0 .. length - 1 of each row.

    :param side: whether the rows follow the ``"query"`` or the ``"key"`` boundaries.
    :param out: same dtype and trailing shape as ``padded``; made if not given.
    :raises packattn.Error: PA1xxx, PA2xxx.
    """
    checked = ready(batch)
    found = gradient_faults("pack", padded=padded, out=out)
    if out is None:
        shape = shape_of(padded)
        if shape is not None and len(shape) >= 2:
            rows = checked.rows_k if side == "key" else checked.rows_q
            out = empty((rows, *shape[2:]), padded)
        found += allocated_here("packed") if out is None else []
    _native.call(
        _native.pack, found or None, view(padded), view(out), choice(SIDE, side), checked._handle
    )
    return out


def unpack(
    packed: Tensor, batch: BatchLike, *, side: Side = "query", out: Tensor | None = None
) -> Any:
    """The inverse of `pack`: ``[T, ...]`` to ``[B, S, ...]``; positions without a token become 0.

    :param out: made if not given, with S the width of the batch's mask, or else its longest
        sequence.
    :raises packattn.Error: PA1xxx, PA2xxx.
    """
    checked = ready(batch)
    found = gradient_faults("unpack", packed=packed, out=out)
    if out is None:
        shape = shape_of(packed)
        if shape:
            out = empty((checked.size, checked._padded_length(side), *shape[1:]), packed)
        found += allocated_here("padded") if out is None else []
    _native.call(
        _native.unpack, found or None, view(packed), view(out), choice(SIDE, side), checked._handle
    )
    return out


def ready(batch: Any) -> PackedBatch:
    """The batch itself, or the one that a description makes."""
    if isinstance(batch, PackedBatch):
        return batch
    return PackedBatch(batch if isinstance(batch, BatchSpec) else BatchSpec(cu_seqlens_q=batch))
