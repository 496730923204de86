# SPDX-License-Identifier: Apache-2.0
"""flash-linear-attention's KDA functions, argument for argument, forward only."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from .._batch import BatchSpec
from .._kda import run_kda
from .._tensors import Tensor, is_torch, shape_of
from ._kda import words
from ._peer import refuse_all, refused, speaking, unknown_arguments

_CHUNK_KEYWORDS = "A_log, dt_bias, chunk_size, transpose_state_layout"


def _options(
    *, gate: bool, sigmoid: bool, negative: bool, lower_bound: Any, A_log: Any, dt_bias: Any,
    **others: Any,
) -> dict[str, Any]:  # fmt: skip
    """Keyword arguments of packattn's operations. Gate parameters count only with the gate."""
    beta_kind = ("two_sigmoid" if negative else "sigmoid") if sigmoid else "given"
    options = {**others, "beta_kind": beta_kind}
    if gate:
        kind = "softplus" if lower_bound is None else "bounded"
        # Models keep A_log as [1, 1, HV, 1].
        rates = A_log.reshape(-1) if len(shape_of(A_log) or ()) > 1 else A_log
        options |= {"gate": kind, "A_log": rates, "dt_bias": dt_bias}
        if lower_bound is not None:
            options["lower_bound"] = lower_bound
    return options


def _conflicts(negative: bool, sigmoid: bool, state_v_first: bool, kwargs: dict[str, Any]) -> Any:
    """Rows of faults for combinations that the original refuses; takes the layout's old name."""
    rows = []
    if negative and not sigmoid:
        needed = "use_beta_sigmoid_in_kernel=False"
        rows.append(["PA1106", "allow_neg_eigval", "", needed, "", ""])
    if "transpose_state_layout" in kwargs:
        if state_v_first:
            rows.append(["PA1106", "state_v_first", "", "transpose_state_layout", "", ""])
        warnings.warn(
            "`transpose_state_layout` is deprecated and renamed to `state_v_first`.",
            DeprecationWarning,
            stacklevel=3,
        )
        state_v_first = bool(kwargs.pop("transpose_state_layout"))
    return rows, "v_first" if state_v_first else "k_first"


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: int | None = None,
    **kwargs: Any,
) -> Any:
    """KDA in chunks. ``kwargs``: ``A_log``, ``dt_bias``, ``chunk_size``.

    Returns ``(o, final_state)``, with ``return_intermediate_states`` also the states before each
    chunk, ``[B, NT, HV, K, V]`` in bf16 (fp32 for NumPy, which has no bf16).
    """
    del disable_recompute, max_num_seqs  # a backward pass and a graph would use them
    A_log, dt_bias = kwargs.pop("A_log", None), kwargs.pop("dt_bias", None)
    chunk_size = kwargs.pop("chunk_size", 64)
    with speaking(words):
        rows, layout = _conflicts(
            allow_neg_eigval, use_beta_sigmoid_in_kernel, state_v_first, kwargs
        )
        rows += unknown_arguments("chunk_kda", kwargs, _CHUNK_KEYWORDS)
        rows += refused(
            "chunk_kda",
            {
                "cp_context": (cp_context, None, "run each rank's sequences by themselves"),
                "use_graph": (use_graph, False, "leave it out: nothing is captured on the CPU"),
            },
        )
        if chunk_size not in (32, 64):
            rows.append(["PA6016", "chunk_size", "", repr(chunk_size), "32 or 64", ""])
        if safe_gate and use_gate_in_kernel:
            rows += _unsafe(lower_bound)
        options = _options(
            gate=use_gate_in_kernel, sigmoid=use_beta_sigmoid_in_kernel, negative=allow_neg_eigval,
            lower_bound=lower_bound, A_log=A_log, dt_bias=dt_bias, scale=scale,
            l2norm=use_qk_l2norm_in_kernel, initial_state=initial_state, state_layout=layout,
            output_final_state=output_final_state, chunk_size=chunk_size,
            return_chunk_states=return_intermediate_states,
        )  # fmt: skip
        batch = None
        if cu_seqlens is not None:
            batch = BatchSpec(cu_seqlens_q=cu_seqlens, host_q=cu_seqlens_cpu)
        result = run_kda("kda_chunk", (q, k, v, g, beta, batch), options, rows)
    if return_intermediate_states:
        o, final, states = result
        rows_of_q = shape_of(q)[0]
        return o, final, _bf16(states.reshape(rows_of_q, -1, *states.shape[1:]))
    return result if output_final_state else (result, None)


def _unsafe(lower_bound: float | None) -> list[list[str]]:
    if lower_bound is None:
        return [["PA1104", "lower_bound", "", "None", "a number in [-5, 0) with safe_gate", ""]]
    if not -5 <= lower_bound < 0:
        return [["PA6012", "lower_bound", "", repr(lower_bound), "in [-5, 0) with safe_gate", ""]]
    return []


def _bf16(states: Any) -> Any:
    return states.bfloat16() if is_torch(states) else states


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """KDA one token after the other. Returns ``(o, final_state)``."""
    with speaking(words):
        rows, layout = _conflicts(
            allow_neg_eigval, use_beta_sigmoid_in_kernel, state_v_first, kwargs
        )
        rows += unknown_arguments("fused_recurrent_kda", kwargs, "transpose_state_layout")
        options = _options(
            gate=use_gate_in_kernel, sigmoid=use_beta_sigmoid_in_kernel, negative=allow_neg_eigval,
            lower_bound=lower_bound, A_log=A_log, dt_bias=dt_bias, scale=scale,
            l2norm=use_qk_l2norm_in_kernel, initial_state=initial_state, state_layout=layout,
            output_final_state=output_final_state,
        )  # fmt: skip
        result = run_kda("kda_recurrent", (q, k, v, g, beta, cu_seqlens), options, rows)
    return result if output_final_state else (result, None)


