# SPDX-License-Identifier: Apache-2.0
"""What the KDA drop-ins share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._batch import sequence_count
from .._error import Fault
from .._kda import run_kda
from .._tensors import empty, full, shape_of
from ._peer import worded

BATCH_NOT_ONE = (
    "The batch size is expected to be 1 rather than {value} when using `cu_seqlens`."
    "Please flatten variable-length inputs before processing."
)

_WORDS = worded(
    {
        "PA6001 q": BATCH_NOT_ONE,
        "PA6001": BATCH_NOT_ONE,
        "PA6002": "g must have shape [B, T, HV, K], got {value}",
        "PA6003": "beta must have shape [B, T, HV], got {value}",
        "PA6006": "The number of initial states is expected to be equal to the number of input "
        "sequences, i.e., {limit} rather than {value}.",
        "PA6011": "`A_log` must be provided when `use_gate_in_kernel=True` and `lower_bound` is "
        "not set.",
        "PA6012": "`lower_bound` must be in the safe range [-5, 0), got {value}.",
        "PA6016": "`chunk_size` must be either 32 or 64 for KDA, got {value}.",
    }
)


def words(faults: tuple[Fault, ...]) -> Iterator[str]:
    """flash-linear-attention's messages, which SGLang and vLLM have kept."""
    yield from _WORDS(faults)


def sequences(q: Any, cu_seqlens: Any) -> int | None:
    if cu_seqlens is not None:
        return sequence_count(cu_seqlens)
    shape = shape_of(q)
    return shape[0] if shape else None


def state_shape(k: Any, v: Any, count: int | None, v_first: bool) -> tuple[int, ...] | None:
    k_shape, v_shape = shape_of(k), shape_of(v)
    if count is None or k_shape is None or v_shape is None:
        return None
    if len(k_shape) != 4 or len(v_shape) != 4:
        return None
    matrix = (v_shape[3], k_shape[3]) if v_first else (k_shape[3], v_shape[3])
    return (count, v_shape[2], *matrix)


def ones_for(v: Any, like: Any) -> Any:
    """A beta of ones ``[B, T, HV]``."""
    shape = shape_of(v)
    return None if shape is None else full(shape[:3], like, 1.0)


def following_value_heads(g: Any, q: Any, v: Any) -> Any:
    """Gates of key heads, repeated for the value heads that each serves."""
    shapes = [shape_of(t) for t in (g, q, v)]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return g
    gates, keys, values = (shape[2] for shape in shapes)
    if gates != keys or keys == values or keys == 0 or values % keys:
        return g
    return _repeated(g, values // keys, 2)


def gate_parameters(A_log: Any, dt_bias: Any, q: Any, v: Any) -> tuple[Any, Any]:
    """A_log and dt_bias in one dimension, as kernels that only take their address read them
    (models keep A_log as ``[1, 1, H, 1]``). Those of key heads are repeated like the gates."""
    A_log, dt_bias = _flat(A_log), _flat(dt_bias)
    shapes = [shape_of(t) for t in (q, v)]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return A_log, dt_bias
    keys, channels, values = shapes[0][2], shapes[0][3], shapes[1][2]
    if keys == values or keys == 0 or values % keys:
        return A_log, dt_bias
    if shape_of(A_log) == (keys,):
        A_log = _repeated(A_log, values // keys, 0)
    if shape_of(dt_bias) == (keys * channels,):
        dt_bias = _repeated(dt_bias.reshape(keys, channels), values // keys, 0).reshape(-1)
    return A_log, dt_bias


def _flat(x: Any) -> Any:
    shape = shape_of(x)
    return x if shape is None or len(shape) <= 1 else x.reshape(-1)


def _repeated(x: Any, times: int, dim: int) -> Any:
    if hasattr(x, "repeat_interleave"):
        return x.repeat_interleave(times, dim=dim)
    return x.repeat(times, axis=dim)


def decode(
    inputs: tuple[Any, ...], cu_seqlens: Any, initial_state: Any, inplace: bool,
    options: dict[str, Any], found: list[list[str]],
) -> tuple[Any, Any]:  # fmt: skip
    """The V-first recurrence of SGLang and vLLM, whose final state is the initial one, updated."""
    q, k, v, g, beta = inputs
    options = {**options, "state_layout": "v_first", "output_final_state": True}
    shape = state_shape(k, v, sequences(q, cu_seqlens), v_first=True)
    if initial_state is None:
        options["state"] = None if shape is None else full(shape, q, 0.0)
    elif inplace:
        options["state"] = initial_state
    else:
        options["initial_state"] = initial_state
        options["final_state"] = None if shape is None else empty(shape, initial_state)
    beta = ones_for(v, q) if beta is None else beta
    inputs = (q, k, v, following_value_heads(g, q, v), beta, cu_seqlens)
    return run_kda("kda_recurrent", inputs, options, found)
