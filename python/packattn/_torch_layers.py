# SPDX-License-Identifier: Apache-2.0
"""The neighbours of KDA as operators of torch; `packattn.torch_ops` imports this.

``torch.ops.packattn.kda_gate``, ``.l2norm``, ``.gated_rms_norm``, ``.short_convolution`` and
``.short_convolution_update``.
"""

from typing import Any

import torch
from torch import Tensor

from . import _layers
from .torch_ops import MaybeTensor, _no_backward, _no_gradients, _refused, _spec_of


@torch.library.custom_op("packattn::kda_gate", mutates_args=())
def kda_gate_op(
    g: Tensor,
    A_log: MaybeTensor = None,
    dt_bias: MaybeTensor = None,
    gate: str = "softplus",
    lower_bound: float = -5.0,
    implementation: str = "",
    threads: int = 0,
) -> Tensor:
    """`packattn.kda_gate`, in fp32."""
    return _layers.kda_gate(
        g, gate=gate, A_log=A_log, dt_bias=dt_bias, lower_bound=lower_bound,
        implementation=implementation or None, threads=threads,
    )  # fmt: skip


@kda_gate_op.register_fake
def _(g: Tensor, *inputs: Any, **options: Any) -> Tensor:
    return g.new_empty(g.shape, dtype=torch.float32)


@torch.library.custom_op("packattn::l2norm", mutates_args=())
def l2norm_op(x: Tensor, eps: float = 1e-6, implementation: str = "", threads: int = 0) -> Tensor:
    """`packattn.l2norm`."""
    return _layers.l2norm(
        x, eps=eps, out=x.new_empty(x.shape), implementation=implementation or None, threads=threads
    )


@l2norm_op.register_fake
def _(x: Tensor, *inputs: Any, **options: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("packattn::gated_rms_norm", mutates_args=())
def gated_rms_norm_op(
    x: Tensor,
    gate: MaybeTensor = None,
    weight: MaybeTensor = None,
    bias: MaybeTensor = None,
    residual: MaybeTensor = None,
    activation: str = "swish",
    eps: float = 1e-5,
    implementation: str = "",
    threads: int = 0,
) -> tuple[Tensor, Tensor]:
    """`packattn.gated_rms_norm`: out and x + residual."""
    return _layers.gated_rms_norm(
        x, gate, weight=weight, bias=bias, residual=residual, activation=activation, eps=eps,
        out=x.new_empty(x.shape), residual_out=_sum_like(x, residual), return_residual=True,
        implementation=implementation or None, threads=threads,
    )  # fmt: skip


def _sum_like(x: Tensor, residual: Tensor | None) -> Tensor:
    return x.new_empty(x.shape, dtype=x.dtype if residual is None else residual.dtype)


@gated_rms_norm_op.register_fake
def _(
    x: Tensor, gate: MaybeTensor = None, weight: MaybeTensor = None, bias: MaybeTensor = None,
    residual: MaybeTensor = None, *inputs: Any, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return x.new_empty(x.shape), _sum_like(x, residual)


@torch.library.custom_op("packattn::short_convolution", mutates_args=())
def short_convolution_op(
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor,
    bias: MaybeTensor = None,
    initial_state: MaybeTensor = None,
    silu: bool = False,
    implementation: str = "",
    threads: int = 0,
) -> tuple[Tensor, Tensor]:
    """`packattn.short_convolution`: out and the final states."""
    return _layers.short_convolution(
        x, weight, cu_seqlens, bias=bias, silu=silu, initial_state=initial_state,
        final_state=_states_like(x, weight, cu_seqlens, initial_state), output_final_state=True,
        out=x.new_empty(x.shape), implementation=implementation or None, threads=threads,
    )  # fmt: skip


def _states_like(x: Tensor, weight: Tensor, ends: Tensor, initial: Tensor | None) -> Tensor:
    like = x if initial is None else initial
    return like.new_empty((ends.shape[0] - 1, x.shape[1], weight.shape[1] - 1))


@short_convolution_op.register_fake
def _(
    x: Tensor, weight: Tensor, cu_seqlens: Tensor, bias: MaybeTensor = None,
    initial_state: MaybeTensor = None, *inputs: Any, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return x.new_empty(x.shape), _states_like(x, weight, cu_seqlens, initial_state)


@torch.library.custom_op("packattn::short_convolution_update", mutates_args=("state",))
def short_convolution_update_op(
    x: Tensor,
    weight: Tensor,
    cu_seqlens: Tensor,
    state: Tensor,
    bias: MaybeTensor = None,
    slots: MaybeTensor = None,
    silu: bool = False,
    null_slot: int = -1,
    implementation: str = "",
    threads: int = 0,
) -> Tensor:
    """The same with ``state`` updated in place: out."""
    return _layers.short_convolution(
        x, weight, cu_seqlens, bias=bias, silu=silu, state=state, slots=slots, null_slot=null_slot,
        out=x.new_empty(x.shape), implementation=implementation or None, threads=threads,
    )  # fmt: skip


@short_convolution_update_op.register_fake
def _(x: Tensor, *inputs: Any, **options: Any) -> Tensor:
    return x.new_empty(x.shape)


for _op in (kda_gate_op, l2norm_op, gated_rms_norm_op, short_convolution_op):
    _op.register_autograd(_no_backward, setup_context=_no_gradients(_op._qualname))


def _traced_convolution(x: Any, weight: Any, batch: Any, o: dict[str, Any]) -> Any:
    ends = _spec_of(batch).cu_seqlens_q
    shared = {name: o[name] for name in ("bias", "silu", "implementation", "threads")}
    if o["state"] is None:
        out, final = torch.ops.packattn.short_convolution(
            x, weight, ends, initial_state=o["initial_state"], **shared
        )
        return (out, final) if o["output_final_state"] else out
    out = torch.ops.packattn.short_convolution_update(
        x, weight, ends, o["state"], slots=o["slots"], null_slot=o["null_slot"], **shared
    )
    return (out, o["state"]) if o["output_final_state"] else out


def _traced(name: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    made = ("out", "final_state", "residual_out")
    _refused(name, {option: options[option] for option in made if option in options})
    o = {option: value for option, value in options.items() if option not in made}
    o["implementation"] = o["implementation"] or ""
    if name == "short_convolution":
        return _traced_convolution(*inputs, o)
    wants_sum = o.pop("return_residual", False)
    result = getattr(torch.ops.packattn, name)(*inputs, **o)
    return result[0] if name == "gated_rms_norm" and not wants_sum else result


_layers.tracing = torch.compiler.is_compiling
_layers.traced = _traced
