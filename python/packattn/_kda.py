# SPDX-License-Identifier: Apache-2.0
"""Kimi Delta Attention: the token recurrence and the chunked form."""

from __future__ import annotations

from typing import Any, TypedDict

from typing_extensions import Unpack

from . import _native
from ._batch import BatchLike, batch_arguments, sequence_count
from ._error import Error, Fault, parse_faults, raise_refusal
from ._implementations import Verdict, parse_verdicts, workspace_bytes
from ._options import (
    BETA_KIND,
    CHECK_LEVEL,
    GATE,
    KDA_OP,
    STATE_LAYOUT,
    BetaKind,
    CheckLevel,
    Gate,
    Progress,
    StateLayout,
    callback,
    choice,
    flag,
    options_of,
    plain,
    unknown_options,
    with_options_of,
)
from ._pack import ready
from ._tensors import (
    UNRUN_VIEWS,
    VIEWS,
    Tensor,
    allocated_here,
    boundaries,
    empty,
    follow_caller,
    gradient_faults,
    recording,
    shape_of,
)


class KdaOptions(TypedDict, total=False):
    """The keyword arguments of `kda_recurrent` and `kda_chunk`."""

    gate: Gate
    beta_kind: BetaKind
    state_layout: StateLayout | None
    A_log: Tensor | None
    dt_bias: Tensor | None
    lower_bound: float
    l2norm: bool
    scale: float | None
    initial_state: Tensor | None
    state: Tensor | None
    final_state: Tensor | None
    slots: Tensor | None
    read_slots: Tensor | None
    write_slots: Tensor | None
    null_slot: int
    num_accepted_tokens: Tensor | None
    output_final_state: bool
    out: Tensor | None
    chunk_size: int
    return_chunk_states: bool
    chunk_states: Tensor | None
    implementation: str | None
    threads: int
    check_level: CheckLevel
    workspace: Tensor | None
    progress: Progress | None


def kda_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    batch: BatchLike | None = None,
    *,
    gate: Gate = "given",
    beta_kind: BetaKind = "given",
    state_layout: StateLayout | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float = -5.0,
    l2norm: bool = False,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    state: Tensor | None = None,
    final_state: Tensor | None = None,
    slots: Tensor | None = None,
    read_slots: Tensor | None = None,
    write_slots: Tensor | None = None,
    null_slot: int = -1,
    num_accepted_tokens: Tensor | None = None,
    output_final_state: bool = False,
    out: Tensor | None = None,
    chunk_size: int = 64,
    return_chunk_states: bool = False,
    chunk_states: Tensor | None = None,
    implementation: str | None = None,
    threads: int = 0,
    check_level: CheckLevel = "host",
    workspace: Tensor | None = None,
    progress: Progress | None = None,
) -> Any:
    """Kimi Delta Attention (Kimi Linear, arXiv:2510.26692), one token after the other.

    For every token of a sequence, per value head, with the state S in R^{K x V}::

        P = diag(exp g) S        decay
        u = P^T k                what the decayed state returns for this key
        e = beta (v - u)         delta
        S = P + k e^T            write
        o = S^T (scale q)        read

    With ``batch`` the sequences lie end to end in row 0 and B is 1; without it each of the B rows
    is a sequence of T tokens. N is the number of sequences.

    :param q, k: ``[B, T, H, K]`` fp32, fp16 or bf16.
    :param v: ``[B, T, HV, V]``, HV a multiple of H.
    :param g: ``[B, T, HV, K]``, or ``[B, T, HV]``, one gate a head; fp32 or q's dtype.
    :param beta: ``[B, T, HV]``, or ``[B, T, HV, V]``, one a value channel.
    :param gate: how g becomes the log decay: ``"given"``, as it is; ``"softplus"``,
        ``-exp(A_log) softplus(g + dt_bias)``; ``"bounded"``,
        ``lower_bound sigmoid(exp(A_log) (g + dt_bias))``.
    :param beta_kind: ``"given"``, ``"sigmoid"`` of beta, or ``"two_sigmoid"``, twice that.
    :param A_log: ``[HV]`` fp32.
    :param dt_bias: ``[HV, K]`` or ``[HV * K]`` fp32.
    :param l2norm: q and k become ``x / sqrt(sum x^2 + 1e-6)`` first.
    :param scale: of q, after its normalisation; default ``1 / sqrt(K)``.
    :param state: ``[N, HV, K, V]``, or ``[slots, HV, K, V]`` with slots, fp32 or bf16: read and
        updated in place. The last two dimensions change places with ``state_layout="v_first"``;
        the layout has to be named wherever a state is passed or returned.
    :param initial_state: read instead of ``state``; zeros without either.
    :param final_state: written instead of ``state``; made (fp32) by ``output_final_state``.
    :param slots: ``[N]`` or ``[N, S]``, the states of the pool that the sequences use. With S
        columns the state after token t goes to column t. ``read_slots`` and ``write_slots`` name
        them separately; ``null_slot`` skips a sequence: output 0, no state touched.
    :param num_accepted_tokens: ``[N]``: start from the state in column n - 1.
    :param out: ``[B, T, HV, V]`` of q's dtype, or fp32; made if not given.
    :param chunk_size, chunk_states: of `kda_chunk`, which has the same arguments; the recurrence
        has no chunks and refuses ``chunk_states``.
    :param workspace: uint8 scratch memory of at least `kda_workspace_bytes`, aligned to 64 bytes;
        allocated if not given.
    :param check_level: as of `attention`; ``"full"`` also checks that given gates on the host are
        not above 0.
    :param progress: called with finished and total units of work, from a worker thread.
    :returns: ``out``, or ``(out, final state)`` with ``output_final_state``.
    :raises packattn.Error: with every fault found (PA1xxx to PA6xxx), before anything runs.

    Ctrl-C, and whatever else a signal handler raises, ends a running call; outputs and states that
    are updated in place are then incomplete.
    """
    return _run(
        "kda_recurrent", q, k, v, g, beta, batch,
        gate=gate, beta_kind=beta_kind, state_layout=state_layout, A_log=A_log, dt_bias=dt_bias,
        lower_bound=lower_bound, l2norm=l2norm, scale=scale, initial_state=initial_state,
        state=state, final_state=final_state, slots=slots, read_slots=read_slots,
        write_slots=write_slots, null_slot=null_slot, num_accepted_tokens=num_accepted_tokens,
        output_final_state=output_final_state, out=out, chunk_size=chunk_size,
        return_chunk_states=return_chunk_states, chunk_states=chunk_states,
        implementation=implementation, threads=threads, check_level=check_level,
        workspace=workspace, progress=progress,
    )  # fmt: skip


