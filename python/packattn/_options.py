# SPDX-License-Identifier: Apache-2.0
"""Words of the Python interface and the numbers that the native module has for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

Align = Literal["bottom_right", "top_left"]
CheckLevel = Literal["host", "device", "full"]
Gate = Literal["given", "softplus", "bounded"]
BetaKind = Literal["given", "sigmoid", "two_sigmoid"]
StateLayout = Literal["k_first", "v_first"]
Side = Literal["query", "key"]
Progress = Callable[[int, int], object]
Op = Literal[
    "attention",
    "kda_recurrent",
    "kda_chunk",
    "kda_gate",
    "l2norm",
    "short_convolution",
    "gated_rms_norm",
]

ALIGN = {"bottom_right": 0, "top_left": 1}
CHECK_LEVEL = {"host": 0, "device": 1, "full": 2}
GATE = {"given": 0, "softplus": 1, "bounded": 2}
BETA_KIND = {"given": 0, "sigmoid": 1, "two_sigmoid": 2}
STATE_LAYOUT = {None: -1, "k_first": 0, "v_first": 1}
SIDE = {"query": 0, "key": 1}
ACTIVATION = {"swish": 0, "silu": 0, "sigmoid": 1}
OP = {
    "attention": 0,
    "kda_recurrent": 1,
    "kda_chunk": 2,
    "kda_gate": 3,
    "l2norm": 4,
    "short_convolution": 5,
    "gated_rms_norm": 6,
}
KDA_OP = {name: OP[name] for name in ("kda_recurrent", "kda_chunk")}


_Function = TypeVar("_Function", bound=Callable[..., Any])


def options_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The keyword-only arguments of an operation and their defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def with_options_of(operation: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Shows the keyword arguments that ``**options`` passes on in the signature of a function."""
    shared = inspect.signature(operation).parameters.values()

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        kept += [p for p in shared if p.kind is p.KEYWORD_ONLY and p.name not in own.parameters]
        function.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
        return function

    return decorate


def unknown_options(operation: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    """Rows for CallReader::faults, one for each keyword argument that there is not."""
    return [
        ["PA1105", name, operation, "", ", ".join(known), ""]
        for name in sorted(given.keys() - known.keys())
    ]


def choice(table: Mapping[Any, int], value: Any) -> int | str:
    """The number of a word. What is no word of the table goes on as text, to be refused there."""
    try:
        return table[value]
    except (KeyError, TypeError):
        return repr(value)


def flag(value: Any) -> Any:
    """NumPy's booleans are booleans; anything else goes on as it is, to be refused there."""
    return bool(value) if type(value).__name__ in ("bool", "bool_") else plain(value)


def plain(value: Any) -> Any:
    """A scalar as the native module reads it; what is none goes on as the text of its type."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "ndim", 1) == 0:
        return item()
    return f"a {type(value).__name__}"


class Callback:
    """A function of the caller. What it raises is kept here: on its way through the native module
    an exception loses its class, its attributes and its traceback, and KeyboardInterrupt its point.
    """

    __slots__ = ("_function", "raised")

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self.raised: BaseException | None = None

    def __call__(self, *args: Any) -> None:
        try:
            if self.raised is None:  # parts that were under way still report
                self._function(*args)
        except BaseException as error:
            self.raised = error
            raise

    def taken(self) -> BaseException:
        """The exception, which then no longer refers to itself through its traceback."""
        error, self.raised = self.raised, None
        assert error is not None
        return error


def callback(value: Any) -> Any:
    """A function; anything else goes on as the text of its type."""
    if value is None:
        return None
    return Callback(value) if callable(value) else f"a {type(value).__name__}"
