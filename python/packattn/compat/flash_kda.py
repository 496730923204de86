# SPDX-License-Identifier: Apache-2.0
"""FlashKDA's ``fwd``, argument for argument."""

from __future__ import annotations

from typing import Any

from .._kda import run_kda
from .._tensors import Tensor
from ._peer import PeerError, speaking, worded

_WORDS = worded(
    {
        "PA6006 initial_state": "initial_state must be [N, H, D, D]",
        "PA6004 initial_state": "initial_state must be [N, H, D, D]",
        "PA6006 final_state": "final_state must be [N, H, D, D]",
        "PA6004 final_state": "final_state must be [N, H, D, D]",
    }
)


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float,
    out: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float,
    initial_state: Tensor | None = None,
    final_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> None:
    """KDA prefill with the bounded gate, sigmoid of beta and normalised q and k.

    Writes ``out`` ``[B, T, H, V]`` and ``final_state`` ``[N, H, V, K]``. Head sizes other than 128
    are taken too; between chunks the state stays fp32.
    """
    options: dict[str, Any] = {
        "gate": "bounded",
        "beta_kind": "sigmoid",
        "l2norm": True,
        "A_log": A_log,
        "dt_bias": dt_bias,
        "lower_bound": lower_bound,
        "scale": scale,
        "state_layout": "v_first",
        "out": out,
        "initial_state": initial_state,
        "final_state": final_state,
    }
    found = [["PA1001", "out", "", "", "[B, T, H, V]", ""]] if out is None else []
    with speaking(_WORDS, PeerError):
        run_kda("kda_chunk", (q, k, v, g, beta, cu_seqlens), options, found)


def get_workspace_size(T_total: int, H: int, N: int) -> int:
    """Bytes that a caller has to provide: none, packattn allocates its scratch memory."""
    del T_total, H, N
    return 0
