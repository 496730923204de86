# SPDX-License-Identifier: Apache-2.0
"""What the drop-ins share: refusals that speak the language of the library they stand in for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from .. import _native
from .._error import Error, Fault, error_class, raise_refusal


@contextmanager
def speaking(words: Callable[[tuple[Fault, ...]], Iterable[str]]) -> Iterator[None]:
    """Puts the other library's messages for the same faults in front of packattn's own text."""
    try:
        yield
    except Error as error:
        theirs = list(dict.fromkeys(words(error.faults)))
        text = "\n".join([*theirs, str(error)])
        raise error_class(error.faults)(error.faults, text) from None


def unknown_arguments(function: str, given: Iterable[str], known: str) -> list[list[str]]:
    """Rows of faults for keyword arguments that the function does not have."""
    return [["PA1105", name, function, "", known, ""] for name in sorted(given)]


def unsupported(function: str, argument: str, value: Any, remedy: str) -> list[str]:
    """A row for an argument that packattn cannot honour."""
    return ["PA3009", argument, function, repr(value), remedy, ""]


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
