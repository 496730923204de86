# SPDX-License-Identifier: Apache-2.0
"""A KDA model in plain torch and fp64: one sequence, one token at a time, from its parameters."""

import math

import torch


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def convolved(x, weight):
    """x [T, D]; every channel's last W inputs, oldest first, times its taps."""
    taps = weight.shape[-1]
    padded = torch.cat([x.new_zeros(taps - 1, x.shape[1]), x])
    rows = [(padded[t : t + taps].T * weight[:, 0]).sum(1) for t in range(len(x))]
    return torch.nn.functional.silu(torch.stack(rows))


def kda_layer(x, p, c):
    heads, value_heads = c["num_heads"], c["num_v_heads"] or c["num_heads"]
    key, value = c["head_dim"], int(c["head_dim"] * c["expand_v"])
    q, k, v = (x @ p[f"{name}_proj.weight"].T for name in "qkv")
    if c["use_short_conv"]:
        q, k, v = (
            convolved(y, p[f"{n}_conv1d.weight"]) for n, y in zip("qkv", (q, k, v), strict=True)
        )
    else:
        q, k, v = (torch.nn.functional.silu(y) for y in (q, k, v))
    raw = (x @ p["f_proj.0.weight"].T @ p["f_proj.1.weight"].T + p["dt_bias"]).view(
        -1, value_heads, key
    )
    rate = p["A_log"].exp()[:, None]
    if c["lower_bound"] is None:
        decay = -rate * torch.nn.functional.softplus(raw)
    else:
        decay = c["lower_bound"] * (rate * raw).sigmoid()
    beta = (x @ p["b_proj.weight"].T).sigmoid() * (2 if c["allow_neg_eigval"] else 1)
    q, k = (y.view(-1, heads, key) for y in (q, k))
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    v = v.view(-1, value_heads, value)
    rows = []
    state = x.new_zeros(value_heads, key, value)
    for t in range(len(x)):
        outs = []
        for h in range(value_heads):
            shared = h // (value_heads // heads)
            s = state[h] * decay[t, h].exp()[:, None]
            s = s + torch.outer(k[t, shared], beta[t, h] * (v[t, h] - s.T @ k[t, shared]))
            state[h] = s
            outs.append(s.T @ q[t, shared] / math.sqrt(key))
        rows.append(torch.stack(outs))
    gate = x @ p["g_proj.0.weight"].T @ p["g_proj.1.weight"].T + p["g_proj.1.bias"]
    y = rms(torch.stack(rows), p["o_norm.weight"], c["norm_eps"])
    return (y * gate.view(y.shape).sigmoid()).flatten(1) @ p["o_proj.weight"].T


def turned(x, theta):
    """Coordinates j and j + half of a head turn by position * theta^(-j / half)."""
    half = x.shape[-1] // 2
    out = x.clone()
    for t in range(len(x)):
        for j in range(half):
            a = t * theta ** (-j / half)
            first, second = x[t, :, j].clone(), x[t, :, j + half].clone()
            out[t, :, j] = first * math.cos(a) - second * math.sin(a)
            out[t, :, j + half] = first * math.sin(a) + second * math.cos(a)
    return out


def softmax_layer(x, p, spec):
    heads = spec["num_heads"]
    key_heads = spec.get("num_kv_heads") or heads
    q, k, v = (
        x @ p[f"{n}_proj.weight"].T + (p[f"{n}_proj.bias"] if spec.get("qkv_bias") else 0)
        for n in "qkv"
    )
    theta = spec.get("rope_theta") or 10000.0
    q = turned(q.view(len(x), heads, -1), theta)
    k = turned(k.view(len(x), key_heads, -1), theta)
    v = v.view(len(x), key_heads, -1)
    rows = []
    for t in range(len(x)):
        first = 0 if spec.get("window_size") is None else max(0, t + 1 - spec["window_size"])
        outs = []
        for h in range(heads):
            shared = h // (heads // key_heads)
            scores = k[first : t + 1, shared] @ q[t, h] / math.sqrt(q.shape[-1])
            outs.append(scores.softmax(0) @ v[first : t + 1, shared])
        rows.append(torch.cat(outs))
    return torch.stack(rows) @ p["o_proj.weight"].T


def logits(parameters, c, ids):
    """Scores [T, vocabulary] of one sequence; ``c`` is the configuration as a dictionary."""
    parameters = {name: value.double() for name, value in parameters.items()}

    def under(prefix):
        return {k.removeprefix(prefix): v for k, v in parameters.items() if k.startswith(prefix)}

    specs = c["attn"] if isinstance(c["attn"], list) else [c["attn"] or {}]
    softmax = {layer: spec for spec in specs for layer in spec.get("layers", ())}
    x = parameters["model.embeddings.weight"][ids]
    for n in range(c["num_hidden_layers"]):
        p = under(f"model.layers.{n}.")
        own = {k.removeprefix("attn."): v for k, v in p.items() if k.startswith("attn.")}
        y = rms(x, p["attn_norm.weight"], c["norm_eps"])
        x = x + (softmax_layer(y, own, softmax[n]) if n in softmax else kda_layer(y, own, c))
        y = rms(x, p["mlp_norm.weight"], c["norm_eps"])
        up = torch.nn.functional.silu(y @ p["mlp.gate_proj.weight"].T)
        x = x + (up * (y @ p["mlp.up_proj.weight"].T)) @ p["mlp.down_proj.weight"].T
    x = rms(x, parameters["model.norm.weight"], c["norm_eps"])
    return x @ parameters["lm_head.weight"].T
