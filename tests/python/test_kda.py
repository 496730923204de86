# SPDX-License-Identifier: Apache-2.0
"""packattn.kda_recurrent and kda_chunk on NumPy arrays and torch tensors."""

import numpy as np
import packattn
import pytest
import reference

ENDS = [0, 5, 5, 21, 40]
FORMS = [packattn.kda_recurrent, packattn.kda_chunk]


def inputs(rng, kind=None, batch=1, tokens=40, heads=2, value_heads=4, keys=8, values=16):
    make = kind or (lambda x: x)
    f = lambda *s: rng.standard_normal(s, np.float32)  # noqa: E731
    q, k = f(batch, tokens, heads, keys), f(batch, tokens, heads, keys)
    v = f(batch, tokens, value_heads, values)
    g = -np.abs(f(batch, tokens, value_heads, keys)) / 4
    beta = 1 / (1 + np.exp(-f(batch, tokens, value_heads)))
    return tuple(map(make, (q, k, v, g, beta)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["k_first", "v_first"])
def test_against_the_recurrence(rng, kind, form, layout):
    args = inputs(rng, kind)
    initial = rng.standard_normal((4, 4, 8, 16), np.float32)
    turned = initial if layout == "k_first" else initial.swapaxes(2, 3).copy()
    out, final = form(
        *args, ENDS, l2norm=True, state_layout=layout, initial_state=kind(turned),
        output_final_state=True,
    )  # fmt: skip
    assert isinstance(out, kind.type()) and isinstance(final, kind.type())
    want, states = reference.kda(*args, ENDS, l2norm=True, initial=initial)
    assert reference.relative_error(out, want) < 5e-6
    final = np.asarray(final)
    assert (
        reference.relative_error(final.swapaxes(2, 3) if layout == "v_first" else final, states)
        < 5e-6
    )
    assert np.array_equal(np.asarray(final)[1], turned[1])  # no tokens: the state is unchanged


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_a_batch_are_sequences(rng, form):
    q, k, v, g, beta = inputs(rng, batch=3, tokens=10)
    out, final = form(q, k, v, g, beta, state_layout="k_first", output_final_state=True)
    for b in range(3):
        row = [t[b : b + 1] for t in (q, k, v, g, beta)]
        own, state = form(*row, [0, 10], state_layout="k_first", output_final_state=True)
        assert np.array_equal(out[b : b + 1], own) and np.array_equal(final[b : b + 1], state)


@pytest.mark.parametrize("form", FORMS)
def test_state_in_place_and_slots(rng, kind, form):
    args = inputs(rng, kind)
    pool = rng.standard_normal((7, 4, 8, 16), np.float32)
    state = kind(pool.copy())
    result = form(
        *args, ENDS, state=state, slots=[3, 0, -1, 6], state_layout="k_first",
        output_final_state=True,
    )  # fmt: skip
    assert result[1] is state
    changed = np.flatnonzero((np.asarray(state) != pool).reshape(7, -1).any(1))
    assert changed.tolist() == [3, 6]  # slot 0 belongs to the sequence without tokens
    assert not np.asarray(result[0])[0, 5:21].any()
    other = form(*args, ENDS, initial_state=kind(pool[[3, 0, 1, 6]]), state_layout="k_first")
    assert np.array_equal(np.asarray(other)[0, 21:], np.asarray(result[0])[0, 21:])


def test_gates_and_betas(rng):
    q, k, v, _, _ = inputs(rng)
    raw, b = rng.standard_normal((1, 40, 4, 8), np.float32), rng.standard_normal((1, 40, 4))
    b = b.astype(np.float32)
    a_log, bias = rng.standard_normal(4, np.float32), rng.standard_normal((4, 8), np.float32)
    shifted = raw.astype(np.float64) + bias
    rate = np.exp(a_log.astype(np.float64))[:, None]
    gates = {
        "softplus": -rate * np.log1p(np.exp(shifted)),
        "bounded": -4.0 / (1 + np.exp(-rate * shifted)),
    }
    betas = {"given": b, "sigmoid": 1 / (1 + np.exp(-b)), "two_sigmoid": 2 / (1 + np.exp(-b))}
    for gate, g in gates.items():
        for beta_kind, beta in betas.items():
            options = {"A_log": a_log, "dt_bias": bias, "l2norm": True, "lower_bound": -4.0}
            for form in FORMS:
                got = form(q, k, v, raw, b, ENDS, gate=gate, beta_kind=beta_kind, **options)
                want, _ = reference.kda(q, k, v, g, beta, ENDS, l2norm=True)
                assert reference.relative_error(got, want) < 5e-6


def test_chunk_states(rng):
    args = inputs(rng)
    _, final, states = packattn.kda_chunk(
        *args, ENDS, state_layout="k_first", chunk_size=16, return_chunk_states=True
    )
    assert final is None and states.shape == (1 + 1 + 2, 4, 8, 16)
    cut = [t[:, 21:37] for t in args]
    _, after = packattn.kda_chunk(
        *map(np.ascontiguousarray, cut), [0, 16], state_layout="k_first", output_final_state=True
    )
    assert reference.relative_error(states[3], after[0]) < 5e-6


def test_refusals(rng, kind):
    q, k, v, g, beta = inputs(rng, kind)
    cases = {
        "PA6001": {"q": kind(np.ones((2, 20, 2, 8), np.float32))},
        "PA6002": {"g": kind(np.ones((1, 40, 2, 8), np.float32))},
        "PA6003": {"beta": kind(np.ones((40,), np.float32))},
        "PA6005": {"output_final_state": True},
        "PA6011": {"gate": "softplus"},
        "PA1104": {"beta_kind": "tanh"},
        "PA1001": {"v": None},
        "PA2007": {"batch": [0, 21, 5, 40]},
    }
    for form in FORMS:
        for code, wrong in cases.items():
            call = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "batch": ENDS, **wrong}
            with pytest.raises(packattn.Error) as caught:
                form(**call)
            found = [fault.code for fault in caught.value.faults]
            assert code in found
            call = {**call, "op": form.__name__}
            assert [fault.code for fault in packattn.check_kda(**call)] == found
    with pytest.raises(packattn.Error) as caught:
        packattn.kda_chunk(q, k, v, g, kind(np.ones((1, 40, 4, 16), np.float32)), ENDS)
    assert caught.value.code == "PA3010"
    for size in (0, 48, 2**40, 2**70):
        found = packattn.check_kda(
            q, k, v, g, beta, ENDS, chunk_size=size, return_chunk_states=True,
            state_layout="k_first",
        )  # fmt: skip
        told = str(size) if size < 2**63 else "an integer of 71 bits"
        assert [fault.argument for fault in found] == ["chunk_size"] and told in found[0].message
    found = packattn.check_kda(q, k, v, g, beta, ENDS, chunk_length=3)
    assert [fault.code for fault in found] == ["PA1105"]


