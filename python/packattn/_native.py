# SPDX-License-Identifier: Apache-2.0
"""The compiled module, its functions, and the one way in which they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tvm_ffi

from ._error import raise_refusal

_module = tvm_ffi.load_module(str(Path(__file__).with_name("_packattn.so")))


def _function(name: str) -> tvm_ffi.Function:
    function = tvm_ffi.get_global_func(f"packattn.{name}")
    # The default of tvm-ffi, but a setting of the environment can change that.
    function.release_gil = True
    return function


version = _function("version")
records = _function("records")
record_json = _function("record_json")
record_page = _function("record_page")
find_records = _function("find_records")
implementations = _function("implementations")
inject_faults = _function("inject_faults")
refuse = _function("refuse")

make_batch = _function("make_batch")
check_batch = _function("check_batch")
describe_batch = _function("describe_batch")
sequences = _function("sequences")
actual_seq_lengths = _function("actual_seq_lengths")
block_table_row = _function("block_table_row")
pack = _function("pack")
unpack = _function("unpack")

attention = _function("attention")
check_attention = _function("check_attention")
why_attention = _function("why_attention")
attention_workspace_bytes = _function("attention_workspace_bytes")
merge_states = _function("merge_states")
check_merge_states = _function("check_merge_states")

kda = _function("kda")
check_kda = _function("check_kda")
why_kda = _function("why_kda")
kda_workspace_bytes = _function("kda_workspace_bytes")
kda_chunk_count = _function("kda_chunk_count")


def call(function: tvm_ffi.Function, *args: Any) -> None:
    """Runs an operation; raises :class:`packattn.Error` if the library refuses the call."""
    refused = function(*args)
    if refused is not None:
        raise_refusal(refused)
