# SPDX-License-Identifier: Apache-2.0
"""packattn.compat.fla, vllm, flash_kda and sglang.chunk_kda."""

import numpy as np
import packattn
import pytest
import reference
from packattn.compat import fla, flash_kda, sglang, vllm

ENDS = [0, 5, 5, 21, 40]


def inputs(rng, kind, batch=1, tokens=40, keys=8, values=16):
    f = lambda *s: rng.standard_normal(s, np.float32)  # noqa: E731
    arrays = (
        f(batch, tokens, 2, keys),
        f(batch, tokens, 2, keys),
        f(batch, tokens, 4, values),
        -np.abs(f(batch, tokens, 4, keys)) / 4,
        1 / (1 + np.exp(-f(batch, tokens, 4))),
    )
    return tuple(map(kind, arrays))


@pytest.mark.parametrize("name", ["chunk_kda", "fused_recurrent_kda"])
@pytest.mark.parametrize("v_first", [False, True])
def test_packed(rng, kind, name, v_first):
    args = inputs(rng, kind)
    initial = rng.standard_normal((4, 4, 8, 16), np.float32)
    given = kind(initial.swapaxes(2, 3).copy() if v_first else initial)
    o, final = getattr(fla, name)(
        *args, initial_state=given, output_final_state=True, use_qk_l2norm_in_kernel=True,
        cu_seqlens=kind(np.array(ENDS)), state_v_first=v_first,
    )  # fmt: skip
    want, states = reference.kda(*args, ENDS, l2norm=True, initial=initial)
    assert reference.relative_error(o, want) < 5e-6
    final = np.asarray(final)
    assert reference.relative_error(final.swapaxes(2, 3) if v_first else final, states) < 5e-6
    assert getattr(fla, name)(*args, scale=0.1)[1] is None


def test_gates_inside_and_outside(rng, kind):
    q, k, v, _, _ = inputs(rng, kind)
    raw, a_log, bias = (
        kind(rng.standard_normal(s, np.float32)) for s in ((1, 40, 4, 8), (4,), (32,))
    )
    logits = kind(rng.standard_normal((1, 40, 4), np.float32))
    sigmoid = 1 / (1 + np.exp(-np.asarray(logits)))
    for lower_bound in (None, -5.0):
        gate = {"A_log": a_log, "dt_bias": bias, "lower_bound": lower_bound}
        g = fla.fused_kda_gate(raw, **gate)
        assert isinstance(g, kind.type())
        for negative, beta in ((False, sigmoid), (True, 2 * sigmoid)):
            want, _ = fla.naive_recurrent_kda(q, k, v, g, kind(beta))
            for name in ("chunk_kda", "fused_recurrent_kda"):
                got, _ = getattr(fla, name)(
                    q, k, v, raw, logits, use_gate_in_kernel=True, allow_neg_eigval=negative,
                    use_beta_sigmoid_in_kernel=True,
                    **{**gate, "A_log": a_log.reshape(1, 1, 4, 1)},
                )  # fmt: skip
                assert reference.relative_error(got, want) < 5e-6
    no_log = fla.naive_kda_lowerbound_gate(raw, None, bias, -3.0)
    want = -3 / (1 + np.exp(-np.asarray(raw) - np.asarray(bias).reshape(4, 8)))
    assert reference.relative_error(no_log, want) < 1e-6


def test_naive_forms_agree(rng, kind):
    args = inputs(rng, kind, batch=2, tokens=33)
    state = kind(rng.standard_normal((4, 8, 16), np.float32))
    options = {"initial_state": state, "output_final_state": True, "scale": 0.2}
    o, final = fla.naive_recurrent_kda(*args, **options)
    same, final_same = fla.naive_chunk_kda(*args, chunk_size=16, **options)
    assert reference.relative_error(same, o) < 1e-6
    assert reference.relative_error(final_same, final) < 1e-6


def test_intermediate_states(rng, kind):
    args = inputs(rng, kind, batch=2)
    _, final, h = fla.chunk_kda(*args, return_intermediate_states=True, chunk_size=32)
    assert final is None and tuple(h.shape) == (2, 2, 4, 8, 16)
    packed = inputs(rng, kind)
    _, _, h = fla.chunk_kda(
        *packed, return_intermediate_states=True, cu_seqlens=kind(np.array(ENDS)), chunk_size=32
    )
    assert tuple(h.shape) == (1, 3, 4, 8, 16)


@pytest.mark.parametrize("name", ["fla", "vllm"])
def test_pools(rng, kind, name):
    args = inputs(rng, kind)
    pool = rng.standard_normal((6, 4, 16, 8), np.float32)
    state, slots = kind(pool.copy()), kind(np.array([3, 0, -1, 5], np.int32))
    call = {"initial_state": state, "cu_seqlens": kind(np.array(ENDS)), "ssm_state_indices": slots}
    if name == "fla":
        o, final = fla.fused_recurrent_kda_fwd(*args, state_v_first=True, **call)
    else:
        o, final = vllm.fused_recurrent_kda(*args, use_qk_l2norm_in_kernel=False, **call)
    assert final is state
    changed = np.flatnonzero((np.asarray(state) != pool).reshape(6, -1).any(1))
    assert changed.tolist() == [3, 5]
    want, states = reference.kda(*args, ENDS, initial=pool[[3, 0, 1, 5]].swapaxes(2, 3))
    assert reference.relative_error(np.asarray(o)[:, 21:], want[:, 21:]) < 5e-6
    assert reference.relative_error(np.asarray(state)[3].swapaxes(1, 2), states[0]) < 5e-6


