# SPDX-License-Identifier: Apache-2.0
"""packattn as operators of torch, for ``torch.compile``, ``torch.export`` and fake tensors.

Importing this module registers ``torch.ops.packattn.attention``, ``.kda`` and ``.kda_update``. From
then on `packattn.attention`, `packattn.kda_chunk`, `packattn.kda_recurrent` and the neighbours of
KDA (`packattn.l2norm`, ..., whose operators bear their names) become operators while torch traces a
function, without a graph break. Boundaries are then a tensor ``cu_seqlens``, a `BatchSpec` of
tensors, or a `PackedBatch` made from tensors: a batch with other lengths compiles nothing again.
Outside of a trace nothing changes.
"""

# Not `from __future__ import annotations`: torch 2.5 reads those of operators as they are.
from typing import Any, Optional

import torch
from torch import Tensor

from . import _attention, _kda
from ._batch import BatchSpec, PackedBatch
from ._error import raise_refusal
from ._native import refuse

# torch reads these annotations when it makes a schema, and takes Optional but not "| None".
MaybeTensor = Optional[Tensor]  # noqa: UP045
MaybeInt = Optional[int]  # noqa: UP045
MaybeFloat = Optional[float]  # noqa: UP045


@torch.library.custom_op("packattn::attention", mutates_args=())
def attention_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: MaybeTensor = None,
    seqlens_k: MaybeTensor = None,
    block_table: MaybeTensor = None,
    alibi_slopes: MaybeTensor = None,
    sinks: MaybeTensor = None,
    causal: bool = False,
    align: str = "bottom_right",
    left: MaybeInt = None,
    right: MaybeInt = None,
    softmax_scale: MaybeFloat = None,
    softcap: float = 0.0,
    capacity: bool = False,
    implementation: str = "",
    threads: int = 0,
) -> tuple[Tensor, Tensor]:
    """`packattn.attention` with boundaries as tensors: out and lse."""
    spec = BatchSpec(
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqlens_k=seqlens_k,
        block_table=block_table,
        capacity=capacity,
    )
    out, lse = _attention.attention(
        q, k, v, spec, causal=causal, align=align, window=(left, right),
        softmax_scale=softmax_scale, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        out=q.new_empty((q.shape[0], q.shape[1], v.shape[-1])), return_lse=True,
        implementation=implementation or None, threads=threads,
    )  # fmt: skip
    return out, lse


@attention_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *boundaries: Any, **options: Any) -> tuple[Tensor, Tensor]:
    out = q.new_empty((q.shape[0], q.shape[1], v.shape[-1]))
    return out, q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@torch.library.custom_op("packattn::kda", mutates_args=())
def kda_op(
    form: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    cu_seqlens: MaybeTensor = None,
    A_log: MaybeTensor = None,
    dt_bias: MaybeTensor = None,
    initial_state: MaybeTensor = None,
    gate: str = "given",
    beta_kind: str = "given",
    state_layout: str = "k_first",
    lower_bound: float = -5.0,
    l2norm: bool = False,
    scale: MaybeFloat = None,
    chunk_size: int = 64,
    implementation: str = "",
    threads: int = 0,
) -> tuple[Tensor, Tensor]:
    """`packattn.kda_chunk` or `packattn.kda_recurrent`: out and the final states."""
    options = {
        "A_log": A_log, "dt_bias": dt_bias, "initial_state": initial_state, "gate": gate,
        "beta_kind": beta_kind, "state_layout": state_layout, "lower_bound": lower_bound,
        "l2norm": l2norm, "scale": scale, "chunk_size": chunk_size, "threads": threads,
        "implementation": implementation or None, "output_final_state": True,
        "out": q.new_empty(v.shape),
    }  # fmt: skip
    out, final = _kda.run_kda(form, (q, k, v, g, beta, cu_seqlens), options, [])
    return out, final


