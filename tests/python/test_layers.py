# SPDX-License-Identifier: Apache-2.0
"""The neighbours of KDA on NumPy arrays and torch tensors."""

from itertools import pairwise

import numpy as np
import packattn
import pytest
import reference

ENDS = [0, 2, 2, 9]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normal(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def close(found, expected, limit=5e-7):
    return reference.relative_error(found, expected) < limit


def test_gate(rng, kind):
    g, rates, bias = normal(rng, 2, 5, 3, 8), normal(rng, 3), normal(rng, 3, 8)
    x, rate = g.astype(np.float64) + bias, np.exp(rates.astype(np.float64))[:, None]
    parameters = {"A_log": kind(rates), "dt_bias": kind(bias)}
    out = packattn.kda_gate(kind(g), **parameters)
    assert isinstance(out, kind.type())
    assert close(out, -rate * np.log1p(np.exp(x)))
    out = packattn.kda_gate(kind(g), gate="bounded", lower_bound=-3, **parameters)
    assert close(out, -3 * sigmoid(rate * x))
    assert packattn.kda_gate(kind(g.astype(np.float16)), **parameters).dtype == out.dtype  # fp32


def test_the_gate_is_the_one_that_kda_computes(rng):
    q, k, v = normal(rng, 1, 9, 2, 8), normal(rng, 1, 9, 2, 8), normal(rng, 1, 9, 2, 16)
    g, rates, beta = normal(rng, 1, 9, 2, 8), normal(rng, 2), sigmoid(normal(rng, 1, 9, 2))
    inside = packattn.kda_chunk(q, k, v, g, beta, ENDS, gate="softplus", A_log=rates, l2norm=True)
    q, k = packattn.l2norm(q), packattn.l2norm(k)
    outside = packattn.kda_chunk(q, k, v, packattn.kda_gate(g, A_log=rates), beta, ENDS)
    assert close(outside, inside, 1e-6)


@pytest.mark.parametrize("width", [1, 7, 64, 20000])
def test_l2norm(rng, kind, width):
    x = normal(rng, 2, 3, width)
    wide = x.astype(np.float64)
    for eps in (1e-6, 0.5):
        out = packattn.l2norm(kind(x), eps=eps)
        assert isinstance(out, kind.type())
        assert close(out, wide / np.sqrt((wide**2).sum(-1, keepdims=True) + eps))
    given = kind(np.empty_like(x))
    assert packattn.l2norm(kind(x), out=given, threads=2) is given
    assert np.array_equal(given, packattn.l2norm(kind(x), implementation="ref/l2norm")) or close(
        given, packattn.l2norm(kind(x), implementation="ref/l2norm")
    )


def test_gated_rms_norm(rng, kind):
    x, z, r = (normal(rng, 4, 40) for _ in range(3))
    weight, bias = normal(rng, 40), normal(rng, 40)
    total = x.astype(np.float64) + r
    norm = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5) * weight + bias
    arguments = {"weight": kind(weight), "bias": kind(bias), "residual": kind(r)}
    for activation in ("swish", "silu", "sigmoid"):
        out, kept = packattn.gated_rms_norm(
            kind(x), kind(z), activation=activation, return_residual=True, **arguments
        )
        assert close(out, norm * sigmoid(z) * (1 if activation == "sigmoid" else z))
        assert close(kept, total)
    assert close(packattn.gated_rms_norm(kind(x), **arguments), norm)
    half = packattn.gated_rms_norm(
        kind(x.astype(np.float16)), residual=kind(r), return_residual=True
    )
    assert [str(t.dtype).split(".")[-1] for t in half] == ["float16", "float32"]


def convolved(x, weight, ends, initial=None):
    taps = weight.shape[1]
    out, states = [], []
    for n, (begin, end) in enumerate(pairwise(ends)):
        before = np.zeros((taps - 1, x.shape[1])) if initial is None else initial[n].T
        padded = np.concatenate([before, x[begin:end]])
        out += [sum(weight[:, i] * padded[t + i] for i in range(taps)) for t in range(end - begin)]
        states.append(padded[len(padded) - taps + 1 :].T)
    return np.array(out), np.array(states)


def test_short_convolution(rng, kind):
    x, weight, bias = normal(rng, 9, 6), normal(rng, 6, 4), normal(rng, 6)
    initial = normal(rng, 3, 6, 3)
    want, states = convolved(x.astype(np.float64), weight, ENDS, initial)
    out, final = packattn.short_convolution(
        kind(x), kind(weight), ENDS, bias=kind(bias), silu=True, initial_state=kind(initial),
        output_final_state=True,
    )  # fmt: skip
    assert isinstance(out, kind.type()) and isinstance(final, kind.type())
    assert close(out, (want + bias) * sigmoid(want + bias)) and np.array_equal(final, states)
    plain, final = packattn.short_convolution(
        kind(x), kind(weight), packattn.PackedBatch.from_cu_seqlens(ENDS), output_final_state=True
    )
    want, states = convolved(x.astype(np.float64), weight, ENDS)
    assert close(plain, want) and np.array_equal(final, states)


