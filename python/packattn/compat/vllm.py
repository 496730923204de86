# SPDX-License-Identifier: Apache-2.0
"""vLLM's KDA decode function, argument for argument."""

from __future__ import annotations

from typing import Any

from .._tensors import Tensor
from ._kda import decode, words
from ._peer import speaking, unknown_arguments

_ARGUMENTS = (
    "q, k, v, g, beta, scale, initial_state, inplace_final_state, use_qk_l2norm_in_kernel, "
    "cu_seqlens, ssm_state_indices"
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
    ssm_state_indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """KDA one token after the other over a pool of states ``[slots, HV, V, K]``.

    ``ssm_state_indices`` ``[N]`` or ``[N, S]`` name the sequences' states; -1 skips a sequence.
    Returns ``(o, final_state)``; in place the final state is ``initial_state`` itself.
    """
    found = unknown_arguments("fused_recurrent_kda", kwargs, _ARGUMENTS)
    slots = "slots" if inplace_final_state else "read_slots"
    options = {"scale": scale, "l2norm": use_qk_l2norm_in_kernel, slots: ssm_state_indices}
    with speaking(words):
        return decode(
            (q, k, v, g, beta), cu_seqlens, initial_state, inplace_final_state, options, found
        )
