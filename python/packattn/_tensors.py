# SPDX-License-Identifier: Apache-2.0
"""How arrays of other libraries become what the native module reads, and new ones are made.

A tensor passes through as it is whenever DLPack can say everything about it. What it cannot say
(a read-only NumPy array, bfloat16 of ml_dtypes, a tensor without memory) is described in integers:
address, DLPack code, bits, lanes, device type, device index, read-only, sizes, strides.
Nothing here copies an element.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm_ffi

from . import _native

Tensor = Any  # a NumPy array, a torch tensor, or any producer of DLPack

# DLPack type codes of NumPy kinds. The extension types of ml_dtypes are found by name.
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_DLPACK_NAMED = {
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}
_DLPACK_OPAQUE = 3
_CPU = 1


def _describe_numpy(array: np.ndarray) -> list[int] | str:
    dtype = array.dtype
    if not dtype.isnative or any(stride % max(dtype.itemsize, 1) for stride in array.strides):
        return f"an array of {dtype!s} that is not made of whole, native elements"
    if dtype.name in _DLPACK_NAMED:
        code, bits = _DLPACK_NAMED[dtype.name]
    else:
        code = _DLPACK_CODES.get(dtype.kind, _DLPACK_OPAQUE)
        bits = dtype.itemsize * 8
    address = array.__array_interface__["data"][0]
    strides = [stride // max(dtype.itemsize, 1) for stride in array.strides]
    return [
        address,
        code,
        min(bits, 255),
        1,
        _CPU,
        0,
        not array.flags.writeable,
        *array.shape,
        *strides,
    ]


def _view_numpy(array: np.ndarray) -> Any:
    if array.dtype.char in "fdebilqBILQ?" and array.flags.writeable and array.dtype.isnative:
        itemsize = array.itemsize
        if all(stride % itemsize == 0 for stride in array.strides):
            return array
    return _describe_numpy(array)


def _view_dlpack(tensor: Any) -> Any:
    return tensor


_NEGATED = "a torch tensor with a negation pending, which its resolve_neg() carries out"


def _view_torch(tensor: Any) -> Any:
    # DLPack carries the memory without the sign that torch has put off to change.
    return _NEGATED if tensor.is_neg() else tensor


class _Threads:
    """Where torch tensors come in, ``threads=0`` takes as many threads as torch would itself, which
    is one in a worker of its data loader."""

    of_caller: Callable[[], int] | None = None  # torch's, once a tensor of torch was seen
    limit = 0


threads = _Threads()


def follow_caller() -> None:
    """To be called once a call's tensors have been viewed."""
    if threads.of_caller is not None and (most := threads.of_caller()) != threads.limit:
        _native.limit_threads(most)
        threads.limit = most


def _view_nothing(_: None) -> None:
    return None


def _view_other(value: Any) -> str:
    return f"a {type(value).__name__}"


def _view_masked(_: Any) -> str:
    # Its memory has numbers at the masked places too.
    return "a masked array; its filled(value) says what the masked elements are"


def _handler(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, np.ma.MaskedArray):
        return _view_masked
    if issubclass(kind, np.ndarray):
        return _view_numpy
    describe = getattr(kind, "_packattn_describe", None)
    if describe is not None:
        return describe
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        threads.of_caller = torch.get_num_threads
        return _view_torch
    if hasattr(kind, "__dlpack__"):
        return _view_dlpack
    return _view_other


class _Views(dict[type, Callable[[Any], Any]]):
    """How tensors of each type become what the native module reads."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        self[kind] = found = _handler(kind)
        return found


class _UnrunViews(_Views):
    """The same for calls that are only checked, which take a tensor without memory too."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        self[kind] = found = getattr(kind, "_packattn_describe_unrun", VIEWS[kind])
        return found


# Indexed with a type rather than called with a tensor: a call less for each tensor of each call.
VIEWS = _Views()
VIEWS[type(None)] = _view_nothing
UNRUN_VIEWS = _UnrunViews()


def view(value: Any) -> Any:
    """What the native module reads in place of ``value``."""
    return VIEWS[type(value)](value)