@with_options_of(kda_recurrent)
def kda_chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    batch: BatchLike | None = None,
    **options: Unpack[KdaOptions],
) -> Any:
    """The chunked form of `kda_recurrent`: the same arguments and mathematics, with matrix
    products inside chunks. For prefill; one beta per token and head.

    :param chunk_size: 16, 32 or 64.
    :param chunk_states: ``[chunks, HV, K, V]`` in the state's layout, the state before each chunk
        of each sequence; made (fp32) by ``return_chunk_states``.
    :returns: ``out``; ``(out, final state)`` with ``output_final_state``; with
        ``return_chunk_states`` ``(out, final state or None, chunk states)``.
    :raises packattn.Error: with every fault found (PA1xxx to PA6xxx), before anything runs.
    """
    return _run("kda_chunk", q, k, v, g, beta, batch, **options)


@with_options_of(kda_recurrent)
def check_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    batch: BatchLike | None = None,
    *,
    op: str = "kda_chunk",
    **options: Unpack[KdaOptions],
) -> list[Fault]:
    """Every fault of the call itself, as ``op`` (`kda_chunk` or `kda_recurrent`) would list them.

    Nothing runs, and a call meant for a GPU is checked without one. Whether an implementation takes
    the call is for `why_kda`; whether there is memory shows when it runs.
    """
    call = _Call(op, q, k, v, g, beta, batch, options)
    call.plan_outputs()
    return parse_faults(_native.check_kda(*call.arguments(UNRUN_VIEWS))[1])


@with_options_of(kda_recurrent)
def why_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    batch: BatchLike | None = None,
    *,
    op: str = "kda_chunk",
    **options: Unpack[KdaOptions],
) -> list[Verdict]:
    """What each implementation of ``op`` says about a legal call; the first that takes it runs.

    Arguments as of `check_kda`; raises `packattn.Error` for a call that is not legal.
    """
    call = _Call(op, q, k, v, g, beta, batch, options)
    call.plan_outputs()
    return parse_verdicts(_native.why_kda(*call.arguments(UNRUN_VIEWS)))


@with_options_of(kda_recurrent)
def kda_workspace_bytes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    batch: BatchLike | None = None,
    *,
    op: str = "kda_chunk",
    **options: Unpack[KdaOptions],
) -> int:
    """Bytes of scratch memory that this call of ``op`` needs. Arguments as of `check_kda`."""
    call = _Call(op, q, k, v, g, beta, batch, options)
    call.plan_outputs()
    return workspace_bytes(_native.kda_workspace_bytes(*call.arguments(UNRUN_VIEWS)))


KDA_OPTIONS = options_of(kda_recurrent)
# In the order of read_kda.
_DIFFERENTIABLE = ("A_log", "dt_bias", "state", "initial_state")
_SLOTS = ("slots", "read_slots", "write_slots", "num_accepted_tokens")


# packattn.torch_ops sets these: whether torch traces a function, and what runs then.
tracing: Any = None
traced: Any = None


def _run(op: str, *inputs: Any, **options: Any) -> Any:
    if tracing is not None and tracing():
        return traced(op, inputs, options)
    return run_kda(op, inputs, options, [])


