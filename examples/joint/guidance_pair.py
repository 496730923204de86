# SPDX-License-Identifier: Apache-2.0
"""A diffusion model's guidance pair as packed batches, in which the negative prompt is empty.

Classifier-free guidance runs every image twice: once with the prompt and once with a negative
prompt, which is often empty. Packed, the pair is two sequences:

    joint attention    q and k:  [ 77 text | 256 image ]  [ 256 image ]
    cross-attention    q:        [ 256 image ]            [ 256 image ]
                       k:        [ 77 text ]              [ ]

In the cross-attention form the second sequence has queries and no key at all. Its rows are 0 with
lse = -inf; some libraries refuse the whole batch instead.

The values are synthetic, drawn from a seed: normal numbers, with q and k normalised to a root mean
square of 1 per head, as diffusion transformers do. Only the shapes are those of a real model
(24 heads of 128). The image part is equal in both sequences, as it is in the first layer.

    python examples/joint/guidance_pair.py [-o FILE.safetensors] [--cross]

prints the shapes, and writes the batch for `packattn run` if asked (needs the package safetensors).
"""

import argparse
from typing import NamedTuple

import numpy as np

HEADS, DIM = 24, 128
TEXT, IMAGE = 77, 256


class Batch(NamedTuple):
    """q [Tq, H, D], k and v [Tk, H, D] in fp32; int32 boundaries of each side."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    cu_seqlens_q: np.ndarray
    cu_seqlens_k: np.ndarray


def _tokens(rng, count, heads, dim):
    """q, k, v of `count` tokens, each [count, heads, dim]."""
    q, k, v = rng.standard_normal((3, count, heads, dim), dtype=np.float32)
    q, k = (x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) for x in (q, k))
    return q, k, v


def _ends(*lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def joint_pair(seed=0, *, text=TEXT, image=IMAGE, heads=HEADS, dim=DIM):
    """Joint attention: text and image tokens of a sequence all see each other."""
    rng = np.random.default_rng(seed)
    prompt = _tokens(rng, text, heads, dim)
    latents = _tokens(rng, image, heads, dim)
    q, k, v = (np.concatenate([p, x, x]) for p, x in zip(prompt, latents, strict=True))
    cu = _ends(text + image, image)
    return Batch(q, k, v, cu, cu)


def cross_pair(seed=0, *, text=TEXT, image=IMAGE, heads=HEADS, dim=DIM):
    """Cross-attention: image tokens look at text tokens, of which the second sequence has none."""
    rng = np.random.default_rng(seed)
    _, k, v = _tokens(rng, text, heads, dim)
    q, _, _ = _tokens(rng, image, heads, dim)
    return Batch(np.concatenate([q, q]), k, v, _ends(image, image), _ends(text, 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cross", action="store_true", help="cross-attention, not joint")
    parser.add_argument("-o", "--output", help="write a safetensors file")
    options = parser.parse_args()

    batch = (cross_pair if options.cross else joint_pair)(options.seed)
    for name, array in batch._asdict().items():
        values = array.tolist() if array.ndim == 1 else ""
        print(f"{name:13} {array.dtype} {list(array.shape)} {values}")
    if options.output:
        from safetensors.numpy import save_file

        kind = "cross-attention" if options.cross else "joint attention"
        about = {"source": f"synthetic guidance pair, {kind}, seed {options.seed}"}
        save_file(batch._asdict(), options.output, about)


if __name__ == "__main__":
    main()
