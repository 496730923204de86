# SPDX-License-Identifier: Apache-2.0
"""Functions of other libraries under their own names and arguments, one module a library."""

from importlib import import_module
from types import ModuleType

__all__ = [
    "fla",
    "flash_attn",
    "flash_attn_3",
    "flash_kda",
    "flashinfer",
    "sglang",
    "torch_varlen",
    "vllm",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
