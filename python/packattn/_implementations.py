# SPDX-License-Identifier: Apache-2.0
"""The lists of implementations and what each says about a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _native
from ._error import Fault, parse_faults, raise_refusal
from ._options import OP, Op, choice


@dataclass(frozen=True)
class Verdict:
    """``declined`` is None if the implementation can run the call, else why not (PA3xxx)."""

    implementation: str
    declined: Fault | None

    def __bool__(self) -> bool:
        return self.declined is None

    def __str__(self) -> str:
        return f"{self.implementation}: {'yes' if self else self.declined}"


def implementations(op: Op) -> list[str]:
    """Names of the implementations of an operation (``"attention"``, ``"kda_chunk"``, ...), best
    first, the fp64 reference last."""
    number = choice(OP, op)
    if isinstance(number, str):
        allowed = ", ".join(map(repr, OP))
        raise_refusal(_native.refuse([["PA1104", "op", "", repr(op), allowed, ""]]))
    return [str(name) for name in _native.implementations(number)]


def last_status(device: int = 0) -> Fault | None:
    """What kernels on the current stream of a CUDA device found wrong with boundaries and slots
    that only they see, since this was last asked; the lowest sequence's fault. Waits for nothing,
    so what has not run yet is not in it. The next call on the stream raises it if nobody asked."""
    told = _native.last_status(device)
    return None if told is None else parse_faults(str(told))[0]


def parse_verdicts(told: Sequence[Any]) -> list[Verdict]:
    if isinstance(told[0], str):  # a refusal: text and faults
        raise_refusal(told)
    return [
        Verdict(str(name), parse_faults(str(declined))[0] if declined else None)
        for name, declined in told
    ]


def workspace_bytes(told: Any) -> int:
    if isinstance(told, int):
        return told
    raise_refusal(told)
