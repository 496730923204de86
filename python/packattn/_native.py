# SPDX-License-Identifier: Apache-2.0
"""The compiled module, its functions, and the one way in which they are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm_ffi

from ._error import raise_refusal
from ._options import Callback

_module = tvm_ffi.load_module(str(Path(__file__).with_name("_packattn.so")))


def raw_function(name: str) -> Callable[..., Any]:
    """A function of the module, without what `_function` does for calls that fail."""
    function = tvm_ffi.get_global_func(f"packattn.{name}")
    # The default of tvm-ffi, but a setting of the environment can change that.
    function.release_gil = True
    return function


def _function(name: str) -> Callable[..., Any]:
    function = raw_function(name)

    def call_native(*args: Any) -> Any:
        try:
            return function(*args)
        except BaseException:
            return after_exception(function, args)

    return call_native


def after_exception(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a call that raised gives instead; called from the handler of its exception."""
    for arg in args:
        if isinstance(arg, Callback) and arg.raised is not None:
            raise arg.taken() from None
    # An argument may not have got there: what can be said of it goes in its place, to be refused
    # beside all other faults.
    said = [_passable(arg) for arg in args]
    if all(new is old for new, old in zip(said, args, strict=True)):
        raise
    return function(*said)


def _passable(arg: Any) -> Any:
    """The argument itself, or text about it if the native module cannot be given it."""
    try:
        _receive([], arg)
    except UnicodeEncodeError:  # half a surrogate pair, as in file names that are not UTF-8
        if isinstance(arg, list):
            return [_passable(part) for part in arg]
        return arg.encode("utf-8", "backslashreplace").decode()
    except (RuntimeError, BufferError, TypeError, ValueError) as error:
        # A torch tensor that is sparse, quantised, on "meta", or belongs to a transform.
        why = str(error).partition("\n")[0]
        return f"a {type(arg).__name__} that DLPack cannot carry ({why})"
    return arg


# Any function of the module would do: passing the argument is the point.
_receive = tvm_ffi.get_global_func("packattn.refuse")


version = _function("version")
records = _function("records")
record_json = _function("record_json")
record_page = _function("record_page")
find_records = _function("find_records")
implementations = _function("implementations")
inject_faults = _function("inject_faults")
limit_threads = _function("limit_threads")
last_status = _function("last_status")
refuse = _function("refuse")

make_batch = _function("make_batch")
check_batch = _function("check_batch")
describe_batch = _function("describe_batch")
sequences = _function("sequences")
actual_seq_lengths = _function("actual_seq_lengths")
block_table_row = _function("block_table_row")
pack = _function("pack")
unpack = _function("unpack")

attention = raw_function("attention")
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


def layer(name: str) -> tuple[Callable[..., Any], ...]:
    """A neighbour of KDA: the functions that run it, check a call of it, and ask about one."""
    return tuple(_function(prefix + name) for prefix in ("", "check_", "why_"))


def call(function: Callable[..., Any], *args: Any) -> None:
    """Runs an operation; raises :class:`packattn.Error` if the library refuses the call."""
    refused = function(*args)
    if refused is not None:
        raise_refusal(refused)
