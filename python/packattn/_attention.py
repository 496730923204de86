# SPDX-License-Identifier: Apache-2.0
"""Softmax attention over packed batches, and the merging of partial results."""

from __future__ import annotations

from typing import Any

from . import _native
from ._batch import BatchLike, batch_arguments
from ._error import Fault, parse_faults, raise_refusal
from ._implementations import Verdict, parse_verdicts, workspace_bytes
from ._options import ALIGN, CHECK_LEVEL, Align, CheckLevel, Progress, callback, choice, flag, plain
from ._tensors import (
    Tensor,
    allocated_here,
    empty,
    expects_gradient,
    gradient_faults,
    shape_of,
    view,
    view_unrun,
)

Window = tuple[int | None, int | None]

# packattn.torch_ops sets these: whether torch traces a function, and what runs then.
tracing: Any = None
traced: Any = None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: BatchLike,
    *,
    causal: bool = False,
    align: Align = "bottom_right",
    window: Window = (None, None),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    threads: int = 0,
    check_level: CheckLevel = "host",
    workspace: Tensor | None = None,
    progress: Progress | None = None,
) -> Any:
    """Every sequence's queries attend to its own keys.

    For query head h, key head h // (Hq / Hk), query i and key j of one sequence, with
    shift = Lk - Lq (``align="bottom_right"``) or 0 (``"top_left"``)::

        x     = softmax_scale * q_i . k_j            default 1 / sqrt(D)
        x     = softcap * tanh(x / softcap)          if softcap > 0
        x    -= alibi_slopes[h] * |i + shift - j|
        lse_i = ln(sum_j exp x + exp(sinks[h]))      over visible keys; the sink only if given
        out_i = sum_j exp(x - lse_i) v_j

    Key j is visible if ``j <= i + shift`` (causal), ``j >= i + shift - left`` and
    ``j <= i + shift + right``; None is no bound.

    :param q: ``[Tq, Hq, D]`` fp32, fp16 or bf16; any strides with a last one of 1.
    :param k: ``[Tk, Hk, D]``, or with a paged batch the cache ``[pages, page_size, Hk, D]``.
    :param v: ``[Tk, Hk, Dv]``, or ``[pages, page_size, Hk, Dv]``.
    :param batch: a `PackedBatch`, a `BatchSpec`, or ``cu_seqlens`` ``[N + 1]``.
    :param alibi_slopes: ``[Hq]`` or ``[N, Hq]`` fp32.
    :param sinks: ``[Hq]`` fp32.
    :param out: ``[Tq, Hq, Dv]`` of q's dtype, or fp32; made if not given.
    :param lse: ``[Hq, Tq]`` fp32, natural logarithm; made if ``return_lse``.
    :param implementation: a name from `packattn.implementations`; None picks the best.
    :param threads: CPU threads, 0 for all that the process may use. Changes no bit.
    :param check_level: ``"host"`` checks every value that the host has, ``"device"`` lets the
        planner check boundaries on a device, ``"full"`` reads back and checks everything.
    :param workspace: uint8 scratch memory of at least `attention_workspace_bytes`, aligned to 64
        bytes, on the device of the tensors; allocated if not given.
    :param progress: called with finished and total units of work, from a worker thread.
    :returns: ``out``, or ``(out, lse)`` with ``return_lse``. A row without visible keys has out 0
        and lse -inf.
    :raises packattn.Error: with every fault found (PA1xxx to PA5xxx), before anything runs.
    """
    if tracing is not None and tracing():
        options = {
            "causal": causal, "align": align, "window": window, "softmax_scale": softmax_scale,
            "softcap": softcap, "alibi_slopes": alibi_slopes, "sinks": sinks, "out": out,
            "lse": lse, "return_lse": return_lse, "implementation": implementation,
            "threads": threads, "workspace": workspace, "progress": progress,
        }  # fmt: skip
        return traced(q, k, v, batch, options)
    found: list[list[str]] | None = None
    if out is None and (out := _new_out(q, v)) is None:
        found = allocated_here("out")
    if lse is None and return_lse and (lse := _new_lse(q)) is None:
        found = (found or []) + allocated_here("lse")
    if expects_gradient(q, k, v, alibi_slopes, sinks, out, lse):
        found = (found or []) + gradient_faults(
            "attention", q=q, k=k, v=v, alibi_slopes=alibi_slopes, sinks=sinks, out=out, lse=lse
        )
    refused = _native.attention(
        *_arguments(
            view, found, q, k, v, out, lse, alibi_slopes, sinks, causal, align, window,
            softmax_scale, softcap, implementation, threads, check_level, workspace, progress,
            batch,
        )
    )  # fmt: skip
    if refused is not None:
        raise_refusal(refused)
    return (out, lse) if return_lse else out


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: BatchLike,
    *,
    causal: bool = False,
    align: Align = "bottom_right",
    window: Window = (None, None),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    threads: int = 0,
    check_level: CheckLevel = "host",
    workspace: Tensor | None = None,
    progress: Progress | None = None,
) -> list[Fault]:
    """Every fault for which `attention` would refuse this call; empty if it would run.

    Nothing runs, and a call meant for a GPU is checked without one. Arguments as of `attention`.
    """
    found = gradient_faults(
        "attention", q=q, k=k, v=v, alibi_slopes=alibi_slopes, sinks=sinks, out=out, lse=lse
    )
    if out is None:
        found += allocated_here("out")
    if lse is None and return_lse:
        found += allocated_here("lse")
    checked = _native.check_attention(
        *_arguments(
            view_unrun, found, q, k, v, out, lse, alibi_slopes, sinks, causal, align, window,
            softmax_scale, softcap, implementation, threads, check_level, workspace, progress,
            batch,
        )
    )  # fmt: skip
    return parse_faults(checked[1])


