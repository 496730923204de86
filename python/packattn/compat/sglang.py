# SPDX-License-Identifier: Apache-2.0
"""SGLang's packed attention and KDA functions, argument for argument.

Packed attention as in SGLang's Ascend backend for diffusion models, KDA as in its linear attention
kernels. On the CPU they run here; everything they refuse is refused with SGLang's own words first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .._attention import attention, check_attention
from .._batch import BatchSpec, PackedBatch
from .._error import Error, Fault
from .._kda import run_kda
from .._tensors import Tensor
from ._kda import decode, following_value_heads, gate_parameters, ones_for, words
from ._peer import refuse_all, refuse_with, speaking, unknown_arguments, unsupported


def fused_infer_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    cu_seqlens_q_host: Sequence[int] | None = None,
    cu_seqlens_k_host: Sequence[int] | None = None,
    softmax_scale: float | None = None,
    return_softmax_lse: bool = False,
    strict: bool = False,
) -> Any:
    """Full attention over packed sequences.

    :param q, k, v: ``[T, N, D]``.
    :param cu_seqlens_q, cu_seqlens_k: ``[B + 1]`` int32 or int64.
    :param strict: also refuse what the original refuses and packattn computes: batches of no
        sequences, and sequences that are empty on one side only.
    :returns: ``out``, or ``(out, lse)`` with lse ``[N, T]`` fp32, natural logarithm.
    """
    spec = BatchSpec(
        cu_seqlens_q=cu_seqlens_q,
        # The original has no self-attention default: a missing tensor is a fault there.
        cu_seqlens_k=cu_seqlens_k,
        host_q=cu_seqlens_q_host,
        host_k=cu_seqlens_k_host,
    )
    with speaking(_attention_words):
        if cu_seqlens_k is None and cu_seqlens_q is not None:
            refuse_with(
                [["PA2001", "cu_seqlens_k", "", "", "", ""]],
                # Without them the check takes the keys to share the queries' boundaries.
                (
                    fault
                    for fault in check_attention(q, k, v, spec)
                    if fault.code not in ("PA2006", "PA2008") or fault.position == "q"
                ),
            )
        if strict:
            _refuse_as_original(spec)
        return attention(q, k, v, spec, softmax_scale=softmax_scale, return_lse=return_softmax_lse)


_ONE_SIDE_EMPTY = (
    "NPU packed attention does not support a sequence that is empty only on the query or "
    "key/value side"
)


def _refuse_as_original(spec: BatchSpec) -> None:
    try:
        batch = PackedBatch(spec)
    except Error:  # the call itself will list these faults beside those of its tensors
        return
    function = "fused_infer_attention_varlen(strict=True)"
    if batch.size == 0:
        refuse_all(
            [
                unsupported(
                    function, "cu_seqlens_q", "[0]", "call without strict: the output is empty"
                )
            ]
        )
    empty_q, empty_k = batch.lengths_q == 0, batch.lengths_k == 0
    for n in (empty_q != empty_k).nonzero()[0][:1]:
        side = "cu_seqlens_q" if empty_q[n] else "cu_seqlens_k"
        remedy = "call without strict: rows without keys are 0, their lse -inf"
        row = unsupported(function, side, "", remedy)
        row[3] = f"no tokens in sequence {n}"
        refuse_all([row])


def _attention_words(faults: tuple[Fault, ...]) -> Iterator[str]:
    """SGLang's messages for these faults, in the order of its checks."""

    def names(*codes: str) -> list[str]:
        return [f.argument for f in faults if f.code in codes and f.argument in ("q", "k", "v")]

    if wrong := names("PA1001", "PA1002"):
        yield (
            "NPU packed attention requires q, k, and v in [T, N, D] layout; "
            f"invalid tensors: {', '.join(wrong)}"
        )
    if wrong := names("PA1003"):
        yield (
            "NPU packed attention requires q, k, and v on the same NPU; "
            f"invalid tensors: {', '.join(wrong)}"
        )
    if names("PA1004"):
        yield "NPU packed attention requires q, k, and v with the same dtype"
    if names("PA1006", "PA1007"):
        yield "NPU packed attention requires matching K/V token and head counts"
    if names("PA1008"):
        yield "NPU packed attention requires matching Q/K head dimensions"
    for fault in faults:
        if fault.code == "PA3009":
            yield _strict_words(fault)
        elif fault.code in _BOUNDARY_WORDS:
            yield _BOUNDARY_WORDS[fault.code].format(
                name=fault.argument.replace("host_", "cu_seqlens_"),
                value=fault.value,
                limit=fault.limit,
            )


