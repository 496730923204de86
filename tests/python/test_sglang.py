# SPDX-License-Identifier: Apache-2.0
"""packattn.compat.sglang: SGLang's arguments, conventions and words."""

import inspect

import numpy as np
import packattn
import pytest
import reference
from packattn.compat import sglang


def call(rng, kind, **changes):
    f = lambda *s: kind(rng.standard_normal(s, np.float32))  # noqa: E731
    ends = lambda *e: kind(np.array(e, np.int32))  # noqa: E731
    arguments = {
        "q": f(15, 2, 8),
        "k": f(25, 2, 8),
        "v": f(25, 2, 8),
        "cu_seqlens_q": ends(0, 5, 12, 15),
        "cu_seqlens_k": ends(0, 9, 21, 25),
    }
    for name, change in changes.items():
        arguments[name] = change(f, ends) if callable(change) else change
    return arguments


def test_signatures():
    assert str(inspect.signature(sglang.fused_infer_attention_varlen)).split(" -> ")[0] == (
        "(q: 'Tensor', k: 'Tensor', v: 'Tensor', cu_seqlens_q: 'Tensor', cu_seqlens_k: 'Tensor', "
        "*, cu_seqlens_q_host: 'Sequence[int] | None' = None, "
        "cu_seqlens_k_host: 'Sequence[int] | None' = None, softmax_scale: 'float | None' = None, "
        "return_softmax_lse: 'bool' = False, strict: 'bool' = False)"
    )
    names = list(inspect.signature(sglang.fused_recurrent_kda).parameters)
    assert ", ".join(names[:-1]) == sglang._RECURRENT_ARGUMENTS
    parameters = inspect.signature(sglang.chunk_kda).parameters
    assert ", ".join(list(parameters)[:-1]) == sglang._CHUNK_ARGUMENTS
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults == {
        "beta": None,  # there without a default
        "scale": None,
        "initial_state": None,
        "initial_state_indices": None,
        "use_qk_l2norm_in_kernel": False,
        "cu_seqlens": None,
        "A_log": None,
        "dt_bias": None,
        "lower_bound": None,
        "output_intermediate_states": False,
    }


def test_attention(rng, kind):
    arguments = call(rng, kind)
    hosts = {"cu_seqlens_q_host": (0, 5, 12, 15), "cu_seqlens_k_host": [0, 9, 21, 25]}
    out, lse = sglang.fused_infer_attention_varlen(
        **arguments, **hosts, softmax_scale=0.5, return_softmax_lse=True, strict=True
    )
    assert isinstance(out, kind.type()) and tuple(lse.shape) == (2, 15)
    q, k, v, *_ = arguments.values()
    rows = [[0, 5, 0, 9], [5, 7, 9, 12], [12, 3, 21, 4]]
    want, want_lse = reference.attention(q, k, v, rows, softmax_scale=0.5)
    assert reference.relative_error(out, want) < 2e-6
    assert reference.relative_error(lse, want_lse) < 2e-6
    only = sglang.fused_infer_attention_varlen(**arguments, softmax_scale=0.5)
    assert np.array_equal(only, out)


