# SPDX-License-Identifier: Apache-2.0
"""The mathematics in NumPy and fp64, one sequence at a time; docs/mathematics.md."""

import itertools

import numpy as np


def attention(q, k, v, seq, *, causal=False, align="bottom_right", window=(None, None),
              softmax_scale=None, softcap=0.0, alibi_slopes=None, sinks=None):  # fmt: skip
    """`seq`: rows of q_start, q_length, k_start, k_length. Returns out and lse [Hq, Tq]."""
    q, k, v = (np.asarray(t, np.float64) for t in (q, k, v))
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
    out = np.zeros((q.shape[0], heads, v.shape[2]))
    lse = np.full((heads, q.shape[0]), -np.inf)
    for qs, ql, ks, kl in np.asarray(seq):
        i, j = np.arange(ql)[:, None], np.arange(kl)[None, :]
        distance = j - (i + (kl - ql if align == "bottom_right" else 0))
        visible = np.ones((ql, kl), bool)
        if causal:
            visible &= distance <= 0
        if window[0] is not None:
            visible &= distance >= -window[0]
        if window[1] is not None:
            visible &= distance <= window[1]
        for h in range(heads):
            x = scale * q[qs : qs + ql, h] @ k[ks : ks + kl, h // group].T
            if softcap:
                x = softcap * np.tanh(x / softcap)
            if alibi_slopes is not None:
                x = x - float(alibi_slopes[h]) * np.abs(distance)
            x = np.where(visible, x, -np.inf)
            if sinks is not None:
                x = np.concatenate([x, np.full((ql, 1), float(sinks[h]))], 1)
            top = x.max(1, initial=-np.inf, keepdims=True)
            top = np.where(np.isfinite(top), top, 0)
            weights = np.exp(x - top)
            total = weights.sum(1, keepdims=True)
            with np.errstate(divide="ignore"):
                lse[h, qs : qs + ql] = (np.log(total) + top)[:, 0]
            weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
            out[qs : qs + ql, h] = weights[:, :kl] @ v[ks : ks + kl, h // group]
    return out, lse


def kda(q, k, v, g, beta, ends, *, scale=None, l2norm=False, initial=None):
    """B = 1, given gates, state [N, HV, K, V]. Returns out [1, T, HV, V] and the final states."""
    q, k, v, g, beta = (np.asarray(t, np.float64) for t in (q, k, v, g, beta))
    if l2norm:
        q, k = (t / np.sqrt((t**2).sum(-1, keepdims=True) + 1e-6) for t in (q, k))
    heads, group = v.shape[2], v.shape[2] // q.shape[2]
    scale = q.shape[3] ** -0.5 if scale is None else scale
    states = np.zeros((len(ends) - 1, heads, q.shape[3], v.shape[3]))
    if initial is not None:
        states += initial
    out = np.zeros(v.shape)
    for n, (start, end) in enumerate(itertools.pairwise(ends)):
        for t in range(start, end):
            for h in range(heads):
                decayed = np.exp(g[0, t, h])[:, None] * states[n, h]
                key = k[0, t, h // group]
                delta = beta[0, t, h] * (v[0, t, h] - decayed.T @ key)
                states[n, h] = decayed + np.outer(key, delta)
                out[0, t, h] = states[n, h].T @ (scale * q[0, t, h // group])
    return out, states


def relative_error(got, want):
    """Norm of the difference over the norm of what is wanted."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    finite = np.isfinite(want)
    assert np.array_equal(np.isfinite(got), finite)
    size = np.linalg.norm(want[finite])
    return np.linalg.norm(got[finite] - want[finite]) / (size or 1)
