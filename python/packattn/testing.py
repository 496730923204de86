# SPDX-License-Identifier: Apache-2.0
"""What tests of packattn and of its users need: faults on demand, tensors without memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from . import _native
from ._attention import why
from ._error import raise_refusal

# DLPack's type codes and bits.
_DTYPES = {
    "float32": (2, 32),
    "float64": (2, 64),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "bool": (6, 8),
}
_DEVICES = {
    "cpu": 1,
    "cuda": 2,
    "cuda_host": 3,
    "vulkan": 7,
    "metal": 8,
    "rocm": 10,
    "npu": 12,
    "cuda_managed": 13,
    "oneapi": 14,
}

# Addresses that no process maps, so that the ranges of such tensors overlap nothing.
_addresses = itertools.count(1 << 60, 1 << 40)

_DEVICE_FAULTS = ("PA4001", "PA4002", "PA4003", "PA4004", "PA5005")
_DECLINES = ("PA3003", "PA3004")
_cuda_hidden = False


@contextmanager
def inject_faults(
    *,
    fail_allocations: bool = False,
    hide_simd: bool = False,
    hide_cuda: bool = False,
    device_fault: str | None = None,
    decline: str | None = None,
) -> Iterator[None]:
    """Provokes faults of the machine inside a ``with`` block, in the whole process.

    :param fail_allocations: every workspace allocation fails (PA5001).
    :param hide_simd: the processor seems to have no vector instructions (PA3006).
    :param hide_cuda: the CUDA driver seems absent (PA4xxx).
    :param device_fault: the code that calls on CUDA tensors are refused with, on any machine and
        in any build: PA4001, PA4002, PA4003, PA4004 or PA5005.
    :param decline: the code with which everything but the reference declines: PA3003 or PA3004.
    :raises packattn.Error: PA1104 for another code.
    """
    global _cuda_hidden
    codes = [
        _number("device_fault", device_fault, _DEVICE_FAULTS),
        _number("decline", decline, _DECLINES),
    ]
    _native.inject_faults(fail_allocations, hide_simd, hide_cuda, *codes)
    _cuda_hidden = hide_cuda or device_fault is not None
    try:
        yield
    finally:
        _native.inject_faults(False, False, False, 0, 0)
        _cuda_hidden = False


def _number(argument: str, code: str | None, allowed: tuple[str, ...]) -> int:
    if code is not None and code not in allowed:
        fault = ["PA1104", argument, "", repr(code), ", ".join(allowed), ""]
        raise_refusal(_native.refuse([fault]))
    return 0 if code is None else int(code.removeprefix("PA"))


class FakeTensor:
    """A tensor without memory; see `fake_tensor`."""

    def __init__(
        self, shape: Sequence[int], dtype: str, device: str, strides: Sequence[int] | None
    ) -> None:
        name, _, index = device.partition(":")
        if dtype not in _DTYPES or name not in _DEVICES:
            raise TypeError(
                f"dtype one of {', '.join(_DTYPES)}; device one of {', '.join(_DEVICES)}, with :N"
            )
        self.shape = tuple(int(n) for n in shape)
        self.dtype = dtype
        self.device = device
        self.strides = tuple(strides) if strides is not None else _contiguous(self.shape)
        if len(self.strides) != len(self.shape):
            raise TypeError("strides and shape differ in length")
        self._place = (_DEVICES[name], int(index or 0))
        self._address = next(_addresses)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return f"fake_tensor({self.shape}, {self.dtype!r}, {self.device!r})"

    def _describe(self, address: int) -> list[int]:
        return [address, *_DTYPES[self.dtype], 1, *self._place, 0, *self.shape, *self.strides]

    def _packattn_empty(self, shape: Sequence[int], dtype: str | None) -> FakeTensor:
        return FakeTensor(shape, dtype or self.dtype, self.device, None)

    def _packattn_describe(self) -> list[int]:
        # Where nothing can reach a device's memory, the call is refused for that reason (PA4001,
        # PA4002) rather than for a missing address.
        return self._describe(self._address if self._unreachable() else 0)

    def _unreachable(self) -> bool:
        if self._place[0] != _DEVICES["cuda"]:
            return not self.device.startswith(("cpu", "cuda"))
        return _cuda_hidden or not _cuda_reachable(self._place[1])

    def _packattn_describe_unrun(self) -> list[int]:
        return self._describe(self._address)


@functools.cache
def _cuda_reachable(index: int) -> bool:
    """Whether an implementation would run on this device: none says that it cannot be used."""
    q = FakeTensor((1, 1, 8), "float32", f"cuda:{index}", None)
    verdicts = why(q, q, q, [0, 1])
    declined = ["" if verdict else verdict.declined.code for verdict in verdicts]
    return any(code != "PA3007" and not code.startswith("PA4") for code in declined)


def fake_tensor(
    shape: Sequence[int],
    dtype: str = "float32",
    device: str = "cuda:0",
    *,
    strides: Sequence[int] | None = None,
) -> Any:
    """A tensor that has a shape, a dtype and a device but no memory.

    ``packattn.check_*`` and ``why*`` take it like a real one, so that calls meant for a GPU can
    be checked where there is none. An operation refuses it: PA4xxx for a GPU where there is
    no CUDA, else PA1013.
    """
    return FakeTensor(shape, dtype, device, strides)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
