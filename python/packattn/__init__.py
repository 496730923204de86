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
from ._implementations import Verdict, implementations
from ._info import __version__, info
from ._kda import KdaOptions, check_kda, kda_chunk, kda_recurrent, kda_workspace_bytes, why_kda
from ._pack import pack, unpack
from ._reference import Explanation, Record, explain, find_records, records

__all__ = [
    "BatchSpec",
    "Error",
    "Explanation",
    "Fault",
    "KdaOptions",
    "PackedBatch",
    "Record",
    "UnsupportedError",
    "Verdict",
    "__version__",
    "attention",
    "attention_workspace_bytes",
    "check_attention",
    "check_kda",
    "compat",
    "explain",
    "find_records",
    "implementations",
    "info",
    "kda_chunk",
    "kda_recurrent",
    "kda_workspace_bytes",
    "merge_states",
    "pack",
    "records",
    "testing",
    "unpack",
    "why",
    "why_kda",
]


def __getattr__(name: str) -> ModuleType:
    # The drop-ins are many and most programs use one of them or none.
    if name == "compat":
        return import_module(".compat", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