def test_speculative_tokens(rng, kind):
    args = inputs(rng, kind, tokens=6)
    pool = rng.standard_normal((7, 4, 8, 16), np.float32)
    state = kind(pool.copy())
    table = kind(np.array([[0, 1, 2], [3, 4, 5]], np.int32))
    o, _ = fla.fused_recurrent_kda_fwd(
        *args, initial_state=state, cu_seqlens=kind(np.array([0, 3, 6])), ssm_state_indices=table,
        num_accepted_tokens=kind(np.array([2, 1], np.int32)),
    )  # fmt: skip
    want, states = reference.kda(*args, [0, 3, 6], initial=pool[[1, 3]])
    assert reference.relative_error(o, want) < 5e-6
    assert reference.relative_error(np.asarray(state)[[2, 5]], states) < 5e-6
    assert np.array_equal(np.asarray(state)[6], pool[6])


def test_sglang_chunk(rng, kind):
    args = inputs(rng, kind)
    pool = rng.standard_normal((5, 4, 16, 8), np.float32)
    state, v_before = kind(pool.copy()), np.asarray(args[2]).copy()
    o, h = sglang.chunk_kda(
        *args, initial_state=state, initial_state_indices=kind(np.array([2, 1, 0, 4], np.int32)),
        use_qk_l2norm_in_kernel=True, cu_seqlens=kind(np.array(ENDS)),
        output_intermediate_states=True,
    )  # fmt: skip
    want, states = reference.kda(
        *args, ENDS, l2norm=True, initial=pool[[2, 1, 0, 4]].swapaxes(2, 3)
    )
    assert reference.relative_error(o, want) < 5e-6
    got = np.asarray(state)[[2, 1, 0, 4]].swapaxes(2, 3)
    assert reference.relative_error(got, states) < 5e-6
    assert tuple(h.shape) == (1, 3, 4, 16, 8) and np.array_equal(args[2], v_before)


def test_flash_kda(rng, kind):
    q, k, v, raw, logits = inputs(rng, kind)
    a_log, bias = (kind(rng.standard_normal(s, np.float32)) for s in ((4,), (4, 8)))
    out, final = (kind(np.full(s, np.nan, np.float32)) for s in ((1, 40, 4, 16), (4, 4, 16, 8)))
    assert flash_kda.get_workspace_size(40, 4, 4) == 0
    result = flash_kda.fwd(
        q, k, v, raw, logits, 0.3, out, a_log, bias, -5.0, final_state=final,
        cu_seqlens=kind(np.array(ENDS)),
    )  # fmt: skip
    assert result is None
    g = fla.fused_kda_gate(raw, a_log, bias, -5.0)
    beta = 1 / (1 + np.exp(-np.asarray(logits)))
    want, states = reference.kda(q, k, v, g, beta, ENDS, l2norm=True, scale=0.3)
    assert reference.relative_error(out, want) < 5e-6
    assert reference.relative_error(np.asarray(final).swapaxes(2, 3), states) < 5e-6
    with pytest.raises(RuntimeError):
        flash_kda.fwd(q, k, v, raw, logits, 0.3, None, a_log, bias, -5.0)


WORDS = {
    "The batch size is expected to be 1 rather than 2 when using `cu_seqlens`."
    "Please flatten variable-length inputs before processing.": {"q": np.ones((2, 20, 2, 8))},
    "The number of initial states is expected to be equal to the number of input sequences, "
    "i.e., 4 rather than 3.": {"initial_state": np.ones((3, 4, 8, 16), np.float32)},
    "`A_log` must be provided when `use_gate_in_kernel=True` and `lower_bound` is not set.": {
        "use_gate_in_kernel": True
    },
    "`chunk_size` must be either 32 or 64 for KDA, got 128.": {"chunk_size": 128},
    "`lower_bound` must be in the safe range [-5, 0), got -6.": {
        "lower_bound": -6,
        "safe_gate": True,
        "use_gate_in_kernel": True,
    },
}


@pytest.mark.parametrize("words", WORDS)
def test_words_of_fla(rng, words):
    names = ["q", "k", "v", "g", "beta"]
    call = dict(zip(names, inputs(rng, np.asarray), strict=True))
    call |= {"cu_seqlens": np.array(ENDS), **WORDS[words]}
    call["q"] = call["q"].astype(np.float32)
    with pytest.raises(ValueError) as caught:
        fla.chunk_kda(**call)
    assert isinstance(caught.value, packattn.Error)
    assert words in str(caught.value).split("error[PA")[0].splitlines()


@pytest.mark.filterwarnings("ignore:.*transpose_state_layout.*:DeprecationWarning")
def test_conflicts_and_unknown_arguments(rng):
    args = inputs(rng, np.asarray)
    for call, code in (
        ({"allow_neg_eigval": True}, "PA1106"),
        ({"state_v_first": True, "transpose_state_layout": True}, "PA1106"),
        ({"output_final_sate": True}, "PA1105"),
    ):
        for name in ("chunk_kda", "fused_recurrent_kda"):
            with pytest.raises(packattn.Error) as caught:
                getattr(fla, name)(*args, **call)
            assert caught.value.code == code
    with pytest.raises(packattn.Error) as caught:
        fla.fused_recurrent_kda_fwd(*args)
    assert [(f.code, f.argument) for f in caught.value.faults] == [("PA1001", "initial_state")]
    with pytest.raises(packattn.Error) as caught:
        fla.fused_kda_gate(args[3])
    assert caught.value.code == "PA6011"
