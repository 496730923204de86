# SPDX-License-Identifier: Apache-2.0
"""Faults and the exceptions that carry them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a call.

    ``code`` is ``"PA2007"``; ``argument``, ``position``, ``value`` and ``limit`` say where it is,
    what was found and what is allowed; ``message`` is one line with all of that; ``note`` may be
    empty; ``help`` says what to do. A call lists the first 16 faults of a code; ``more`` of the
    last of these says how many there are beyond.
    """

    code: str
    argument: str
    position: str
    value: str
    limit: str
    message: str
    note: str
    help: str
    more: int = 0

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class Error(ValueError):
    """A refused call. Nothing has run and no output has been written.

    The text lists every fault as a compiler would. ``faults`` holds them all, ``code`` is the
    first one's, ``record`` is the first one's entry in the error reference.
    """

    def __init__(self, faults: Iterable[Fault], text: str) -> None:
        super().__init__(text)
        self.faults: tuple[Fault, ...] = tuple(faults)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults, self.args[0])

    @property
    def code(self) -> str:
        return self.faults[0].code

    @property
    def record(self) -> dict[str, Any]:
        """The JSON record of the first fault's code (see :func:`packattn.explain`)."""
        from ._reference import record_of

        return record_of(self.code)


class UnsupportedError(Error, NotImplementedError):
    """A call that is right, but that this build cannot run: every fault is a PA3xxx."""


def parse_faults(text: str) -> list[Fault]:
    return [Fault(**row) for row in json.loads(text)]


def error_class(faults: Sequence[Fault]) -> type[Error]:
    return UnsupportedError if all(f.code.startswith("PA3") for f in faults) else Error


def raise_refusal(refused: Sequence[str]) -> NoReturn:
    text, faults = str(refused[0]), parse_faults(str(refused[1]))
    # Not chained: whatever is being handled led to no part of this.
    raise error_class(faults)(faults, text) from None
