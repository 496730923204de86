# SPDX-License-Identifier: Apache-2.0
"""What the drop-ins share: refusals that speak the language of the library they stand in for, and
the translation of its conventions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from .. import _native
from .._batch import PackedBatch
from .._error import Error, Fault, UnsupportedError, error_class, raise_refusal
from .._tensors import is_torch, shape_of

Words = Callable[[tuple[Fault, ...]], Iterable[str]]


class PeerError(Error, RuntimeError):
    """A refusal in place of a function whose own checks raise RuntimeError."""


@contextmanager
def speaking(words: Words, kind: type[Error] = Error) -> Iterator[None]:
    """Puts the other library's messages for the same faults in front of packattn's own text."""
    try:
        yield
    except Error as error:
        theirs = list(dict.fromkeys(words(error.faults)))
        text = "\n".join([*theirs, str(error)])
        found = error_class(error.faults)
        # NotImplementedError is a RuntimeError already.
        raise (found if found is UnsupportedError else kind)(error.faults, text) from None


def worded(table: Mapping[str, str]) -> Words:
    """The messages of a table by code, or by ``code argument``, filled with the fault's fields."""

    def words(faults: tuple[Fault, ...]) -> Iterator[str]:
        for fault in faults:
            text = table.get(f"{fault.code} {fault.argument}") or table.get(fault.code)
            if text is not None:
                yield text.format(
                    argument=fault.argument,
                    position=fault.position,
                    value=fault.value,
                    limit=fault.limit,
                )

    return words


def unknown_arguments(function: str, given: Iterable[str], known: str) -> list[list[str]]:
    """Rows of faults for keyword arguments that the function does not have."""
    return [["PA1105", name, function, "", known, ""] for name in sorted(given)]


def unsupported(function: str, argument: str, value: Any, remedy: str) -> list[str]:
    """A row for an argument that packattn cannot honour."""
    shape = shape_of(value)
    shown = repr(value) if shape is None else f"a tensor of shape {list(shape)}"
    return ["PA3009", argument, function, shown, remedy, ""]


def refused(function: str, given: Mapping[str, tuple[Any, Any, str]]) -> list[list[str]]:
    """Rows for arguments ``name: (value, the value that is accepted, remedy)``."""
    return [
        unsupported(function, name, value, remedy)
        for name, (value, accepted, remedy) in given.items()
        if value is not accepted and (shape_of(value) is not None or value != accepted)
    ]


def refuse_all(rows: list[list[str]]) -> None:
    """Raises if there are rows of faults."""
    if rows:
        raise_refusal(_native.refuse(rows))


def refuse_with(rows: list[list[str]], others: Iterable[Fault]) -> NoReturn:
    """Raises with faults of the drop-in's own and those that a check found beside them."""
    raise_refusal(
        _native.refuse(
            rows + [[f.code, f.argument, f.position, f.value, f.limit, f.note] for f in others]
        )
    )


def window_of(pair: Any) -> Any:
    """A window in which a negative bound is none; anything that is no pair goes on as it is."""
    try:
        left, right = pair
        return (
            left if left is None or left >= 0 else None,
            right if right is None or right >= 0 else None,
        )
    except (TypeError, ValueError):
        return pair


def arithmetic(like: Any) -> Any:
    """The module, torch or NumPy, whose functions take ``like``."""
    if is_torch(like):
        import torch

        return torch
    return np


def column(tensor: Any, index: int, dim: int = 1) -> Any:
    """``tensor[:, index]``, or that of a later dimension; what has no such dimension goes on, to be
    refused by its rank."""
    shape = shape_of(tensor)
    if shape is None or len(shape) <= dim or shape[dim] <= index:
        return tensor
    return tensor[(slice(None),) * dim + (index,)]


def flat_rows(tensor: Any) -> Any:
    """``[B, S, ...]`` as a view ``[B * S, ...]``; None if its strides allow none."""
    shape = shape_of(tensor)
    if shape is None or len(shape) < 2:
        return tensor
    rows, length = shape[:2]
    if is_torch(tensor):
        outer, inner = tensor.stride()[:2]
    elif isinstance(tensor, np.ndarray):
        outer, inner = tensor.strides[:2]
    else:
        return None
    if rows > 1 and length > 1 and outer != length * inner:
        return None
    return tensor.reshape(rows * length, *shape[2:])


@lru_cache(maxsize=64)
def even_batch(rows: int, length_q: int, length_k: int) -> PackedBatch:
    """The batch of a dense ``[B, S]`` call, kept so that its schedules are reused."""
    ends = np.arange(rows + 1)
    return PackedBatch.from_cu_seqlens(ends * length_q, ends * length_k)


def by_rows(lse: Any, rows: int) -> Any:
    """lse ``[H, B * S]`` as a view ``[B, H, S]``."""
    heads, tokens = lse.shape
    return lse.reshape(heads, rows, tokens // rows if rows else 0).swapaxes(0, 1)
