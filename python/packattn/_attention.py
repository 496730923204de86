# SPDX-License-Identifier: Apache-2.0
"""Softmax attention over packed batches, and the merging of partial results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from typing_extensions import Unpack

from . import _native
from ._batch import BatchLike, PackedBatch, batch_arguments
from ._error import Fault, parse_faults, raise_refusal
from ._implementations import Verdict, parse_verdicts, workspace_bytes
from ._options import (
    ALIGN,
    CHECK_LEVEL,
    Align,
    CheckLevel,
    Progress,
    callback,
    choice,
    flag,
    options_of,
    plain,
    unknown_options,
    with_options_of,
)
from ._tensors import (
    UNRUN_VIEWS,
    VIEWS,
    Tensor,
    allocated_here,
    empty,
    empty_like,
    expects_gradient,
    follow_caller,
    gradient_faults,
    recording,
    shape_of,
    view,
)

Window = tuple[int | None, int | None]

# The defaults as objects, which are told apart by identity whatever a caller passes.
_UNBOUNDED: Window = (None, None)
_NO_SOFTCAP, _ALL, _BOTTOM_RIGHT, _HOST = 0.0, 0, "bottom_right", "host"

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
    window: Window = _UNBOUNDED,
    softmax_scale: float | None = None,
    softcap: float = _NO_SOFTCAP,
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
    :param threads: CPU threads, 0 for what the work keeps busy: of all that the process may use,
        or of as many as torch uses (``torch.get_num_threads()``) once its tensors come in. Changes
        no bit.
    :param check_level: ``"host"`` checks every value that the host has, ``"device"`` lets the
        planner check boundaries on a device; ``"full"`` is ``"host"`` and, for KDA, also the values
        of gates on the host.
    :param workspace: uint8 scratch memory of at least `attention_workspace_bytes`, aligned to 64
        bytes, on the device of the tensors; allocated if not given.
    :param progress: called with finished and total units of work, from a worker thread.
    :returns: ``out``, or ``(out, lse)`` with ``return_lse``. A row without visible keys has out 0
        and lse -inf.
    :raises packattn.Error: with every fault found (PA1xxx to PA5xxx), before anything runs.

    Ctrl-C, and whatever else a signal handler raises, ends a running call; ``out`` and ``lse``
    are then incomplete.
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
    if recording() and expects_gradient(q, k, v, alibi_slopes, sinks, out, lse):
        found = (found or []) + gradient_faults(
            "attention", q=q, k=k, v=v, alibi_slopes=alibi_slopes, sinks=sinks, out=out, lse=lse
        )
    rest: tuple[Any, ...] = ()
    if not (
        window is _UNBOUNDED
        and softmax_scale is lse is alibi_slopes is sinks is implementation is progress is None
        and workspace is None
        and softcap is _NO_SOFTCAP
        and threads is _ALL
        and align is _BOTTOM_RIGHT
        and check_level is _HOST
    ):  # Otherwise the native function knows the defaults, and a small call is short.
        found, rest = _further(
            VIEWS, found, align, window, softmax_scale, softcap, alibi_slopes, sinks, lse,
            implementation, threads, check_level, workspace, progress,
        )  # fmt: skip
    if type(batch) is PackedBatch and not rest and (causal is False or causal is True):
        arguments = (
            found,
            VIEWS[type(q)](q),
            VIEWS[type(k)](k),
            VIEWS[type(v)](v),
            VIEWS[type(out)](out),
            batch._handle,
            causal,
        )
    else:
        arguments = _arguments(VIEWS, found, q, k, v, out, batch, causal, rest)
    follow_caller()
    try:
        refused = _native.attention(*arguments)
    except BaseException:
        refused = _native.after_exception(_native.attention, arguments)
    if refused is not None:
        raise_refusal(refused)
    return (out, lse) if return_lse else out


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of `attention`."""

    causal: bool
    align: Align
    window: Window
    softmax_scale: float | None
    softcap: float
    alibi_slopes: Tensor | None
    sinks: Tensor | None
    out: Tensor | None
    lse: Tensor | None
    return_lse: bool
    implementation: str | None
    threads: int
    check_level: CheckLevel
    workspace: Tensor | None
    progress: Progress | None


_OPTIONS = options_of(attention)