@kda_op.register_fake
def _(
    form: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
    cu_seqlens: MaybeTensor = None, A_log: MaybeTensor = None, dt_bias: MaybeTensor = None,
    initial_state: MaybeTensor = None, gate: str = "given", beta_kind: str = "given",
    state_layout: str = "k_first", *others: Any, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    matrix = (k.shape[3], v.shape[3])
    matrix = matrix[::-1] if state_layout == "v_first" else matrix
    state = q.new_empty((count, v.shape[2], *matrix), dtype=torch.float32)
    return q.new_empty(v.shape), state


@torch.library.custom_op("packattn::kda_update", mutates_args=("state",))
def kda_update_op(
    form: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    cu_seqlens: MaybeTensor = None,
    slots: MaybeTensor = None,
    num_accepted_tokens: MaybeTensor = None,
    A_log: MaybeTensor = None,
    dt_bias: MaybeTensor = None,
    gate: str = "given",
    beta_kind: str = "given",
    state_layout: str = "k_first",
    lower_bound: float = -5.0,
    l2norm: bool = False,
    scale: MaybeFloat = None,
    null_slot: int = -1,
    chunk_size: int = 64,
    implementation: str = "",
    threads: int = 0,
) -> Tensor:
    """The same with ``state`` updated in place: out."""
    options = {
        "A_log": A_log, "dt_bias": dt_bias, "state": state, "slots": slots, "gate": gate,
        "num_accepted_tokens": num_accepted_tokens, "beta_kind": beta_kind,
        "state_layout": state_layout, "lower_bound": lower_bound, "l2norm": l2norm, "scale": scale,
        "null_slot": null_slot, "chunk_size": chunk_size, "threads": threads,
        "implementation": implementation or None, "out": q.new_empty(v.shape),
    }  # fmt: skip
    return _kda.run_kda(form, (q, k, v, g, beta, cu_seqlens), options, [])


@kda_update_op.register_fake
def _(form: str, q: Tensor, k: Tensor, v: Tensor, *inputs: Any, **options: Any) -> Tensor:
    return q.new_empty(v.shape)


def _no_gradients(operation: str) -> Any:
    """Refuses where autograd would set up a backward pass."""

    def set_up(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        wanted = [t for t in inputs if isinstance(t, Tensor) and t.requires_grad]
        if wanted:
            raise_refusal(refuse([["PA3008", "an input", operation, "", "", ""]]))

    return set_up


def _no_backward(ctx: Any, *gradients: Any) -> Any:
    raise_refusal(refuse([["PA3008", "an input", "packattn", "", "", ""]]))


# torch takes no formula for an operator that writes into an argument, and refuses by itself.
for _op in (attention_op, kda_op):
    _op.register_autograd(_no_backward, setup_context=_no_gradients(_op._qualname))


def _refused(operation: str, given: dict[str, Any]) -> None:
    """Arguments that a traced call cannot have."""
    rows = [
        ["PA3009", name, f"{operation} under torch.compile", type(value).__name__,
         "leave it out, or call outside of the compiled function", ""]
        for name, value in given.items()
        if value is not None
    ]  # fmt: skip
    if rows:
        raise_refusal(refuse(rows))


def _spec_of(batch: Any) -> BatchSpec:
    if isinstance(batch, PackedBatch):
        return batch._spec
    return batch if isinstance(batch, BatchSpec) else BatchSpec(cu_seqlens_q=batch)


def _traced_attention(q: Any, k: Any, v: Any, batch: Any, options: dict[str, Any]) -> Any:
    spec = _spec_of(batch)
    others = ("lengths_q", "starts_q", "padding_mask_q", "position_ids")
    _refused("attention", {name: options[name] for name in ("out", "lse", "workspace", "progress")})
    _refused("attention", {name: getattr(spec, name) for name in others})
    left, right = options["window"]
    out, lse = torch.ops.packattn.attention(
        q, k, v, spec.cu_seqlens_q, spec.cu_seqlens_k, spec.seqlens_k, spec.block_table,
        options["alibi_slopes"], options["sinks"], options["causal"], options["align"], left,
        right, options["softmax_scale"], float(options["softcap"]), spec.capacity,
        options["implementation"] or "", options["threads"],
    )  # fmt: skip
    return (out, lse) if options["return_lse"] else out


def _traced_kda(op: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    *tensors, batch = inputs
    options = {**_kda.KDA_OPTIONS, **options}
    given = {
        name: options[name]
        for name in ("out", "final_state", "read_slots", "write_slots", "chunk_states",
                     "workspace", "progress")
    }  # fmt: skip
    _refused(op, given)
    ends = None if batch is None else _spec_of(batch).cu_seqlens_q
    shared = {
        "A_log": options["A_log"],
        "dt_bias": options["dt_bias"],
        "gate": options["gate"],
        "beta_kind": options["beta_kind"],
        "state_layout": options["state_layout"] or "k_first",
        "lower_bound": float(options["lower_bound"]),
        "l2norm": options["l2norm"],
        "scale": options["scale"],
        "chunk_size": options["chunk_size"],
        "implementation": options["implementation"] or "",
        "threads": options["threads"],
    }
    if options["state"] is not None:
        out = torch.ops.packattn.kda_update(
            op, *tensors, options["state"], ends, options["slots"],
            options["num_accepted_tokens"], null_slot=options["null_slot"], **shared,
        )  # fmt: skip
        return (out, options["state"]) if options["output_final_state"] else out
    out, final = torch.ops.packattn.kda(
        op, *tensors, ends, initial_state=options["initial_state"], **shared
    )
    return (out, final) if options["output_final_state"] else out


_attention.tracing = _kda.tracing = torch.compiler.is_compiling
_attention.traced = _traced_attention
_kda.traced = _traced_kda

# They use what stands above.
from . import _torch_layers  # noqa: E402, F401
