# SPDX-License-Identifier: Apache-2.0
"""What stands beside Kimi Delta Attention in a layer: gate, norms, short convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict

from typing_extensions import Unpack

from . import _native
from ._batch import BatchLike, batch_arguments, sequence_count
from ._error import Fault, parse_faults, raise_refusal
from ._implementations import Verdict, parse_verdicts
from ._options import (
    ACTIVATION,
    GATE,
    Gate,
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
    boundaries,
    empty,
    follow_caller,
    gradient_faults,
    shape_of,
)

Activation = Literal["swish", "silu", "sigmoid"]

# packattn.torch_ops sets these: whether torch traces a function, and what runs then.
tracing: Any = None
traced: Any = None


class KdaGateOptions(TypedDict, total=False):
    """The keyword arguments of `kda_gate`."""

    gate: Gate
    A_log: Tensor | None
    dt_bias: Tensor | None
    lower_bound: float
    out: Tensor | None
    implementation: str | None
    threads: int


class L2NormOptions(TypedDict, total=False):
    """The keyword arguments of `l2norm`."""

    eps: float
    out: Tensor | None
    implementation: str | None
    threads: int


class ShortConvolutionOptions(TypedDict, total=False):
    """The keyword arguments of `short_convolution`."""

    bias: Tensor | None
    silu: bool
    state: Tensor | None
    initial_state: Tensor | None
    final_state: Tensor | None
    slots: Tensor | None
    null_slot: int
    output_final_state: bool
    out: Tensor | None
    implementation: str | None
    threads: int


class GatedRmsNormOptions(TypedDict, total=False):
    """The keyword arguments of `gated_rms_norm`."""

    weight: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    activation: Activation
    eps: float
    out: Tensor | None
    residual_out: Tensor | None
    return_residual: bool
    implementation: str | None
    threads: int


def kda_gate(
    g: Tensor,
    *,
    gate: Gate = "softplus",
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float = -5.0,
    out: Tensor | None = None,
    implementation: str | None = None,
    threads: int = 0,
) -> Any:
    """The log decay that a KDA call would use, as a tensor::

        softplus:  -exp(A_log) softplus(g + dt_bias)
        bounded:   lower_bound sigmoid(exp(A_log) (g + dt_bias))

    :param g: ``[B, T, HV, K]`` fp32, fp16 or bf16.
    :param A_log: ``[HV]`` fp32; optional for the bounded kind.
    :param dt_bias: ``[HV, K]`` or ``[HV * K]`` fp32.
    :param out: g's shape; fp32 or g's dtype; made (fp32) if not given.
    :returns: ``out``.
    :raises packattn.Error: with every fault found (PA1xxx, PA3xxx, PA6xxx), before anything runs.
    """
    given = {
        "gate": gate, "A_log": A_log, "dt_bias": dt_bias, "lower_bound": lower_bound,
        "out": out, "implementation": implementation, "threads": threads,
    }  # fmt: skip
    return _run("kda_gate", (g,), given)


def l2norm(
    x: Tensor,
    *,
    eps: float = 1e-6,
    out: Tensor | None = None,
    implementation: str | None = None,
    threads: int = 0,
) -> Any:
    """``x / sqrt(sum x^2 + eps)`` along the last dimension, of any size.

    :param x: ``[..., D]`` fp32, fp16 or bf16.
    :param out: x's shape; x's dtype or fp32; made (x's dtype) if not given.
    :returns: ``out``.
    :raises packattn.Error: with every fault found (PA1xxx, PA3xxx), before anything runs.
    """
    given = {"eps": eps, "out": out, "implementation": implementation, "threads": threads}
    return _run("l2norm", (x,), given)


def short_convolution(
    x: Tensor,
    weight: Tensor,
    batch: BatchLike,
    *,
    bias: Tensor | None = None,
    silu: bool = False,
    state: Tensor | None = None,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    slots: Tensor | None = None,
    null_slot: int = -1,
    output_final_state: bool = False,
    out: Tensor | None = None,
    implementation: str | None = None,
    threads: int = 0,
) -> Any:
    """Depthwise causal convolution along each sequence of a packed batch::

        out[t, c] = f(bias[c] + sum_i weight[c, i] x[t - W + 1 + i, c])

    with f the identity or silu. Positions before a sequence come from its state, the W - 1 inputs
    before it, oldest first; without one they are 0.

    :param x: ``[T, D]`` fp32, fp16 or bf16.
    :param weight: ``[D, W]``; with ``bias`` ``[D]`` of x's dtype or fp32.
    :param state: ``[N, D, W - 1]``, or ``[slots, D, W - 1]`` with slots, of x's dtype or fp32: read
        and updated in place.
    :param initial_state: read instead of ``state``.
    :param final_state: written instead of ``state``; made by ``output_final_state``, in the dtype
        of ``initial_state``, or else of x.
    :param slots: ``[N]``; ``null_slot`` skips a sequence: output 0, no state touched.
    :param out: x's shape; x's dtype or fp32; made (x's dtype) if not given.
    :returns: ``out``, or ``(out, final state)`` with ``output_final_state``.
    :raises packattn.Error: with every fault found (PA1xxx to PA6xxx), before anything runs.
    """
    given = {
        "bias": bias, "silu": silu, "state": state, "initial_state": initial_state,
        "final_state": final_state, "slots": slots, "null_slot": null_slot,
        "output_final_state": output_final_state, "out": out, "implementation": implementation,
        "threads": threads,
    }  # fmt: skip
    return _run("short_convolution", (x, weight, batch), given)


def gated_rms_norm(
    x: Tensor,
    gate: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: Activation = "swish",
    eps: float = 1e-5,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
    return_residual: bool = False,
    implementation: str | None = None,
    threads: int = 0,
) -> Any:
    """Root-mean-square norm with a gate, along the last dimension::

        r = x + residual
        out = (r / sqrt(mean r^2 + eps) weight + bias) f(gate)

    with f(z) = z sigmoid(z) (swish, also called silu) or sigmoid(z). What is absent drops out.

    :param x: ``[..., D]`` fp32, fp16 or bf16.
    :param gate, residual: x's shape, x's dtype or fp32.
    :param weight, bias: ``[D]``, x's dtype or fp32.
    :param out: x's shape; x's dtype or fp32; made (x's dtype) if not given.
    :param residual_out: r for the next layer; made by ``return_residual``, in the dtype of
        ``residual``, or else of x.
    :returns: ``out``, or ``(out, r)`` with ``return_residual``.
    :raises packattn.Error: with every fault found (PA1xxx, PA3xxx), before anything runs.
    """
    given = {
        "weight": weight, "bias": bias, "residual": residual, "activation": activation,
        "eps": eps, "out": out, "residual_out": residual_out, "return_residual": return_residual,
        "implementation": implementation, "threads": threads,
    }  # fmt: skip
    return _run("gated_rms_norm", (x, gate), given)


@with_options_of(kda_gate)
def check_kda_gate(g: Tensor, **options: Unpack[KdaGateOptions]) -> list[Fault]:
    """Every fault of this call of `kda_gate`. Nothing runs, and no GPU is needed."""
    return _check("kda_gate", (g,), options)


@with_options_of(kda_gate)
def why_kda_gate(g: Tensor, **options: Unpack[KdaGateOptions]) -> list[Verdict]:
    """What each implementation says about a legal call of `kda_gate`; the first that can runs."""
    return _why("kda_gate", (g,), options)


@with_options_of(l2norm)
def check_l2norm(x: Tensor, **options: Unpack[L2NormOptions]) -> list[Fault]:
    """Every fault of this call of `l2norm`. Nothing runs, and no GPU is needed."""
    return _check("l2norm", (x,), options)


@with_options_of(l2norm)
def why_l2norm(x: Tensor, **options: Unpack[L2NormOptions]) -> list[Verdict]:
    """What each implementation says about a legal call of `l2norm`; the first that can runs."""
    return _why("l2norm", (x,), options)


@with_options_of(short_convolution)
def check_short_convolution(
    x: Tensor, weight: Tensor, batch: BatchLike, **options: Unpack[ShortConvolutionOptions]
) -> list[Fault]:
    """Every fault of this call of `short_convolution`. Nothing runs, and no GPU is needed."""
    return _check("short_convolution", (x, weight, batch), options)


@with_options_of(short_convolution)
def why_short_convolution(
    x: Tensor, weight: Tensor, batch: BatchLike, **options: Unpack[ShortConvolutionOptions]
) -> list[Verdict]:
    """What each implementation says about a legal call of `short_convolution`."""
    return _why("short_convolution", (x, weight, batch), options)


@with_options_of(gated_rms_norm)
def check_gated_rms_norm(
    x: Tensor, gate: Tensor | None = None, **options: Unpack[GatedRmsNormOptions]
) -> list[Fault]:
    """Every fault of this call of `gated_rms_norm`. Nothing runs, and no GPU is needed."""
    return _check("gated_rms_norm", (x, gate), options)


@with_options_of(gated_rms_norm)
def why_gated_rms_norm(
    x: Tensor, gate: Tensor | None = None, **options: Unpack[GatedRmsNormOptions]
) -> list[Verdict]:
    """What each implementation says about a legal call of `gated_rms_norm`."""
    return _why("gated_rms_norm", (x, gate), options)


class _Layer:
    """How the arguments of one layer go to the native functions (see python/src/layers.cpp)."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: str,
        tensors: str,
        **settings: Callable[[Any], Any],
    ) -> None:
        self.inputs, self.tensors = inputs.split(), tensors.split()
        self.settings, self.options = settings, options_of(function)
        name = function.__name__
        self.run, self.check, self.why = _native.layer(name)
        self.packed = name == "short_convolution"


_LAYERS = {
    "kda_gate": _Layer(
        kda_gate, "g", "g A_log dt_bias out",
        gate=lambda value: choice(GATE, value), lower_bound=plain,
    ),
    "l2norm": _Layer(l2norm, "x", "x out", eps=plain),
    "short_convolution": _Layer(
        short_convolution, "x weight batch",
        "x weight bias out state initial_state final_state slots", silu=flag, null_slot=plain,
    ),
    "gated_rms_norm": _Layer(
        gated_rms_norm, "x gate", "x gate weight bias residual out residual_out",
        activation=lambda value: choice(ACTIVATION, value), eps=plain,
    ),
}  # fmt: skip


class _Call:
    """One call: its arguments by name, and the outputs that are made for it."""

    def __init__(self, name: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.name, self.layer = name, _LAYERS[name]
        self.given = {**self.layer.options, **options}
        self.given |= dict(zip(self.layer.inputs, inputs, strict=True))
        self.found = unknown_options(name, options, self.layer.options)
        named = {tensor: self.given[tensor] for tensor in self.layer.tensors if tensor != "slots"}
        self.found += gradient_faults(name, **named)

    def missing(self) -> list[str]:
        """The outputs that this call makes itself."""
        given = self.given
        names = ["out"]
        if given.get("output_final_state") is True and given["state"] is None:
            names.append("final_state")
        if given.get("return_residual") is True:
            names.append("residual_out")
        return [name for name in names if given[name] is None]

    def count(self, name: str) -> int | None:
        return sequence_count(self.given["batch"]) if name == "final_state" else None

    def make(self, name: str) -> Any:
        given = self.given
        x = given[self.layer.inputs[0]]
        shape = shape_of(x)
        if shape is None:
            return None
        if name == "final_state":
            taps, count = shape_of(given["weight"]), self.count(name)
            if len(shape) != 2 or taps is None or len(taps) != 2 or count is None or taps[1] < 1:
                return None
            initial = given["initial_state"]
            return empty((count, shape[1], taps[1] - 1), x if initial is None else initial)
        if name == "residual_out" and given["residual"] is not None:
            return empty(shape, given["residual"])
        return empty(shape, x, "float32" if self.name == "kda_gate" else None)

    def arguments(self, views: Any) -> tuple[Any, ...]:
        given = self.given
        tensors = (
            boundaries(given[name]) if name == "slots" else views[type(given[name])](given[name])
            for name in self.layer.tensors
        )
        settings = (as_native(given[name]) for name, as_native in self.layer.settings.items())
        context = (plain(given["implementation"]), plain(given["threads"]), 0, None, None)
        ends = batch_arguments(given["batch"]) if self.layer.packed else ()
        return (self.found or None, *tensors, *settings, *context, *ends)

    def results(self) -> Any:
        given = self.given
        if given.get("output_final_state") is True:
            state = given["state"] if given["final_state"] is None else given["final_state"]
            return given["out"], state
        if given.get("return_residual") is True:
            return given["out"], given["residual_out"]
        return given["out"]


def _run(name: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if tracing is not None and tracing():
        return traced(name, inputs, options)
    call = _Call(name, inputs, options)
    for output in call.missing():
        call.given[output] = call.make(output)
        if call.given[output] is None:
            call.found += allocated_here(output, call.count(output))
    arguments = call.arguments(VIEWS)
    follow_caller()
    refused = call.layer.run(*arguments)
    if refused is not None:
        raise_refusal(refused)
    return call.results()


def _planned(name: str, inputs: tuple[Any, ...], options: Any) -> _Call:
    call = _Call(name, inputs, options)
    for output in call.missing():
        call.found += allocated_here(output, call.count(output))
    return call


def _check(name: str, inputs: tuple[Any, ...], options: Any) -> list[Fault]:
    call = _planned(name, inputs, options)
    return parse_faults(call.layer.check(*call.arguments(UNRUN_VIEWS))[1])


def _why(name: str, inputs: tuple[Any, ...], options: Any) -> list[Verdict]:
    call = _planned(name, inputs, options)
    return parse_verdicts(call.layer.why(*call.arguments(UNRUN_VIEWS)))


__all__ = [
    "GatedRmsNormOptions",
    "KdaGateOptions",
    "L2NormOptions",
    "ShortConvolutionOptions",
    "check_gated_rms_norm",
    "check_kda_gate",
    "check_l2norm",
    "check_short_convolution",
    "gated_rms_norm",
    "kda_gate",
    "l2norm",
    "short_convolution",
    "why_gated_rms_norm",
    "why_kda_gate",
    "why_l2norm",
    "why_short_convolution",
]