@with_options_of(attention)
def check_attention(
    q: Tensor, k: Tensor, v: Tensor, batch: BatchLike, **options: Unpack[AttentionOptions]
) -> list[Fault]:
    """Every fault of the call itself, as `attention` would list them.

    Nothing runs, and a call meant for a GPU is checked without one. Whether an implementation takes
    the call is for `why`; whether there is memory shows when it runs. Arguments as of `attention`.
    """
    return parse_faults(_native.check_attention(*_unrun(q, k, v, batch, options))[1])


@with_options_of(attention)
def why(
    q: Tensor, k: Tensor, v: Tensor, batch: BatchLike, **options: Unpack[AttentionOptions]
) -> list[Verdict]:
    """What each implementation says about a legal call, best first; the first that takes it runs.

    Arguments as of `attention`; raises `packattn.Error` for a call that is not legal.
    """
    return parse_verdicts(_native.why_attention(*_unrun(q, k, v, batch, options)))


@with_options_of(attention)
def attention_workspace_bytes(
    q: Tensor, k: Tensor, v: Tensor, batch: BatchLike, **options: Unpack[AttentionOptions]
) -> int:
    """Bytes of scratch memory that this call needs. Arguments as of `attention`."""
    told = _native.attention_workspace_bytes(*_unrun(q, k, v, batch, options))
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
    views = [view(tensor) for tensor in tensors]
    follow_caller()
    _native.call(_native.merge_states, found or None, *views, *context)
    return out, lse


def _unrun(q: Any, k: Any, v: Any, batch: Any, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """The native arguments of a call that is only asked about, whose outputs are not made."""
    found = unknown_options("attention", options, _OPTIONS)
    o = {**_OPTIONS, **options}
    tensors = {name: o[name] for name in ("alibi_slopes", "sinks", "out", "lse")}
    found += gradient_faults("attention", q=q, k=k, v=v, **tensors)
    if o["out"] is None:
        found += allocated_here("out")
    if o["lse"] is None and o["return_lse"]:
        found += allocated_here("lse")
    other = ("causal", "out", "return_lse")
    found, rest = _further(
        UNRUN_VIEWS, found, **{name: o[name] for name in _OPTIONS if name not in other}
    )
    return _arguments(UNRUN_VIEWS, found, q, k, v, o["out"], batch, o["causal"], rest)


def _arguments(
    views: Any, found: Any, q: Any, k: Any, v: Any, out: Any, batch: Any, causal: Any, rest: Any
) -> tuple[Any, ...]:
    """The positional arguments of the native functions (see read_attention)."""
    return (
        found,
        views[type(q)](q),
        views[type(k)](k),
        views[type(v)](v),
        views[type(out)](out),
        *batch_arguments(batch),
        flag(causal),
        *rest,
    )


def _further(
    views: Any, found: list[list[str]] | None, align: Any, window: Any, softmax_scale: Any,
    softcap: Any, alibi_slopes: Any, sinks: Any, lse: Any, implementation: Any, threads: Any,
    check_level: Any, workspace: Any, progress: Any,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """The faults so far, and what follows `causal` in the native arguments (see read_attention)."""
    try:
        left, right = window
    except (TypeError, ValueError):
        left = right = None
        pair = "a pair (left, right), each an integer or None"
        found = [*(found or []), ["PA1104", "window", "", repr(window), pair, ""]]
    return found, (
        *(views[type(tensor)](tensor) for tensor in (lse, alibi_slopes, sinks)),
        choice(ALIGN, align),
        plain(left),
        plain(right),
        plain(softmax_scale),
        plain(softcap),
        plain(implementation),
        plain(threads),
        choice(CHECK_LEVEL, check_level),
        views[type(workspace)](workspace),
        callback(progress),
    )


def _new_out(q: Any, v: Any) -> Any:
    q_shape, v_shape = shape_of(q), shape_of(v)
    if q_shape == v_shape is not None and len(q_shape) == 3:
        return empty_like(q, q_shape)
    if q_shape is None or v_shape is None or len(q_shape) != 3 or len(v_shape) not in (3, 4):
        return None
    if v_shape[-1] == q_shape[2]:
        return empty_like(q, q_shape)
    return empty((q_shape[0], q_shape[1], v_shape[-1]), q)


def _new_lse(q: Any) -> Any:
    shape = shape_of(q)
    if shape is None or len(shape) != 3:
        return None
    return empty((shape[1], shape[0]), q, "float32")