_BOUNDARY_WORDS = {
    "PA2001": "{name} is required for NPU packed attention",
    "PA2002": "{name} must be a 1D int32 or int64 tensor",
    "PA2003": "{name} must be a 1D int32 or int64 tensor",
    "PA2004": "{name} must start with 0 and contain at least one sequence",
    "PA2005": "{name} must start with 0 and contain at least one sequence",
    "PA2006": "{name} must end at the packed token count {limit}, got {value}",
    "PA2007": "{name} must be non-decreasing",
    "PA2008": "{name} must end at the packed token count {limit}, got {value}",
    "PA2009": "cu_seqlens_q and cu_seqlens_k must describe the same batch",
    "PA2010": "{name} and its host copy must have the same length",
}


def _strict_words(fault: Fault) -> str:
    if "sequence" in fault.value:
        return _ONE_SIDE_EMPTY
    return f"{fault.argument} must start with 0 and contain at least one sequence"


_RECURRENT_ARGUMENTS = (
    "q, k, v, g, beta, scale, initial_state, inplace_final_state, use_qk_l2norm_in_kernel, "
    "cu_seqlens"
)


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    use_qk_l2norm_in_kernel: bool = True,
    cu_seqlens: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """KDA, one token after the other, for decoding.

    :param q, k: ``[B, T, H, K]``; B is 1 with ``cu_seqlens``.
    :param v: ``[B, T, HV, V]``.
    :param g: log decay ``[B, T, HV, K]``, or ``[B, T, H, K]``, which follows the key heads and is
        repeated for the value heads of each.
    :param beta: ``[B, T, HV]`` or ``[B, T, HV, V]``; ones if missing (the original crashes).
    :param initial_state: ``[N, HV, V, K]``; zeros if missing (the original crashes).
    :param inplace_final_state: write the final state into ``initial_state`` and return that.
    :returns: ``(out, final state)``.
    """
    found = unknown_arguments("fused_recurrent_kda", kwargs, _RECURRENT_ARGUMENTS)
    options = {"scale": scale, "l2norm": use_qk_l2norm_in_kernel}
    with speaking(words):
        return decode(
            (q, k, v, g, beta), cu_seqlens, initial_state, inplace_final_state, options, found
        )


_CHUNK_ARGUMENTS = (
    "q, k, v, g, beta, scale, initial_state, initial_state_indices, use_qk_l2norm_in_kernel, "
    "cu_seqlens, A_log, dt_bias, lower_bound, output_intermediate_states"
)


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    output_intermediate_states: bool = False,
    **kwargs: Any,
) -> Any:
    """KDA in chunks over a pool of states ``[slots, HV, V, K]``, updated in place.

    :param q, k: ``[B, T, H, K]``; B is 1 with ``cu_seqlens``.
    :param v: ``[B, T, HV, V]``; it keeps its values (the original writes its output there).
    :param g: log decay ``[B, T, HV, K]``, or with ``A_log`` the raw gate. ``[B, T, H, K]`` follows
        the key heads and is repeated, with ``A_log`` and ``dt_bias``, for the value heads of each.
    :param beta: ``[B, T, HV]``; ones if missing (the original crashes).
    :param initial_state: fp32 or bf16; zeros if missing (the original crashes).
    :param initial_state_indices: ``[N]``, the slots of the sequences. -1 skips one: its output is 0
        and no state is touched (the original runs it from zeros and drops its state).
    :param A_log: ``[HV]`` in any number of dimensions. Without it the original takes g as it is and
        does not look at ``dt_bias`` and ``lower_bound``; so does this.
    :param output_intermediate_states: also return the states before each chunk of 64 tokens,
        ``[B, NT, HV, V, K]``; in fp32, where the original rounds them to the dtype of k.
    :returns: ``out``, or ``(out, h)``.
    """
    found = unknown_arguments("chunk_kda", kwargs, _CHUNK_ARGUMENTS)
    options: dict[str, Any] = {
        "scale": scale,
        "l2norm": use_qk_l2norm_in_kernel,
        "state_layout": "v_first",
        "state": initial_state,
        "slots": initial_state_indices,
        "return_chunk_states": output_intermediate_states,
    }
    if A_log is not None:
        options["A_log"], options["dt_bias"] = gate_parameters(A_log, dt_bias, q, v)
        options["gate"] = "softplus" if lower_bound is None else "bounded"
        if lower_bound is not None:
            options["lower_bound"] = lower_bound
    with speaking(words):
        beta = ones_for(v, q) if beta is None else beta
        inputs = (q, k, v, following_value_heads(g, q, v), beta, cu_seqlens)
        result = run_kda("kda_chunk", inputs, options, found)
    if not output_intermediate_states:
        return result
    out, _, states = result
    # With boundaries the chunks of all sequences lie in the one batch row.
    rows = 1 if cu_seqlens is not None else out.shape[0]
    each = states.shape[0] // rows if rows else 0
    return out, states.reshape(rows, each, *states.shape[1:])