def why(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: BatchLike,
    *,
    causal: bool = False,
    align: Align = "bottom_right",
    window: Window = (None, None),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    threads: int = 0,
    check_level: CheckLevel = "host",
    workspace: Tensor | None = None,
    progress: Progress | None = None,
) -> list[Verdict]:
    """What each implementation says about a legal call, best first; the first that takes it runs.

    Arguments as of `attention`; raises `packattn.Error` for a call that is not legal.
    """
    found = allocated_here("out") if out is None else []
    if lse is None and return_lse:
        found += allocated_here("lse")
    told = _native.why_attention(
        *_arguments(
            view_unrun, found, q, k, v, out, lse, alibi_slopes, sinks, causal, align, window,
            softmax_scale, softcap, implementation, threads, check_level, workspace, progress,
            batch,
        )
    )  # fmt: skip
    return parse_verdicts(told)


def attention_workspace_bytes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: BatchLike,
    *,
    causal: bool = False,
    align: Align = "bottom_right",
    window: Window = (None, None),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    threads: int = 0,
) -> int:
    """Bytes of scratch memory that this call needs. Arguments as of `attention`."""
    found = allocated_here("out") if out is None else []
    if lse is None and return_lse:
        found += allocated_here("lse")
    told = _native.attention_workspace_bytes(
        *_arguments(
            view_unrun, found, q, k, v, out, lse, alibi_slopes, sinks, causal, align, window,
            softmax_scale, softcap, implementation, threads, "host", None, None, batch,
        )
    )  # fmt: skip
    return workspace_bytes(told)


def merge_states(
    out_a: Tensor,
    lse_a: Tensor,
    out_b: Tensor,
    lse_b: Tensor,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    threads: int = 0,
) -> tuple[Any, Any]:
    """Joins two partial results over disjoint keys by their lse::

        lse = logaddexp(lse_a, lse_b)
        out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b

    A part with lse -inf has weight 0, whatever its out holds.

    :param out_a, out_b: ``[T, H, D]`` fp32, fp16 or bf16.
    :param lse_a, lse_b: ``[H, T]`` fp32.
    :param out, lse: may be part a's own, to work in place; made if not given.
    :raises packattn.Error: PA1xxx.
    """
    found = gradient_faults(
        "merge_states", out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b, out=out, lse=lse
    )
    if out is None:
        shape = shape_of(out_a)
        out = None if shape is None else empty(shape, out_a)
        found += allocated_here("out") if out is None else []
    if lse is None:
        shape = shape_of(lse_a)
        lse = None if shape is None else empty(shape, lse_a)
        found += allocated_here("lse") if lse is None else []
    tensors = (out_a, lse_a, out_b, lse_b, out, lse)
    context = (None, plain(threads), 0, None, None)
    _native.call(_native.merge_states, found or None, *map(view, tensors), *context)
    return out, lse


def _arguments(
    see: Any, found: list[list[str]] | None, q: Any, k: Any, v: Any, out: Any, lse: Any,
    alibi_slopes: Any, sinks: Any, causal: Any, align: Any, window: Any, softmax_scale: Any,
    softcap: Any, implementation: Any, threads: Any, check_level: Any, workspace: Any,
    progress: Any, batch: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The positional arguments of the native functions (see read_attention)."""
    try:
        left, right = window
    except (TypeError, ValueError):
        left = right = None
        pair = "a pair (left, right), each an integer or None"
        found = [*(found or []), ["PA1104", "window", "", repr(window), pair, ""]]
    return (
        found,
        see(q),
        see(k),
        see(v),
        see(out),
        see(lse),
        see(alibi_slopes),
        see(sinks),
        causal if causal is False or causal is True else flag(causal),
        choice(ALIGN, align),
        left if left is None else plain(left),
        right if right is None else plain(right),
        softmax_scale if softmax_scale is None else plain(softmax_scale),
        softcap if type(softcap) is float else plain(softcap),
        implementation if implementation is None else plain(implementation),
        plain(threads),
        choice(CHECK_LEVEL, check_level),
        see(workspace),
        callback(progress),
        *batch_arguments(batch),
    )


def _new_out(q: Any, v: Any) -> Any:
    q_shape, v_shape = shape_of(q), shape_of(v)
    if q_shape is None or v_shape is None or len(q_shape) != 3 or len(v_shape) not in (3, 4):
        return None
    return empty((q_shape[0], q_shape[1], v_shape[-1]), q)


def _new_lse(q: Any) -> Any:
    shape = shape_of(q)
    if shape is None or len(shape) != 3:
        return None
    return empty((shape[1], shape[0]), q, "float32")