def boundaries(value: Any) -> Any:
    """Boundaries may also be sequences of Python integers."""
    if isinstance(value, (list, tuple, range)):
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, OverflowError):
            return _view_other(value)
        # An empty list has no type of its own, and integers past 64 bits become objects.
        return array.astype(np.int64) if array.size == 0 else view(array)
    return view(value)


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


# What of torch every call needs, once torch is there.
_is_grad_enabled: Any = None
_forward_ad: Any = None
_torch_tensor: Any = None
_torch_empty_like: Any = None
_strided: Any = None


def _find_torch() -> bool:
    global _is_grad_enabled, _forward_ad, _torch_tensor, _torch_empty_like, _strided
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    _is_grad_enabled, _forward_ad = torch.is_grad_enabled, torch.autograd.forward_ad
    _torch_tensor, _torch_empty_like, _strided = torch.Tensor, torch.empty_like, torch.strided
    return True


def recording() -> bool:
    """Whether autograd would record calls on tensors that ask for it."""
    if _forward_ad is None and not _find_torch():
        return False
    return _is_grad_enabled() or _forward_ad._current_level >= 0


def expects_gradient(*tensors: Any) -> bool:
    """Whether autograd would record a call on these."""
    if not recording():
        return False
    torch = sys.modules["torch"]
    dual = _forward_ad
    if dual._current_level >= 0:
        given = (tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
        if any(dual.unpack_dual(tensor).tangent is not None for tensor in given):
            return True
    if not torch.is_grad_enabled():
        return False
    return any(getattr(tensor, "requires_grad", False) for tensor in tensors)


def gradient_faults(operation: str, **tensors: Any) -> list[list[str]]:
    """Rows for CallReader::faults, one for each tensor that expects a gradient."""
    return [
        ["PA3008", name, operation, "", "", ""]
        for name, tensor in tensors.items()
        if tensor is not None and expects_gradient(tensor)
    ]


_OUTPUT_SHAPES = {
    "out": "[T, heads, head size of v]",
    "lse": "[heads, T]",
    "final_state": "[N, HV, K, V]",
    "chunk_states": "[chunks, HV, K, V]",
    "residual_out": "[..., D]",
    "packed": "[T, ...]",
    "padded": "[B, S, ...]",
}


def allocated_here(name: str, rows: int | None = None) -> list[list[str]]:
    """A row that tells the native checks of an output that is made here, with its first size where
    the others do not tell it. A call from whose shapes none can be made is then not also accused
    of giving none."""
    return [["", name, "" if rows is None else str(rows), "", _OUTPUT_SHAPES[name], ""]]


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape, or None for what has none."""
    try:
        shape = value.shape
    except (AttributeError, RuntimeError):  # torch's nested tensors raise the second
        return None
    return shape if isinstance(shape, tuple) else None


def empty_like(like: Any, shape: tuple[int, ...]) -> Any:
    """`empty` of the shape that ``like`` has."""
    if type(like) is _torch_tensor and like.layout is _strided:
        return _torch_empty_like(like)
    return empty(shape, like)


def empty(shape: Sequence[int], like: Any, dtype: str | None = None) -> Any:
    """A new tensor of the kind and on the device of ``like``, of its element type or of the named
    one. Producers of DLPack other than NumPy and torch get a NumPy array; None if there is no way.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        if like.layout is not torch.strided:
            return None
        if dtype is None:
            # 0.8 us instead of 1.3, where the shape allows it.
            return torch.empty_like(like) if like.shape == shape else like.new_empty(shape)
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if isinstance(like, np.ndarray):
        return np.empty(shape, like.dtype if dtype is None else dtype)
    unreal = getattr(like, "_packattn_empty", None)
    if unreal is not None:
        return unreal(shape, dtype)
    if hasattr(like, "__dlpack_device__") and like.__dlpack_device__()[0] == _CPU:
        try:
            return np.empty(shape, str(tvm_ffi.from_dlpack(like).dtype) if dtype is None else dtype)
        except TypeError:  # an element type that NumPy does not have
            return None
    return None


def full(shape: Sequence[int], like: Any, value: float, dtype: str = "float32") -> Any:
    """A new tensor of one value, of the kind and on the device of ``like``."""
    made = empty(shape, like, dtype)
    if made is not None:
        made[...] = value
    return made
