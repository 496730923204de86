# SPDX-License-Identifier: Apache-2.0
"""PackedBatch and its factories, pack and unpack."""

import numpy as np
import packattn
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

PackedBatch = packattn.PackedBatch


def test_what_a_batch_knows():
    batch = PackedBatch.from_cu_seqlens([0, 2, 2, 7], [0, 3, 4, 4])
    assert batch.size == len(batch) == 3
    assert batch.sequences.tolist() == [[0, 2, 0, 3], [2, 0, 3, 1], [2, 5, 4, 0]]
    assert batch.lengths_q.tolist() == [2, 0, 5] and batch.lengths_k.tolist() == [3, 1, 0]
    assert (batch.rows_q, batch.rows_k) == (7, 4)
    assert (batch.max_seqlen_q, batch.max_seqlen_k) == (5, 3)
    assert batch.host_known and not batch.capacity and not batch.is_paged
    assert not batch.shares_boundaries
    assert PackedBatch.from_cu_seqlens([0, 2]).shares_boundaries
    assert batch.actual_seq_lengths_q() == [2, 7] and batch.actual_seq_lengths_kv() == [3, 4]
    assert repr(batch) == "PackedBatch(3 sequences, 7 query, 4 key tokens)"


def test_every_factory_makes_the_same_batch(kind):
    want = PackedBatch.from_cu_seqlens([0, 3, 3, 5]).sequences.tolist()
    mask = np.array([[1, 1, 1], [0, 0, 0], [1, 1, 0]], bool)
    for batch in (
        PackedBatch.from_cu_seqlens(kind(np.array([0, 3, 3, 5], np.int32))),
        PackedBatch.from_lengths([3, 0, 2]),
        PackedBatch.from_lengths(kind(np.array([3, 0, 2]))),
        PackedBatch.from_starts_and_lengths([0, 3, 3], [3, 0, 2]),
        PackedBatch.from_padding_mask(kind(mask)),
        PackedBatch.from_padding_mask(kind(mask.astype(np.int64))),
        PackedBatch(cu_seqlens_q=[0, 3, 3, 5]),
        PackedBatch(packattn.BatchSpec(lengths_q=[3, 0, 2])),
    ):
        assert batch.sequences.tolist() == want
    ids = PackedBatch.from_position_ids(kind(np.array([0, 1, 2, 0, 1])))
    assert ids.lengths_q.tolist() == [3, 2]


def test_faults_of_a_description():
    spec = packattn.BatchSpec(cu_seqlens_q=[1, 4, 2], max_seqlen_q=1)
    found = spec.check()
    assert {"PA2005", "PA2007"} <= {fault.code for fault in found}
    with pytest.raises(packattn.Error) as caught:
        PackedBatch(spec)
    assert list(caught.value.faults) == found
    with pytest.raises(packattn.Error) as caught:
        PackedBatch.from_cu_seqlens([0, 5, 12, 15], [0, 9, 21])
    assert caught.value.code == "PA2009"
    with pytest.raises(packattn.Error) as caught:
        PackedBatch.from_cu_seqlens([0, 2, 7], max_seqlen_q=2)
    assert caught.value.code == "PA2012"
    PackedBatch.from_cu_seqlens([0, 2, 7], max_seqlen_q=7)
    with pytest.raises(packattn.Error) as caught:
        PackedBatch.from_cu_seqlens("0 2 7")
    assert caught.value.code == "PA1104"


def test_capacity_clears_spare_rows(rng, kind):
    q = kind(rng.standard_normal((6, 2, 8), np.float32))
    batch = PackedBatch.from_cu_seqlens([0, 2, 4], capacity=True)
    out, lse = packattn.attention(q, q, q, batch, return_lse=True)
    assert not np.asarray(out)[4:].any() and np.isneginf(np.asarray(lse)[:, 4:]).all()
    with pytest.raises(packattn.Error) as caught:
        packattn.attention(q, q, q, [0, 2, 4])
    assert caught.value.code == "PA2008"


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5), masked=st.booleans())
def test_unpack_undoes_pack(lengths, masked):
    width = max(lengths) + 1
    mask = np.arange(width)[None, :] < np.array(lengths)[:, None]
    batch = PackedBatch.from_padding_mask(mask) if masked else PackedBatch.from_lengths(lengths)
    padded = np.random.default_rng(0).standard_normal((len(lengths), width, 3, 2))
    packed = packattn.pack(padded, batch)
    assert np.array_equal(packed, padded[mask])
    back = packattn.unpack(packed, batch, out=np.full_like(padded, np.nan))
    assert np.array_equal(back, np.where(mask[..., None, None], padded, 0))
    made = packattn.unpack(packed, batch)
    assert made.shape[1] == (width if masked else max(lengths))
    assert np.array_equal(made, back[:, : made.shape[1]])


def test_pack_keeps_kind_and_type(kind):
    padded = kind(np.arange(24, dtype=np.int16).reshape(2, 3, 4))
    packed = packattn.pack(padded, [0, 1, 4])
    assert isinstance(packed, kind.type()) and packed.dtype == padded.dtype
    assert packed.tolist() == [padded[0, 0].tolist(), *padded[1].tolist()]
    with pytest.raises(packattn.Error) as caught:
        packattn.pack(padded, [0, 1, 4], side="keys")
    assert caught.value.code == "PA1104"
    with pytest.raises(packattn.Error) as caught:
        packattn.unpack([1, 2], [0, 2])
    assert caught.value.code == "PA1104"
