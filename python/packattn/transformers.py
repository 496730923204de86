# SPDX-License-Identifier: Apache-2.0
"""packattn as an attention implementation of Hugging Face transformers (4.53 and later;
encoders such as BERT have the interface from 5 on).

``import packattn.transformers`` registers it; then::

    model = AutoModel.from_pretrained(path, attn_implementation="packattn")

Padded batches work as they are: padding is left out of the computation, and nothing is copied if
each row's tokens are contiguous. Packed batches, ``input_ids`` ``[1, T]`` with ``position_ids``,
``cu_seq_lens_q`` and ``cu_seq_lens_k`` as for flash-attention, spend nothing on padding anywhere in
the model; `packed_inputs` makes them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask

from ._attention import attention
from ._batch import BatchSpec, PackedBatch
from ._error import raise_refusal
from ._native import refuse
from ._pack import pack, unpack

NAME = "packattn"


def packed_inputs(sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Keyword arguments of a model for token ids of several texts, without padding."""
    lengths = [len(ids) for ids in sequences]
    ends = torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32))
    longest = max(lengths, default=0)
    return {
        "input_ids": torch.tensor([[token for ids in sequences for token in ids]]),
        "position_ids": torch.cat([torch.arange(n) for n in [0, *lengths]])[None],
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query, key, value ``[B, H, S, D]``. Returns ``([B, S, H, D], None)``."""
    if dropout > 0:
        remedy = "call model.eval(), or set the model's attention dropout to 0"
        raise_refusal(refuse([["PA3009", "dropout", NAME, repr(dropout), remedy, ""]]))
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    rows, length = query.shape[:2]
    causal = bool(module.is_causal if is_causal is None else is_causal)
    reach = None if sliding_window is None else sliding_window - 1
    options = {
        "causal": causal,
        "window": (reach, None if causal else reach),
        "softmax_scale": scaling,
        "softcap": softcap or 0.0,
        "sinks": s_aux,
    }
    if cu_seq_lens_q is not None:
        spec = BatchSpec(cu_seqlens_q=cu_seq_lens_q, cu_seqlens_k=cu_seq_lens_k)
        return attention(query[0], key[0], value[0], spec, **options)[None], None
    positions = kwargs.get("position_ids")
    if attention_mask is None and rows == 1 and positions is not None and length == key.shape[1]:
        batch = _from_positions(positions)
        if batch is not None:
            return attention(query[0], key[0], value[0], batch, **options)[None], None
    if attention_mask is not None and attention_mask.shape[1] < key.shape[1]:
        key, value = (t[:, : attention_mask.shape[1]] for t in (key, value))
    batch, whole = _from_mask(attention_mask, rows, length, key.shape[1])
    if whole:
        flat = [_flat(t) for t in (query, key, value)]
        out = attention(*flat, batch, **options)
        return out.reshape(rows, length, *out.shape[1:]), None
    packed = [pack(query, batch), *(pack(t, batch, side="key") for t in (key, value))]
    out = attention(*packed, batch, **options)
    shape = (rows, length, *out.shape[1:])
    return unpack(out, batch, out=out.new_empty(shape)), None


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    # A cache may hold heads before tokens; then this is the one copy of a padded batch.
    return tensor.reshape(-1, *tensor.shape[2:])


class _Remembered:
    """The batch of the last tensor, because every layer of a model passes the same one."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = (None,)

    def get(self, tensor: torch.Tensor, shape: tuple[int, ...], make: Any) -> Any:
        if tensor.is_inference():  # has no version to tell whether it was written to since
            return make()
        state = (tensor._version, shape)
        reference, *rest = self._last
        if reference is not None and reference() is tensor and rest[0] == state:
            return rest[1]
        made = make()
        self._last = (weakref.ref(tensor), state, made)
        return made


_masks, _positions = _Remembered(), _Remembered()


def _from_positions(positions: torch.Tensor) -> PackedBatch | None:
    """The batch of packed position ids; None if they are of one sequence or follow no such rule."""

    def make() -> PackedBatch | None:
        ids = positions.reshape(-1)
        if positions.shape[0] != 1 or int((ids == 0).sum()) < 2 or int(ids[0]) != 0:
            return None
        return PackedBatch.from_position_ids(ids)

    return _positions.get(positions, tuple(positions.shape), make)


def _from_mask(
    mask: torch.Tensor | None, rows: int, length_q: int, length_k: int
) -> tuple[PackedBatch, bool]:
    """The batch of a padding mask ``[B, Sk]`` whose last columns are the queries', and whether it
    describes rows of the padded tensors rather than of packed ones."""
    if mask is None:
        every = np.arange(rows)
        return PackedBatch.from_starts_and_lengths(
            every * length_q, np.full(rows, length_q), every * length_k, np.full(rows, length_k)
        ), True

    def make() -> tuple[PackedBatch, bool]:
        keys = mask.bool().numpy()
        queries = keys[:, length_k - length_q :]
        starts_q, lengths_q, whole_q = _runs(queries)
        starts_k, lengths_k, whole_k = _runs(keys)
        if whole_q and whole_k:
            return PackedBatch.from_starts_and_lengths(
                starts_q, lengths_q, starts_k, lengths_k, capacity=True
            ), True
        masks = [np.ascontiguousarray(m) for m in (queries, keys)]
        return PackedBatch.from_padding_mask(*masks), False

    return _masks.get(mask, (rows, length_q, length_k), make)


def _runs(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Starts among all rows and lengths of each row's tokens, and whether they are contiguous."""
    rows, width = mask.shape
    lengths = mask.sum(1)
    first = mask.argmax(1) if width else np.zeros(rows, np.int64)
    columns = np.arange(width)
    expected = (columns >= first[:, None]) & (columns < (first + lengths)[:, None])
    return np.arange(rows) * width + first, lengths, bool((mask == expected).all())


AttentionInterface.register(NAME, attention_forward)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, flash_attention_mask)