def fused_recurrent_kda_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    output_final_state: bool = False,
    inplace_final_state: bool = True,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    out: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """The recurrence over a pool of states: ``ssm_state_indices`` ``[N]`` or ``[N, S]``.

    Slot -1 skips a sequence; an empty sequence keeps its state (the original leaves it unwritten).
    """
    with speaking(words):
        rows, layout = _conflicts(
            allow_neg_eigval, use_beta_sigmoid_in_kernel, state_v_first, kwargs
        )
        rows += unknown_arguments("fused_recurrent_kda_fwd", kwargs, "transpose_state_layout")
        options = _options(
            gate=use_gate_in_kernel, sigmoid=use_beta_sigmoid_in_kernel, negative=allow_neg_eigval,
            lower_bound=lower_bound, A_log=A_log, dt_bias=dt_bias, scale=scale, out=out,
            l2norm=use_qk_l2norm_in_kernel, state_layout=layout,
            num_accepted_tokens=num_accepted_tokens,
            output_final_state=output_final_state or inplace_final_state,
        )  # fmt: skip
        if inplace_final_state:
            if initial_state is None:
                rows.append(["PA1001", "initial_state", "", "", "[N, HV, K, V]", ""])
                refuse_all(rows)
            options |= {"state": initial_state, "slots": ssm_state_indices}
        else:
            options |= {"initial_state": initial_state, "read_slots": ssm_state_indices}
        result = run_kda("kda_recurrent", (q, k, v, g, beta, cu_seqlens), options, rows)
    return result if options["output_final_state"] else (result, None)


def fused_kda_gate(
    g: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    output_dtype: Any = None,
) -> Any:
    """The log decay of a raw gate ``[..., H, K]``: ``-exp(A_log) softplus(g + dt_bias)``, or with
    ``lower_bound`` ``lower_bound sigmoid(exp(A_log) (g + dt_bias))``; fp32 unless named."""
    if lower_bound is not None:
        return naive_kda_lowerbound_gate(g, A_log, dt_bias, lower_bound, output_dtype)
    if A_log is None:
        with speaking(words):
            refuse_all([["PA6011", "A_log", "", "softplus", "[HV]", ""]])
    return naive_kda_gate(g, A_log, dt_bias, output_dtype)


def naive_kda_gate(
    g: Tensor, A_log: Tensor, dt_bias: Tensor | None = None, output_dtype: Any = None
) -> Any:
    """``-exp(A_log) softplus(g + dt_bias)``, with softplus(x) = x above 20."""
    x, rate = _gate_inputs(g, A_log, dt_bias)
    if is_torch(x):
        import torch.nn.functional as functional

        return _as(-rate * functional.softplus(x), output_dtype)
    softplus = np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))
    return _as(-rate * softplus.astype(np.float32), output_dtype)


def naive_kda_lowerbound_gate(
    g: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float = -5.0,
    output_dtype: Any = None,
) -> Any:
    """``lower_bound sigmoid(exp(A_log) (g + dt_bias))``; without A_log the factor is 1."""
    x, rate = _gate_inputs(g, A_log, dt_bias)
    x = x if rate is None else rate * x
    if is_torch(x):
        return _as(lower_bound * x.sigmoid(), output_dtype)
    half = np.float32(0.5)
    return _as(np.float32(lower_bound) * (half + half * np.tanh(half * x)), output_dtype)


def _gate_inputs(g: Any, A_log: Any, dt_bias: Any) -> tuple[Any, Any]:
    heads = g.shape[-2]
    x = g.float() if is_torch(g) else g.astype(np.float32)
    if dt_bias is not None:
        x = x + dt_bias.reshape(heads, -1)
    if A_log is None:
        return x, None
    rate = A_log.reshape(heads, 1)
    return x, rate.float().exp() if is_torch(rate) else np.exp(rate.astype(np.float32))


def _as(x: Any, dtype: Any) -> Any:
    if dtype is None or x.dtype == dtype:
        return x
    return x.to(dtype) if is_torch(x) else x.astype(dtype)


def naive_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Any, Any]:
    """The recurrence by packattn's fp64 reference. Returns ``(o, S or None)``."""
    return _naive("kda_recurrent", (q, k, v, g, beta), initial_state, output_final_state, scale)


def naive_chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
) -> tuple[Any, Any]:
    """The chunked form by packattn's fp64 reference; T need not be a multiple of the chunk."""
    return _naive(
        "kda_chunk", (q, k, v, g, beta), initial_state, output_final_state, scale,
        chunk_size=chunk_size,
    )  # fmt: skip


def _naive(
    op: str, inputs: Any, initial: Any, output_final_state: bool, scale: Any, **options: Any
) -> tuple[Any, Any]:
    shape = shape_of(initial)
    if shape is not None and len(shape) == 3:  # one state for every row, as broadcasting would
        initial = (
            initial[None].repeat(*([shape_of(inputs[0])[0]] + [1] * 3))
            if is_torch(initial)
            else np.repeat(initial[None], shape_of(inputs[0])[0], axis=0)
        )
    options |= {
        "scale": scale,
        "initial_state": initial,
        "state_layout": "k_first",
        "output_final_state": output_final_state,
        "implementation": f"ref/{op}",
    }
    with speaking(words):
        result = run_kda(op, (*inputs, None), options, [])
    return result if output_final_state else (result, None)
