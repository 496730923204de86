# SPDX-License-Identifier: Apache-2.0
"""Attention over packed variable-length batches: softmax attention and Kimi Delta Attention.

NumPy arrays, torch tensors and any other producer of DLPack go in; outputs are of the same kind.
Nothing is copied behind the caller's back. A wrong call raises `packattn.Error`, which lists every
fault; the output of a sequence has the same bits whatever else is in its batch.
"""

from importlib import import_module
from types import ModuleType

from . import testing
from ._attention import attention, attention_workspace_bytes, check_attention, merge_states, why
from ._batch import BatchSpec, PackedBatch
from ._error import Error, Fault, UnsupportedError
from ._implementations import Verdict, implementations, last_status
from ._info import __version__, info
from ._kda import KdaOptions, check_kda, kda_chunk, kda_recurrent, kda_workspace_bytes, why_kda
from ._layers import (
    GatedRmsNormOptions,
    KdaGateOptions,
    L2NormOptions,
    ShortConvolutionOptions,
    check_gated_rms_norm,
    check_kda_gate,
    check_l2norm,
    check_short_convolution,
    gated_rms_norm,
    kda_gate,
    l2norm,
    short_convolution,
    why_gated_rms_norm,
    why_kda_gate,
    why_l2norm,
    why_short_convolution,
)
from ._pack import pack, unpack
from ._reference import Explanation, Record, explain, find_records, records

__all__ = [
    "BatchSpec",
    "Error",
    "Explanation",
    "Fault",
    "GatedRmsNormOptions",
    "KdaGateOptions",
    "KdaOptions",
    "L2NormOptions",
    "PackedBatch",
    "Record",
    "ShortConvolutionOptions",
    "UnsupportedError",
    "Verdict",
    "__version__",
    "attention",
    "attention_workspace_bytes",
    "check_attention",
    "check_gated_rms_norm",
    "check_kda",
    "check_kda_gate",
    "check_l2norm",
    "check_short_convolution",
    "compat",
    "explain",
    "find_records",
    "gated_rms_norm",
    "implementations",
    "info",
    "kda_chunk",
    "kda_gate",
    "kda_recurrent",
    "kda_workspace_bytes",
    "l2norm",
    "last_status",
    "merge_states",
    "pack",
    "records",
    "short_convolution",
    "testing",
    "unpack",
    "why",
    "why_gated_rms_norm",
    "why_kda",
    "why_kda_gate",
    "why_l2norm",
    "why_short_convolution",
]


def __getattr__(name: str) -> ModuleType:
    # The drop-ins are many and most programs use one of them or none.
    if name == "compat":
        return import_module(".compat", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
