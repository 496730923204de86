# SPDX-License-Identifier: Apache-2.0
"""packattn.models.kda against a model of plain torch in fp64, from the same parameters."""

import packattn
import pytest

torch = pytest.importorskip("torch")

from kda_model_reference import logits  # noqa: E402
from packattn.models.kda import KdaCache, KdaConfig, KdaForCausalLM  # noqa: E402

pytestmark = pytest.mark.torch
BASE = {
    "model_type": "kda", "hidden_size": 48, "num_hidden_layers": 3, "vocab_size": 61,
    "num_heads": 2, "num_v_heads": None, "head_dim": 16, "expand_v": 1.0, "use_short_conv": True,
    "conv_size": 4, "allow_neg_eigval": False, "safe_gate": False, "lower_bound": None,
    "intermediate_size": 64, "norm_eps": 1e-6, "attn": None, "hidden_act": "swish",
    "fuse_norm": True, "pad_token_id": 0,
}  # fmt: skip
HYBRID = {"layers": [1], "num_heads": 4, "num_kv_heads": 2, "qkv_bias": True, "window_size": None}
KINDS = {
    "kda": {},
    "hybrid": {"attn": HYBRID},
    "window": {"attn": [{**HYBRID, "window_size": 5, "rope_theta": 500.0}]},
    "grouped": {"num_v_heads": 4, "expand_v": 2.0, "allow_neg_eigval": True},
    "bounded": {"safe_gate": True, "lower_bound": -5.0, "use_short_conv": False},
}
LENGTHS = (7, 1, 30, 18)


def made(kind):
    torch.manual_seed(0)
    config = {**BASE, **KINDS[kind]}
    model = KdaForCausalLM(KdaConfig.from_dict(config))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(1.5)
    return model, config


def texts():
    return [torch.randint(61, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]


@pytest.mark.parametrize("mode", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_reference(kind, mode):
    model, config = made(kind)
    batch = packattn.PackedBatch.from_lengths(LENGTHS)
    got = model(torch.cat(texts()), batch, mode=mode).split(LENGTHS)
    for own, ids in zip(got, texts(), strict=True):
        want = logits(model.state_dict(), config, ids)
        assert (own - want).norm() < 1e-5 * want.norm()


@pytest.mark.parametrize("kind", ["hybrid", "window", "grouped"])
def test_a_sequence_alone_gives_the_same(kind):
    model, _ = made(kind)
    got = model(torch.cat(texts()), packattn.PackedBatch.from_lengths(LENGTHS)).split(LENGTHS)
    # torch's own matrix products round by the number of their rows, so not bit for bit.
    for own, ids in zip(got, texts(), strict=True):
        assert torch.allclose(own, model(ids, [0, len(ids)]), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_in_pieces_and_decoding(kind):
    model, _ = made(kind)
    whole = model(torch.cat(texts()), packattn.PackedBatch.from_lengths(LENGTHS)).split(LENGTHS)
    cache = KdaCache(model, len(LENGTHS), capacity=30)
    done = [0] * len(LENGTHS)
    rows = [[] for _ in LENGTHS]
    for step in (3, 9, 0, 1, 1, 1, 40):
        now = [min(step, n - d) for n, d in zip(LENGTHS, done, strict=True)]
        ids = torch.cat([t[d : d + n] for t, d, n in zip(texts(), done, now, strict=True)])
        mode = "fused_recurrent" if max(now) <= 1 else None
        got = model(ids, packattn.PackedBatch.from_lengths(now), cache, mode=mode).split(now)
        for row, part in zip(rows, got, strict=True):
            row.append(part)
        done = [d + n for d, n in zip(done, now, strict=True)]
    assert cache.lengths.tolist() == list(LENGTHS)
    for row, want in zip(rows, whole, strict=True):
        assert torch.allclose(torch.cat(row), want, atol=2e-4)


def test_what_cannot_be_honoured_is_refused():
    with pytest.raises(packattn.UnsupportedError) as caught:
        KdaConfig.from_dict({**BASE, "hidden_act": "powlu", "attnres_block_size": 2, "other": 1})
    assert [f.argument for f in caught.value.faults] == [
        "hidden_act", "attnres_block_size", "other",
    ]  # fmt: skip
    model, _ = made("hybrid")
    cache = KdaCache(model, 1, capacity=4)
    before = [t.clone() for t in cache.layers[0].values()]
    for ids, batch in ((5, [0, 5]), (2, [0, 1, 2])):
        with pytest.raises(packattn.Error, match="PA1104"):
            model(torch.ones(ids, dtype=torch.int64), batch, cache)
    assert all(torch.equal(*pair) for pair in zip(before, cache.layers[0].values(), strict=True))
