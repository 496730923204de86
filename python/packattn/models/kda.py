# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention models (arXiv:2510.26692) on packed batches, inference only.

Configuration keys and parameter names are those of flash-linear-attention's KDA model, so that its
``config.json`` and its checkpoints load: `KdaConfig.from_dict`, ``load_state_dict``. Layers that
the key ``attn`` names are softmax attention, which makes a hybrid model. Nothing is padded: tokens
of several sequences lie end to end, and a `KdaCache` carries their states from call to call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from .._attention import attention
from .._batch import BatchLike, PackedBatch
from .._error import raise_refusal
from .._kda import kda_chunk, kda_recurrent
from .._layers import gated_rms_norm, short_convolution
from .._native import refuse
from .._pack import ready

# Keys that say how a GPU or a training run works.
_NO_EFFECT = {
    "fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "use_l2warp", "use_cache",
    "initializer_range", "max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id",
    "model_type", "architectures", "dtype", "torch_dtype", "transformers_version",
}  # fmt: skip
_ONLY = {"hidden_act": "swish", "attnres_block_size": None}


@dataclass
class KdaConfig:
    """The keys of the configuration that say what is computed, with their usual defaults."""

    hidden_size: int = 2048
    num_hidden_layers: int = 24
    vocab_size: int = 32000
    attn_mode: str = "chunk"
    num_heads: int = 16
    num_v_heads: int | None = None
    head_dim: int = 128
    expand_v: float = 1.0
    use_short_conv: bool = True
    conv_size: int = 4
    allow_neg_eigval: bool = False
    safe_gate: bool = False
    lower_bound: float | None = None
    hidden_ratio: int | None = 4
    intermediate_size: int | None = None
    norm_eps: float = 1e-6
    attn: Any = None
    tie_word_embeddings: bool = False
    softmax_layers: dict[int, dict[str, Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.num_v_heads = self.num_heads if self.num_v_heads is None else self.num_v_heads
        self.head_v_dim = int(self.head_dim * self.expand_v)
        if self.intermediate_size is None:
            wanted = int(self.hidden_size * (self.hidden_ratio or 4) * 2 / 3)
            self.intermediate_size = -(-wanted // 256) * 256
        specs = self.attn if isinstance(self.attn, (list, tuple)) else [self.attn or {}]
        self.softmax_layers = {layer: spec for spec in specs for layer in spec.get("layers", ())}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> KdaConfig:
        """From the contents of a ``config.json``.

        :raises packattn.Error: PA3009 for a key or value that this model cannot honour.
        """
        known = {f.name for f in fields(cls) if f.init}
        rows = []
        for name, value in given.items():
            if name in known or name in _NO_EFFECT or value is None or name.startswith("_"):
                continue
            if name not in _ONLY or value != _ONLY[name]:
                remedy = f"only {_ONLY[name]!r}" if name in _ONLY else "remove the key"
                rows.append(["PA3009", name, "packattn.models.kda", repr(value), remedy, ""])
        if rows:
            raise_refusal(refuse(rows))
        return cls(**{name: value for name, value in given.items() if name in known})


class KdaCache:
    """What N sequences carry from one call to the next: a state a KDA layer, W - 1 inputs a
    convolution, keys and values a softmax layer.

    :param sequences: N; sequence n of every call continues sequence n of the calls before.
    :param capacity: tokens of the longest sequence; only softmax layers need room for them.
    """

    def __init__(self, model: KdaModel | KdaForCausalLM, sequences: int, capacity: int) -> None:
        trunk = model.model if isinstance(model, KdaForCausalLM) else model
        self.lengths = torch.zeros(sequences, dtype=torch.int64)
        self.capacity = capacity
        self.layers = [layer.attn.new_state(sequences, capacity) for layer in trunk.layers]


@dataclass
class _Step:
    """What every layer of one call needs to know."""

    batch: PackedBatch
    owner: Tensor  # [T] the sequence of each token
    position: Tensor  # [T] of each token in its call
    before: Tensor  # [N] tokens of earlier calls
    mode: str


class ShortConvolution(nn.Module):
    """A causal convolution of W taps on every channel by itself, then silu."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps).uniform_(-0.5, 0.5))

    def forward(self, x: Tensor, step: _Step, state: Tensor | None) -> Tensor:
        """x ``[T, D]``; state ``[N, D, W - 1]``, the inputs before, oldest first; updated."""
        return short_convolution(x, self.weight[:, 0], step.batch, silu=True, state=state)


class KimiDeltaAttention(nn.Module):
    """One KDA layer: projections, short convolutions, the recurrence, a gated norm."""

    def __init__(self, config: KdaConfig) -> None:
        super().__init__()
        c = self.config = config
        heads, values = c.num_v_heads, c.num_v_heads * c.head_v_dim
        keys = c.num_heads * c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, keys, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, values, bias=False)
        if c.use_short_conv:
            self.q_conv1d = ShortConvolution(keys, c.conv_size)
            self.k_conv1d = ShortConvolution(keys, c.conv_size)
            self.v_conv1d = ShortConvolution(values, c.conv_size)
        self.f_proj = _low_rank(c.hidden_size, c.head_v_dim, heads * c.head_dim, bias=False)
        self.b_proj = nn.Linear(c.hidden_size, heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.empty(heads * c.head_dim).uniform_(-6, -2))
        self.g_proj = _low_rank(c.hidden_size, c.head_v_dim, values, bias=True)
        self.o_norm = nn.RMSNorm(c.head_v_dim, eps=c.norm_eps)
        self.o_proj = nn.Linear(values, c.hidden_size, bias=False)

    def new_state(self, sequences: int, capacity: int) -> dict[str, Tensor]:
        c, weight = self.config, self.q_proj.weight
        shape = (sequences, c.num_v_heads, c.head_v_dim, c.head_dim)
        state = {"kda": weight.new_zeros(shape, dtype=torch.float32)}
        for name in ("q", "k", "v") if c.use_short_conv else ():
            channels = getattr(self, f"{name}_proj").out_features
            state[name] = weight.new_zeros(sequences, channels, c.conv_size - 1)
        return state

    def forward(self, x: Tensor, step: _Step, state: dict[str, Tensor] | None) -> Tensor:
        c, mixed = self.config, {}
        for name in ("q", "k", "v"):
            y = getattr(self, f"{name}_proj")(x)
            if c.use_short_conv:
                y = getattr(self, f"{name}_conv1d")(y, step, None if state is None else state[name])
            else:
                y = silu(y)
            size = c.head_v_dim if name == "v" else c.head_dim
            mixed[name] = y.view(1, len(x), y.shape[1] // size, size)
        form = kda_chunk if step.mode == "chunk" else kda_recurrent
        out = form(
            **mixed,
            g=self.f_proj(x).view(1, len(x), c.num_v_heads, c.head_dim),
            beta=self.b_proj(x)[None],
            batch=step.batch,
            gate="softplus" if c.lower_bound is None else "bounded",
            lower_bound=-5.0 if c.lower_bound is None else c.lower_bound,
            A_log=self.A_log.float(),
            dt_bias=self.dt_bias.float(),
            beta_kind="two_sigmoid" if c.allow_neg_eigval else "sigmoid",
            l2norm=True,
            state=None if state is None else state["kda"],
            state_layout="v_first",
        )[0]
        gate, norm = self.g_proj(x).view(out.shape), self.o_norm
        out = gated_rms_norm(out, gate, weight=norm.weight, eps=norm.eps, activation="sigmoid")
        return self.o_proj(out.flatten(1))


class Attention(nn.Module):
    """Causal softmax attention with rotary positions."""

    def __init__(self, config: KdaConfig, spec: Mapping[str, Any]) -> None:
        super().__init__()
        width, bias = config.hidden_size, bool(spec.get("qkv_bias", False))
        self.heads = spec["num_heads"]
        self.key_heads = spec.get("num_kv_heads") or self.heads
        self.size = width // self.heads
        self.theta = spec.get("rope_theta") or 10000.0
        self.window = spec.get("window_size")
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=bias)
        self.k_proj = nn.Linear(width, self.key_heads * self.size, bias=bias)
        self.v_proj = nn.Linear(width, self.key_heads * self.size, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=False)

    def new_state(self, sequences: int, capacity: int) -> tuple[Tensor, Tensor]:
        # A sequence is one page of the cache, as long as it may get.
        shape = (sequences, capacity, self.key_heads, self.size)
        return self.k_proj.weight.new_zeros(shape), self.k_proj.weight.new_zeros(shape)

    def _rotated(self, x: Tensor, position: Tensor) -> Tensor:
        half = self.size // 2
        rates = self.theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = position[:, None, None] * rates
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x: Tensor, step: _Step, state: tuple[Tensor, Tensor] | None) -> Tensor:
        place = step.before[step.owner] + step.position
        q = self._rotated(self.q_proj(x).view(len(x), self.heads, self.size), place)
        k = self._rotated(self.k_proj(x).view(len(x), self.key_heads, self.size), place)
        v = self.v_proj(x).view(len(x), self.key_heads, self.size)
        batch = step.batch
        if state is not None:
            for cache, new in zip(state, (k, v), strict=True):
                cache[step.owner, place] = new
            k, v = state
            starts, lengths = batch.sequences[:, 0], torch.from_numpy(batch.lengths_q.copy())
            ends = torch.tensor([*starts, batch.rows_q])
            pages = torch.arange(len(lengths), dtype=torch.int32)[:, None]
            batch = PackedBatch.paged(ends, step.before + lengths, pages)
        window = (None if self.window is None else self.window - 1, None)
        out = attention(q, k, v, batch, causal=True, window=window)
        return self.o_proj(out.flatten(1))


class GatedMlp(nn.Module):
    def __init__(self, config: KdaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class KdaBlock(nn.Module):
    def __init__(self, config: KdaConfig, index: int) -> None:
        super().__init__()
        spec = config.softmax_layers.get(index)
        self.attn_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attn = KimiDeltaAttention(config) if spec is None else Attention(config, spec)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mlp = GatedMlp(config)

    def forward(self, x: Tensor, step: _Step, state: Any) -> Tensor:
        x = x + self.attn(self.attn_norm(x), step, state)
        return x + self.mlp(self.mlp_norm(x))


class KdaModel(nn.Module):
    """Token embeddings, the layers, a norm."""

    def __init__(self, config: KdaConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(KdaBlock(config, n) for n in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        batch: BatchLike,
        cache: KdaCache | None = None,
        mode: str | None = None,
    ) -> Tensor:
        """Hidden states ``[T, hidden_size]``.

        :param input_ids: ``[T]``, the tokens of all sequences end to end.
        :param batch: their boundaries, without rows between the sequences.
        :param cache: continues the sequences, which may be empty in a call; updated.
        :param mode: ``"chunk"`` or ``"fused_recurrent"``, in the configuration's words; its
            ``attn_mode`` if None. Never chosen by length: a sequence's bits would depend on others.
        """
        batch = ready(batch)
        starts, lengths = (torch.from_numpy(batch.sequences[:, i].copy()) for i in (0, 1))
        owner = torch.repeat_interleave(torch.arange(batch.size), lengths)
        before = torch.zeros(batch.size, dtype=torch.int64) if cache is None else cache.lengths
        _check_cache(cache, batch, before + lengths if len(before) == batch.size else before)
        position = torch.arange(len(owner)) - starts[owner]
        step = _Step(batch, owner, position, before, mode or self.config.attn_mode)
        x = self.embeddings(input_ids)
        for index, layer in enumerate(self.layers):
            x = layer(x, step, None if cache is None else cache.layers[index])
        if cache is not None:
            cache.lengths = before + lengths
        return self.norm(x)


class KdaForCausalLM(nn.Module):
    """`KdaModel` and the scores of the next token."""

    def __init__(self, config: KdaConfig) -> None:
        super().__init__()
        self.model = KdaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embeddings.weight

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        batch: BatchLike,
        cache: KdaCache | None = None,
        mode: str | None = None,
    ) -> Tensor:
        """Scores ``[T, vocab_size]``; arguments as of `KdaModel`."""
        return self.lm_head(self.model(input_ids, batch, cache, mode))


def _check_cache(cache: KdaCache | None, batch: PackedBatch, ends: Tensor) -> None:
    """Before the first layer: a refused call leaves no state half updated."""
    rows = []
    if cache is not None and len(cache.lengths) != batch.size:
        allowed = f"a batch of {len(cache.lengths)} sequences, some of them empty"
        rows.append(["PA1104", "batch", "", f"of {batch.size}", allowed, ""])
    elif cache is not None and len(ends) and int(ends.max()) > cache.capacity:
        needed = f"at least {int(ends.max())}"
        rows.append(["PA1104", "capacity", "", str(cache.capacity), needed, ""])
    if rows:
        raise_refusal(refuse(rows))


def _low_rank(inner: int, rank: int, outer: int, *, bias: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inner, rank, bias=False),
        nn.Linear(rank, outer, bias=bias),
    )
