# SPDX-License-Identifier: Apache-2.0
"""The error reference that the library carries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from . import _native
from ._error import raise_refusal


@dataclass(frozen=True)
class Record:
    """An entry of the error reference: one of packattn's codes, or another library's error."""

    id: str
    repo: str
    code: str
    slug: str
    message: str
    severity: str
    tags: tuple[str, ...]

    @property
    def json(self) -> dict[str, Any]:
        """The document that the error reference serves under ``/api/errors/<id>``."""
        return json.loads(str(_native.record_json(self.id)))

    @property
    def page(self) -> str:
        """The explanation as Markdown."""
        return str(_native.record_page(self.id))


@dataclass(frozen=True)
class Explanation:
    """A record that a text matches; prints as the record's page.

    ``score`` is 1 for an exact match and less for a near one; ``captures`` says what each
    placeholder of the message stood for.
    """

    record: Record
    score: float
    captures: dict[str, str]

    def __str__(self) -> str:
        return self.record.page


@cache
def records() -> tuple[Record, ...]:
    """All records, packattn's own first, in the order of their codes."""
    return tuple(
        Record(*map(str, list(row)[:6]), tuple(map(str, list(row)[6:])))
        for row in _native.records()
    )


@cache
def _by_id() -> dict[str, Record]:
    return {record.id: record for record in records()}


def find_records(text: str, limit: int = 5) -> list[Explanation]:
    """Records that a code, slug, id or pasted message matches, best first."""
    rows = _native.find_records(str(text), int(limit))
    return [
        Explanation(_by_id()[str(id_)], float(score), _pairs([str(c) for c in captures]))
        for id_, score, captures in rows
    ]


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def explain(text: str) -> Explanation:
    """The best match of a code, slug, id or pasted message (of packattn or of another library).

    ``print(packattn.explain("PA2007"))`` shows the page.

    :raises packattn.Error: PA7006 if nothing matches.
    """
    found = find_records(text, 1)
    if not found:
        raise_refusal(_native.refuse([["PA7006", "text", "", repr(text), "", ""]]))
    return found[0]


def record_of(code: str) -> dict[str, Any]:
    """The JSON record of one of packattn's codes."""
    return next(record for record in records() if record.code == code).json
