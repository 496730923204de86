#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Embeds the error reference into the library, and checks it.

embed_errors.py OUT.cpp          write every record and page as C++ (the build runs this)
embed_errors.py --check          every gate of errors/README.md that needs no execution
embed_errors.py --new-id PA2007  print the id of a new page, a code or foreign/<name>
embed_errors.py --note           enter new pages and codes into ids.txt and released.txt
"""

import argparse
import hashlib
import sys
from pathlib import Path

from error_gates import check, note_new
from error_pages import PageError
from error_records import load_records, to_text

HEAD = """// SPDX-License-Identifier: Apache-2.0
// Made by tools/embed_errors.py from errors/; do not edit.
#include <string_view>

#include "errors/reference.h"

namespace packattn {
namespace {
using namespace std::string_view_literals;
"""


def c_string(text):
    """A C++ literal; a raw one reads better in a debugger but cannot be split, so it is plain."""
    for plain, escaped in (
        ("\\", "\\\\"),
        ('"', '\\"'),
        ("\n", "\\n"),
        ("\t", "\\t"),
        ("?", "\\?"),
    ):
        text = text.replace(plain, escaped)
    # One literal a piece keeps the lines readable and below every compiler's limit.
    pieces = []
    while len(text) > 2000:
        cut = text.rfind(" ", 0, 2000)
        cut = cut if cut > 0 else 2000
        while text[cut - 1] == "\\":
            cut -= 1
        pieces.append(text[:cut])
        text = text[cut:]
    # sv carries the length; counting it is work that compilers limit in a constant expression.
    return "\n    ".join(f'"{piece}"' for piece in [*pieces, text]) + "sv"


def cpp_of(records):
    parts = [HEAD]
    for index, record in enumerate(records):
        if record.tags:
            tags = ", ".join(c_string(tag) for tag in record.tags)
            parts.append(f"constexpr std::string_view tags_{index}[] = {{{tags}}};\n")
        if record.wordings:
            pairs = ", ".join(f"{{{c_string(a)}, {c_string(b)}}}" for a, b in record.wordings)
            parts.append(f"constexpr KnownWording wordings_{index}[] = {{{pairs}}};\n")
    if not records:  # C++ has no empty array
        return HEAD + "}\n\nstd::span<const ReferenceEntry> reference_entries() { return {}; }\n}\n"
    parts.append("\nconstexpr ReferenceEntry entries[] = {\n")
    for index, r in enumerate(records):
        tags = f"tags_{index}" if r.tags else "{}"
        wordings = f"wordings_{index}" if r.wordings else "{}"
        fields = [r.id, r.repo, r.code, r.slug, r.message, r.severity]
        head = ", ".join(c_string(text) for text in fields)
        parts.append(f"    {{{{{head}, {tags}}},\n    {wordings},\n")
        parts.append(f"    {c_string(to_text(r.document))},\n    {c_string(r.page)}}},\n")
    parts.append("};\n\n}  // namespace\n\n")
    parts.append("std::span<const ReferenceEntry> reference_entries() { return entries; }\n\n")
    parts.append("}  // namespace packattn\n")
    return "".join(parts)


def write_if_changed(path, text):
    """An unchanged file keeps its time, so that nothing that depends on it is built again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("out", nargs="?", type=Path)
    what.add_argument("--check", action="store_true")
    what.add_argument("--new-id", metavar="PAGE")
    what.add_argument("--note", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if options.new_id:
            identity = hashlib.sha256(f"packattn/{options.new_id}".encode()).hexdigest()[:16]
            print(identity)
        elif options.note:
            note_new(options.root)
        elif options.check:
            problems = check(options.root)
            for problem in problems:
                print(problem, file=sys.stderr)
            print(f"error reference: {len(problems)} problems")
            return 1 if problems else 0
        else:
            write_if_changed(options.out, cpp_of(load_records(options.root)))
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