WRONG = {
    "NPU packed attention requires q, k, and v in [T, N, D] layout; invalid tensors: q, v": (
        {"q": lambda f, e: f(15, 8), "v": lambda f, e: f(1, 25, 2, 8)},
        "PA1002",
    ),
    "NPU packed attention requires q, k, and v with the same dtype": (
        {"k": lambda f, e: f(25, 2, 8).astype(np.float16)},
        "PA1004",
    ),
    "NPU packed attention requires matching K/V token and head counts": (
        {"v": lambda f, e: f(24, 2, 8)},
        "PA1006",
    ),
    "NPU packed attention requires matching Q/K head dimensions": (
        {"k": lambda f, e: f(25, 2, 16)},
        "PA1008",
    ),
    "cu_seqlens_q is required for NPU packed attention": ({"cu_seqlens_q": None}, "PA2001"),
    "cu_seqlens_k is required for NPU packed attention": ({"cu_seqlens_k": None}, "PA2001"),
    "cu_seqlens_q must be a 1D int32 or int64 tensor": (
        {"cu_seqlens_q": lambda f, e: e(0, 15)[None]},
        "PA2002",
    ),
    "cu_seqlens_k must be a 1D int32 or int64 tensor": (
        {"cu_seqlens_k": lambda f, e: f(4)},
        "PA2003",
    ),
    "cu_seqlens_q and its host copy must have the same length": (
        {"cu_seqlens_q_host": (0, 15)},
        "PA2010",
    ),
    "cu_seqlens_q must start with 0 and contain at least one sequence": (
        {"cu_seqlens_q": lambda f, e: e(1, 5, 12, 15)},
        "PA2005",
    ),
    "cu_seqlens_k must end at the packed token count 25, got 26": (
        {"cu_seqlens_k": lambda f, e: e(0, 9, 21, 26)},
        "PA2006",
    ),
    "cu_seqlens_q must end at the packed token count 15, got 14": (
        {"cu_seqlens_q": lambda f, e: e(0, 5, 12, 14)},
        "PA2008",
    ),
    "cu_seqlens_q must be non-decreasing": (
        {"cu_seqlens_q": lambda f, e: e(0, 12, 5, 15)},
        "PA2007",
    ),
    "cu_seqlens_q and cu_seqlens_k must describe the same batch": (
        {"cu_seqlens_k": lambda f, e: e(0, 9, 25)},
        "PA2009",
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_sglang_words_come_first(rng, words):
    changes, code = WRONG[words]
    with pytest.raises(ValueError) as caught:
        sglang.fused_infer_attention_varlen(**call(rng, np.asarray, **changes))
    assert isinstance(caught.value, packattn.Error)
    assert str(caught.value).splitlines()[0] == words
    assert f"error[{code}]: " in str(caught.value)
    assert code in [fault.code for fault in caught.value.faults]


def test_several_faults_give_several_messages(rng):
    arguments = call(rng, np.asarray, k=lambda f, e: f(25, 2, 8).astype(np.float16))
    arguments["cu_seqlens_k"] = None
    with pytest.raises(packattn.Error) as caught:
        sglang.fused_infer_attention_varlen(**arguments, cu_seqlens_q_host=[0])
    assert [fault.code for fault in caught.value.faults] == ["PA2001", "PA2010", "PA1004"]
    assert str(caught.value).splitlines()[:3] == [
        "NPU packed attention requires q, k, and v with the same dtype",
        "cu_seqlens_k is required for NPU packed attention",
        "cu_seqlens_q and its host copy must have the same length",
    ]


def test_strict(rng, kind):
    one_side = call(rng, kind, cu_seqlens_k=lambda f, e: e(0, 9, 9, 25))
    out = sglang.fused_infer_attention_varlen(**one_side)
    assert not np.asarray(out)[5:12].any()
    with pytest.raises(NotImplementedError) as caught:
        sglang.fused_infer_attention_varlen(**one_side, strict=True)
    assert str(caught.value).startswith("NPU packed attention does not support a sequence that is")
    assert caught.value.faults[0].argument == "cu_seqlens_k"
    nothing = {name: kind(np.ones((0, 2, 8), np.float32)) for name in "qkv"}
    zero = kind(np.zeros(1, np.int32))
    nothing |= {"cu_seqlens_q": zero, "cu_seqlens_k": zero}
    assert sglang.fused_infer_attention_varlen(**nothing).shape[0] == 0
    with pytest.raises(ValueError) as caught:
        sglang.fused_infer_attention_varlen(**nothing, strict=True)
    assert str(caught.value).startswith("cu_seqlens_q must start with 0 and contain at least one")


def kda(rng, kind, batch=1, tokens=12, gates=4):
    f = lambda *s: rng.standard_normal(s, np.float32)  # noqa: E731
    beta = 1 / (1 + np.exp(-f(batch, tokens, 4)))
    arrays = (f(batch, tokens, 2, 8), f(batch, tokens, 2, 8), f(batch, tokens, 4, 16),
              -np.abs(f(batch, tokens, gates, 8)), beta)  # fmt: skip
    return tuple(map(kind, arrays))


def test_recurrence_updates_the_state_in_place(rng, kind):
    args = kda(rng, kind)
    initial = rng.standard_normal((2, 4, 16, 8), np.float32)
    ends = kind(np.array([0, 5, 12]))
    want, states = reference.kda(*args, [0, 5, 12], l2norm=True, initial=initial.swapaxes(2, 3))
    state = kind(initial.copy())
    out, final = sglang.fused_recurrent_kda(*args, initial_state=state, cu_seqlens=ends)
    assert final is state
    assert reference.relative_error(out, want) < 5e-6
    assert reference.relative_error(np.asarray(state).swapaxes(2, 3), states) < 5e-6
    kept = kind(initial.copy())
    again, final = sglang.fused_recurrent_kda(
        *args, initial_state=kept, cu_seqlens=ends, inplace_final_state=False
    )
    assert np.array_equal(again, out) and np.array_equal(final, state)
    assert np.array_equal(kept, initial)


def test_what_crashes_there_works_here(rng, kind):
    q, k, v, g, _ = kda(rng, kind, batch=2)
    out, final = sglang.fused_recurrent_kda(q, k, v, g)
    assert tuple(final.shape) == (2, 4, 16, 8)
    ones = np.ones((2, 12, 4), np.float32)
    want, _ = sglang.fused_recurrent_kda(q, k, v, g, kind(ones), scale=8**-0.5)
    assert np.array_equal(out, want)


def test_gates_of_key_heads_are_repeated(rng, kind):
    q, k, v, g, beta = kda(rng, kind, gates=2)
    out, _ = sglang.fused_recurrent_kda(q, k, v, g, beta)
    repeated = kind(np.repeat(np.asarray(g), 2, axis=2))
    assert np.array_equal(out, sglang.fused_recurrent_kda(q, k, v, repeated, beta)[0])


def test_recurrence_refusals(rng, kind):
    args = kda(rng, kind, batch=2)
    with pytest.raises(ValueError) as caught:
        sglang.fused_recurrent_kda(*args, cu_seqlens=kind(np.array([0, 24])), ssm_state_indices=1)
    assert str(caught.value).startswith(
        "The batch size is expected to be 1 rather than 2 when using `cu_seqlens`."
        "Please flatten variable-length inputs before processing."
    )
    assert {fault.code for fault in caught.value.faults} >= {"PA1105", "PA6001"}
    with pytest.raises(packattn.Error) as caught:
        sglang.fused_recurrent_kda(None, *args[1:])
    assert "PA1001" in [fault.code for fault in caught.value.faults]


def test_chunks_update_the_pool_in_place(rng, kind):
    q, k, v, g, beta = arrays = kda(rng, kind)
    ends = kind(np.array([0, 5, 12], np.int32))
    pool = rng.standard_normal((5, 4, 16, 8), np.float32)
    want, states = reference.kda(
        *arrays, [0, 5, 12], l2norm=True, initial=pool[[3, 1]].swapaxes(2, 3)
    )
    state, before = kind(pool.copy()), np.asarray(v).copy()
    out = sglang.chunk_kda(
        q, k, v, g, beta, None, state, kind(np.array([3, 1], np.int32)), True, ends
    )
    assert isinstance(out, kind.type()) and np.array_equal(before, v)
    assert reference.relative_error(out, want) < 5e-6
    assert reference.relative_error(np.asarray(state)[[3, 1]].swapaxes(2, 3), states) < 5e-6
    assert np.array_equal(np.asarray(state)[[0, 2, 4]], pool[[0, 2, 4]])
    # The null slot: output 0, nothing touched.
    state = kind(pool.copy())
    out = sglang.chunk_kda(
        *arrays, initial_state=state, initial_state_indices=kind(np.array([-1, 1])),
        cu_seqlens=ends, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    assert not np.asarray(out)[0, :5].any() and np.asarray(out)[0, 5:].any()
    assert np.array_equal(np.asarray(state)[[0, 2, 3, 4]], pool[[0, 2, 3, 4]])


def test_chunks_without_beta_and_states(rng, kind):
    q, k, v, g, _ = kda(rng, kind, batch=2)
    out = sglang.chunk_kda(q, k, v, g)
    ones, zeros = np.ones((2, 12, 4), np.float32), np.zeros((2, 4, 16, 8), np.float32)
    want = sglang.chunk_kda(q, k, v, g, kind(ones), 8**-0.5, initial_state=kind(zeros))
    assert np.array_equal(out, want)


def test_gates_are_computed_where_a_log_is_given(rng, kind):
    q, k, v, raw, beta = kda(rng, kind, gates=2)
    a_log, bias = rng.standard_normal(2, np.float32), rng.standard_normal(16, np.float32)
    x = np.asarray(raw).astype(np.float64) + bias.reshape(2, 8)
    rate = np.exp(a_log.astype(np.float64))[:, None]
    gates = {None: -rate * np.log1p(np.exp(x)), -4.0: -4 / (1 + np.exp(-rate * x))}
    for bound, g in gates.items():
        # Models keep A_log with dimensions of size 1, and here gates follow the key heads.
        got = sglang.chunk_kda(
            q, k, v, raw, beta, A_log=kind(a_log.reshape(1, 1, 2, 1)), dt_bias=kind(bias),
            lower_bound=bound,
        )  # fmt: skip
        want, _ = reference.kda(q, k, v, np.repeat(g, 2, axis=2), beta, [0, 12])
        assert reference.relative_error(got, want) < 5e-6
    # Without A_log the gate is a log decay already, whatever else is given.
    given = kind(-np.abs(np.asarray(raw)))
    plain = sglang.chunk_kda(q, k, v, given, beta)
    assert np.array_equal(
        plain, sglang.chunk_kda(q, k, v, given, beta, dt_bias=kind(bias), lower_bound=-4.0)
    )


def test_states_before_each_chunk(rng, kind):
    args = kda(rng, kind, tokens=150)
    _, h = sglang.chunk_kda(
        *args, cu_seqlens=kind(np.array([0, 130, 150])), output_intermediate_states=True
    )
    assert tuple(h.shape) == (1, 3 + 1, 4, 16, 8)
    cut = [kind(np.array(np.asarray(t)[:, :64])) for t in args]
    _, after = packattn.kda_chunk(*cut, [0, 64], state_layout="v_first", output_final_state=True)
    assert np.array_equal(np.asarray(h)[0, 1], np.asarray(after)[0])
    assert not np.asarray(h)[0, [0, 3]].any()
    _, h = sglang.chunk_kda(*kda(rng, kind, batch=2, tokens=70), output_intermediate_states=True)
    assert tuple(h.shape) == (2, 2, 4, 16, 8)


def test_chunk_refusals(rng, kind):
    args = kda(rng, kind, batch=2)
    with pytest.raises(ValueError) as caught:
        sglang.chunk_kda(*args, cu_seqlens=kind(np.array([0, 24])), output_final_state=True)
    assert "The batch size is expected to be 1" in str(caught.value)
    assert {fault.code for fault in caught.value.faults} >= {"PA1105", "PA6001"}
    args = kda(rng, kind)
    ends = kind(np.array([0, 5, 12]))
    pool = kind(np.zeros((5, 4, 16, 8), np.float32))
    for slots, code in (([5, 1], "PA6008"), ([2, 2], "PA6009"), ([1], "PA6007")):
        with pytest.raises(packattn.Error) as caught:
            sglang.chunk_kda(
                *args, initial_state=pool, initial_state_indices=kind(np.array(slots)),
                cu_seqlens=ends,
            )  # fmt: skip
        assert code in [fault.code for fault in caught.value.faults]
    with pytest.raises(packattn.Error) as caught:  # K first
        sglang.chunk_kda(*args, initial_state=kind(np.zeros((1, 4, 8, 16), np.float32)))
    assert caught.value.code == "PA6004"
