# SPDX-License-Identifier: Apache-2.0
"""Boundaries of packed batches: described (`BatchSpec`) and checked (`PackedBatch`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from ._error import Fault, parse_faults, raise_refusal
from ._options import flag, plain
from ._tensors import Tensor, boundaries, shape_of

Boundaries = Tensor | Sequence[int]


@dataclass(frozen=True, eq=False)
class BatchSpec:
    """Boundaries as a caller has them, unchecked. Operations take it in place of a
    `PackedBatch` and then report faults of boundaries and tensors in one list.

    Fill exactly one form; boundaries are one-dimensional int32 or int64 tensors of any stride, on
    the host or a device, or sequences of integers:

    - ``cu_seqlens_q`` ``[N + 1]``, running ends from 0; ``cu_seqlens_k`` if the keys have their
      own; ``host_q`` and ``host_k`` are host copies of boundaries on a device;
    - ``lengths_q``, ``lengths_k`` ``[N]``, with ``starts_q``, ``starts_k`` ``[N]`` if the
      sequences lie anywhere;
    - ``cu_seqlens_q``, ``seqlens_k`` ``[N]`` and ``block_table`` ``[N, max_pages]`` int32 for keys
      in pages;
    - ``padding_mask_q``, ``padding_mask_k`` ``[B, S]``, true where there is a token;
    - ``position_ids`` ``[T]``: a 0 starts a sequence.

    ``max_seqlen_*`` are checked if given. With ``capacity`` tensors may have rows that belong to
    no sequence; their outputs are 0, their lse -inf.
    """

    cu_seqlens_q: Boundaries | None = None
    cu_seqlens_k: Boundaries | None = None
    host_q: Boundaries | None = None
    host_k: Boundaries | None = None
    lengths_q: Boundaries | None = None
    lengths_k: Boundaries | None = None
    starts_q: Boundaries | None = None
    starts_k: Boundaries | None = None
    seqlens_k: Boundaries | None = None
    block_table: Tensor | None = None
    padding_mask_q: Tensor | None = None
    padding_mask_k: Tensor | None = None
    position_ids: Boundaries | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None
    capacity: bool = False

    def check(self) -> list[Fault]:
        """Every fault of the description; empty if `PackedBatch` would take it."""
        return parse_faults(_native.check_batch(*self._parts())[1])

    def _parts(self) -> tuple[Any, ...]:
        return (
            boundaries(self.cu_seqlens_q),
            boundaries(self.cu_seqlens_k),
            boundaries(self.host_q),
            boundaries(self.host_k),
            boundaries(self.lengths_q),
            boundaries(self.lengths_k),
            boundaries(self.starts_q),
            boundaries(self.starts_k),
            boundaries(self.seqlens_k),
            boundaries(self.block_table),
            boundaries(self.padding_mask_q),
            boundaries(self.padding_mask_k),
            boundaries(self.position_ids),
            plain(self.max_seqlen_q),
            plain(self.max_seqlen_k),
            flag(self.capacity),
        )


_NO_MORE_PARTS = (None,) * 14 + (False,)


class PackedBatch:
    """The boundaries of a packed batch, checked once and reused by every call.

    Immutable and usable from many threads. Boundaries on the host are copied in; boundaries on a
    device are kept alive. Make one with a factory or from a `BatchSpec`; each raises
    `packattn.Error` with every PA2xxx fault found.
    """

    __slots__ = ("__weakref__", "_facts", "_handle", "_spec")

    def __init__(self, spec: BatchSpec | None = None, **description: Any) -> None:
        """From a description, or from its fields as keyword arguments."""
        if spec is None:
            spec = BatchSpec(**description)
        elif description:
            raise TypeError("PackedBatch takes a BatchSpec or its fields by name, not both")
        elif not isinstance(spec, BatchSpec):
            allowed = "a BatchSpec, or its fields by name (cu_seqlens_q=...)"
            found = f"a {type(spec).__name__}"
            raise_refusal(_native.refuse([["PA1104", "spec", "", found, allowed, ""]]))
        made = _native.make_batch(*spec._parts())
        if type(made).__name__ == "Array":
            raise_refusal(made)
        self._handle = made
        # Boundaries on a device stay the caller's memory: the description keeps them alive.
        self._spec = spec
        self._facts: tuple[int, ...] | None = None

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_q: Boundaries,
        cu_k: Boundaries | None = None,
        *,
        host_q: Boundaries | None = None,
        host_k: Boundaries | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        capacity: bool = False,
    ) -> PackedBatch:
        """From running ends ``[N + 1]``, first entry 0. Without ``cu_k`` the keys share them."""
        return cls(
            BatchSpec(
                cu_seqlens_q=cu_q,
                cu_seqlens_k=cu_k,
                host_q=host_q,
                host_k=host_k,
                max_seqlen_q=max_seqlen_q,
                max_seqlen_k=max_seqlen_k,
                capacity=capacity,
            )
        )

    @classmethod
    def from_lengths(
        cls, q: Boundaries, k: Boundaries | None = None, *, capacity: bool = False
    ) -> PackedBatch:
        """From the lengths ``[N]`` of sequences that lie end to end."""
        return cls(BatchSpec(lengths_q=q, lengths_k=k, capacity=capacity))

    @classmethod
    def from_starts_and_lengths(
        cls,
        starts_q: Boundaries,
        lengths_q: Boundaries,
        starts_k: Boundaries | None = None,
        lengths_k: Boundaries | None = None,
        *,
        capacity: bool = False,
    ) -> PackedBatch:
        """From starts and lengths ``[N]``. Gaps are legal; query ranges may not overlap."""
        return cls(
            BatchSpec(
                starts_q=starts_q,
                lengths_q=lengths_q,
                starts_k=starts_k,
                lengths_k=lengths_k,
                capacity=capacity,
            )
        )

    @classmethod
    def from_padding_mask(cls, mask_q: Tensor, mask_k: Tensor | None = None) -> PackedBatch:
        """From masks ``[B, S]``, true or non-zero where there is a token."""
        return cls(BatchSpec(padding_mask_q=mask_q, padding_mask_k=mask_k))

    @classmethod
    def from_position_ids(cls, position_ids: Boundaries) -> PackedBatch:
        """From position ids ``[T]`` or ``[1, T]``: a 0 starts a sequence."""
        return cls(BatchSpec(position_ids=position_ids))

    @classmethod
    def paged(
        cls,
        cu_q: Boundaries,
        seqlens_k: Boundaries,
        block_table: Tensor,
        *,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        capacity: bool = False,
    ) -> PackedBatch:
        """Queries packed, keys in pages of a cache: ``block_table`` ``[N, max_pages]`` int32."""
        return cls(
            BatchSpec(
                cu_seqlens_q=cu_q,
                seqlens_k=seqlens_k,
                block_table=block_table,
                max_seqlen_q=max_seqlen_q,
                max_seqlen_k=max_seqlen_k,
                capacity=capacity,
            )
        )

    def _fact(self, index: int) -> int:
        if self._facts is None:
            self._facts = tuple(_native.describe_batch(self._handle))
        return self._facts[index]

    def __copy__(self) -> PackedBatch:
        return self  # immutable

    def __deepcopy__(self, _: Any) -> PackedBatch:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a PackedBatch belongs to its process; pickle the BatchSpec to make it of")

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"PackedBatch({self.size} sequences, {self.rows_q} query, {self.rows_k} key tokens)"

    @property
    def size(self) -> int:
        """Number of sequences."""
        return self._fact(0)

    @property
    def rows_q(self) -> int:
        """Query rows that the boundaries need at least."""
        return self._fact(1)

    @property
    def rows_k(self) -> int:
        """Key rows that the boundaries need at least."""
        return self._fact(2)

    @property
    def max_seqlen_q(self) -> int:
        return self._fact(3)

    @property
    def max_seqlen_k(self) -> int:
        return self._fact(4)

    @property
    def host_known(self) -> bool:
        """Whether the values are known on the host."""
        return bool(self._fact(5))

    @property
    def capacity(self) -> bool:
        """Whether tensors may have rows that belong to no sequence."""
        return bool(self._fact(6))

    @property
    def is_paged(self) -> bool:
        return bool(self._fact(7))

    @property
    def shares_boundaries(self) -> bool:
        """Whether the keys use the queries' boundaries."""
        return bool(self._fact(8))

    @property
    def sequences(self) -> np.ndarray:
        """``[N, 4]`` int64: q_start, q_length, k_start, k_length. Empty if only a device knows."""
        rows = np.empty((self.size if self.host_known else 0, 4), np.int64)
        if rows.size:
            _native.sequences(self._handle, rows)
        return rows

    @property
    def lengths_q(self) -> np.ndarray:
        return self.sequences[:, 1]

    @property
    def lengths_k(self) -> np.ndarray:
        return self.sequences[:, 3]

    def block_table(self, sequence: int) -> list[int]:
        """Page numbers of one sequence of a paged batch: its row of the table."""
        if not 0 <= sequence < self.size:
            raise IndexError(f"sequence {sequence} of {self.size}")
        return list(_native.block_table_row(self._handle, sequence))

    def actual_seq_lengths_q(self) -> list[int]:
        """Running ends of the non-empty query ranges, as NPU operators take them."""
        return list(_native.actual_seq_lengths(self._handle, False))

    def actual_seq_lengths_kv(self) -> list[int]:
        """Running ends of the non-empty key ranges, as NPU operators take them."""
        return list(_native.actual_seq_lengths(self._handle, True))

    def _padded_length(self, side: str) -> int:
        """Second dimension of the padded form that `unpack` writes."""
        mask = self._spec.padding_mask_k if side == "key" else None
        shape = shape_of(self._spec.padding_mask_q if mask is None else mask)
        if shape is not None:
            return shape[1]
        return self.max_seqlen_k if side == "key" else self.max_seqlen_q


BatchLike = PackedBatch | BatchSpec | Boundaries


def batch_arguments(batch: Any) -> tuple[Any, ...]:
    """The boundaries of a native operation."""
    if isinstance(batch, PackedBatch):
        return (batch._handle,)
    if isinstance(batch, BatchSpec):
        return batch._parts()
    return (boundaries(batch), *_NO_MORE_PARTS)


def sequence_count(batch: Any) -> int | None:
    """How many sequences a batch has, as far as its form tells; None if it does not."""
    if isinstance(batch, PackedBatch):
        return batch.size
    if isinstance(batch, BatchSpec):
        if batch.cu_seqlens_q is None:
            return _length(batch.lengths_q)
        batch = batch.cu_seqlens_q
    entries = _length(batch)
    return entries - 1 if entries else None


def _length(value: Any) -> int | None:
    shape = (len(value),) if isinstance(value, (list, tuple, range)) else shape_of(value)
    return shape[0] if shape else None