def run_kda(op: str, inputs: tuple[Any, ...], options: dict[str, Any], found: list[Any]) -> Any:
    """Runs the operation on ``(q, k, v, g, beta, batch)``; ``found`` are faults seen before."""
    call = _Call(op, *inputs, options)
    call.found += found
    call.make_outputs()
    arguments = call.arguments(VIEWS)
    follow_caller()
    refused = _native.kda(*arguments)
    if refused is not None:
        raise_refusal(refused)
    return call.results()


class _Call:
    """One call: its inputs, its options, and the outputs that are made for it."""

    def __init__(
        self, op: str, q: Any, k: Any, v: Any, g: Any, beta: Any, batch: Any,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        self.op, self.batch = op, batch
        self.options = o = {**KDA_OPTIONS, **options}
        self.inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        self.outputs = {name: o[name] for name in ("out", "final_state", "chunk_states")}
        self.wants_state = o["output_final_state"] is True
        self.wants_chunks = o["return_chunk_states"] is True
        self.found: list[list[str]] = []
        if len(o) > len(KDA_OPTIONS):
            self.found += unknown_options(op, options, KDA_OPTIONS)
        if recording():
            self.found += gradient_faults(
                op,
                **self.inputs,
                **{name: o[name] for name in _DIFFERENTIABLE},
                **self.outputs,
            )

    def _missing(self) -> list[str]:
        """The outputs that this call makes itself."""
        missing = [] if self.outputs["out"] is not None else ["out"]
        if self.wants_state and self.options["state"] is None:
            missing += [] if self.outputs["final_state"] is not None else ["final_state"]
        if self.wants_chunks and self.outputs["chunk_states"] is None:
            missing.append("chunk_states")
        return missing

    def plan_outputs(self) -> None:
        shape = shape_of(self.inputs["q"])
        whole = shape is not None and len(shape) == 4
        for name in self._missing():
            self.found += allocated_here(name, self._count(name, shape) if whole else None)

    def make_outputs(self) -> None:
        for name in self._missing():
            self.outputs[name] = self._made(name)
            if self.outputs[name] is None:
                self.found += allocated_here(name)

    def _made(self, name: str) -> Any:
        q, k, v = (self.inputs[name] for name in ("q", "k", "v"))
        q_shape, k_shape, v_shape = shape_of(q), shape_of(k), shape_of(v)
        if any(shape is None or len(shape) != 4 for shape in (q_shape, k_shape, v_shape)):
            return None
        if name == "out":
            return empty(v_shape, q)
        count = self._count(name, q_shape)
        if count is None:
            return None
        matrix = (k_shape[3], v_shape[3])
        if self.options["state_layout"] == "v_first":
            matrix = matrix[::-1]
        return empty((count, v_shape[2], *matrix), q, "float32")

    def _count(self, name: str, q_shape: tuple[int, ...]) -> int | None:
        """First size of an output that is not rows of q: one state a sequence, or a chunk."""
        if name == "out":
            return None
        if name == "final_state":
            return q_shape[0] if self.batch is None else sequence_count(self.batch)
        size = self.options["chunk_size"]
        if size not in (16, 32, 64):  # refused, as what it is
            return None
        if self.batch is None:
            return q_shape[0] * -(-q_shape[1] // size)
        try:
            self.batch = ready(self.batch)
        except Error:  # the native check will say the same beside all other faults
            return None
        return _native.kda_chunk_count(self.batch._handle, size)

    def arguments(self, views: Any) -> tuple[Any, ...]:
        """The positional arguments of the native functions (see read_kda)."""
        o, outputs = self.options, self.outputs
        tensors = (
            *self.inputs.values(), outputs["out"], *(o[name] for name in _DIFFERENTIABLE),
            outputs["final_state"],
        )  # fmt: skip
        return (
            choice(KDA_OP, self.op),
            self.found or None,
            *[None if t is None else views[type(t)](t) for t in tensors],
            *[None if o[name] is None else boundaries(o[name]) for name in _SLOTS],
            views[type(outputs["chunk_states"])](outputs["chunk_states"]),
            plain(o["scale"]),
            choice(GATE, o["gate"]),
            choice(BETA_KIND, o["beta_kind"]),
            plain(o["lower_bound"]),
            flag(o["l2norm"]),
            choice(STATE_LAYOUT, o["state_layout"]),
            plain(o["null_slot"]),
            plain(o["chunk_size"]),
            plain(o["implementation"]),
            plain(o["threads"]),
            choice(CHECK_LEVEL, o["check_level"]),
            views[type(o["workspace"])](o["workspace"]),
            callback(o["progress"]),
            *(() if self.batch is None else batch_arguments(self.batch)),
        )

    def results(self) -> Any:
        out, final = self.outputs["out"], self.outputs["final_state"]
        if self.wants_state and final is None:
            final = self.options["state"]
        if self.wants_chunks:
            return out, final, self.outputs["chunk_states"]
        return (out, final) if self.wants_state else out


__all__ = [
    "KdaOptions",
    "check_kda",
    "kda_chunk",
    "kda_recurrent",
    "kda_workspace_bytes",
    "run_kda",
    "why_kda",
]