def test_faults_of_one_code_are_counted_past_the_first(rng):
    q, k, v, g, beta = inputs(rng)
    pool = np.zeros((3, 4, 8, 16), np.float32)
    ends = [0] + [40] * 100
    found = packattn.check_kda(
        q, k, v, g, beta, ends, state=pool, slots=[5] * 100, state_layout="k_first"
    )
    assert len(found) == 16 and [fault.more for fault in found] == [0] * 15 + [84]
    with pytest.raises(packattn.Error, match="and 84 more of PA6008") as caught:
        packattn.kda_chunk(
            q, k, v, g, beta, ends, state=pool, slots=[5] * 100, state_layout="k_first"
        )
    assert str(caught.value).endswith("100 faults in this call")


@pytest.mark.torch
def test_gradients_are_refused(rng):
    torch = pytest.importorskip("torch")
    q, k, v, g, beta = map(torch.from_numpy, inputs(rng))
    with pytest.raises(NotImplementedError) as caught:
        packattn.kda_chunk(q, k, v, g.requires_grad_(), beta, ENDS)
    assert [(f.code, f.argument) for f in caught.value.faults] == [("PA3008", "g")]


def test_why_and_workspace(rng):
    args = inputs(rng)
    for form in FORMS:
        name = form.__name__
        verdicts = packattn.why_kda(*args, ENDS, op=name)
        assert [v.implementation for v in verdicts] == packattn.implementations(name)
        assert any(verdicts)
        assert packattn.kda_workspace_bytes(*args, ENDS, op=name) >= 0