def test_short_convolution_steps_through_a_pool(rng, kind):
    x, weight = normal(rng, 9, 6), kind(normal(rng, 6, 4))
    pool = kind(np.zeros((5, 6, 3), np.float32))
    whole = packattn.short_convolution(kind(x), weight, [0, 9])
    rows = []
    for begin, end in ((0, 4), (4, 5), (5, 9)):
        part, state = packattn.short_convolution(
            kind(x[begin:end].copy()), weight, [0, end - begin], state=pool, slots=[3],
            output_final_state=True,
        )  # fmt: skip
        assert state is pool
        rows.append(np.asarray(part))
    assert np.array_equal(np.concatenate(rows), whole)
    assert np.flatnonzero(np.asarray(pool).reshape(5, -1).any(1)).tolist() == [3]
    skipped = packattn.short_convolution(kind(x), weight, [0, 9], state=pool, slots=[-1])
    assert not np.asarray(skipped).any()


def calls(rng, kind):
    x, w = kind(normal(rng, 9, 6)), kind(normal(rng, 6, 4))
    g = kind(normal(rng, 1, 3, 2, 4))
    return {
        "kda_gate": ((g,), {"A_log": kind(normal(rng, 2))}),
        "l2norm": ((x,), {}),
        "short_convolution": ((x, w, ENDS), {}),
        "gated_rms_norm": ((x, x), {}),
    }


def test_refusals_are_what_the_checks_say(rng, kind):
    wrong = {
        "kda_gate": [
            ({"A_log": None}, ["PA6011"]),
            ({"gate": "given"}, ["PA1106", "PA1104"]),
            ({"gate": "tanh"}, ["PA1104"]),
            ({"gate": "bounded", "lower_bound": 1.0}, ["PA6012"]),
            ({"dt_bias": kind(normal(rng, 3))}, ["PA6013"]),
        ],
        "l2norm": [
            ({"eps": -1.0}, ["PA1104"]),
            ({"eps": "small"}, ["PA1104"]),
            ({"out": kind(normal(rng, 9, 5))}, ["PA1010"]),
            ({"implementation": "cpu/none"}, ["PA3001"]),
            ({"threads": -1}, ["PA5004"]),
        ],
        "short_convolution": [
            ({"silu": 1}, ["PA1104"]),
            ({"initial_state": kind(normal(rng, 3, 6, 4))}, ["PA1010"]),
            ({"initial_state": kind(normal(rng, 2, 6, 3))}, ["PA6006"]),
            ({"slots": [0, 1, 2]}, ["PA6017"]),
            ({"state": kind(normal(rng, 4, 6, 3)), "slots": [0, 4, 0]}, ["PA6008", "PA6009"]),
            ({"null_slot": 0.5}, ["PA1104"]),
        ],
        "gated_rms_norm": [
            ({"activation": "gelu"}, ["PA1104"]),
            ({"weight": kind(normal(rng, 5)), "bias": kind(normal(rng, 7))}, ["PA1010", "PA1010"]),
            ({"residual": [1.0]}, ["PA1104"]),
        ],
    }  # fmt: skip
    for name, (inputs, options) in calls(rng, kind).items():
        run, check = getattr(packattn, name), getattr(packattn, f"check_{name}")
        assert check(*inputs, **options) == []
        for change, codes in wrong[name]:
            found = check(*inputs, **(options | change))
            assert sorted(fault.code for fault in found) == sorted(codes), (name, change)
            with pytest.raises(packattn.Error) as caught:
                run(*inputs, **(options | change))
            assert [f.code for f in caught.value.faults] == [f.code for f in found]
        assert [f.code for f in check(*inputs, nothing=1, **options)] == ["PA1105"]
        assert "PA1001" in [f.code for f in check(None, *inputs[1:], **options)]


def test_why_lists_every_implementation(rng, kind):
    for name, (inputs, options) in calls(rng, kind).items():
        verdicts = getattr(packattn, f"why_{name}")(*inputs, **options)
        assert [v.implementation for v in verdicts] == packattn.implementations(name)
        assert verdicts[-1].implementation == f"ref/{name}" and verdicts[-1]
        for verdict in verdicts:
            if verdict:
                forced = {**options, "implementation": verdict.implementation}
                getattr(packattn, name)(*inputs, **forced)


@pytest.mark.torch
def test_gradients_are_refused(rng):
    torch = pytest.importorskip("torch")
    for name, (inputs, options) in calls(rng, torch.from_numpy).items():
        first = inputs[0].clone().requires_grad_()
        with pytest.raises(NotImplementedError) as caught:
            getattr(packattn, name)(first, *inputs[1:], **options)
        assert caught.value.code == "PA3008"
        with torch.no_grad():
            getattr(packattn, name)(first, *inputs[1:], **options)


@pytest.mark.torch
def test_bfloat16(rng):
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(normal(rng, 9, 64)).bfloat16()
    out = packattn.l2norm(x)
    assert out.dtype == torch.bfloat16
    want = torch.nn.functional.normalize(x.double(), dim=-1)
    assert reference.relative_error(out.double(), want) < 2.5e-3
