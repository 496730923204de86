#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the C++ examples of the error reference as one test program: cpp_examples.py OUT.cpp

Each `before` has to raise its page's code and no other, each `after` has to run to its end.
Standard library only, because the build runs it.
"""

import sys
from pathlib import Path

from embed_errors import write_if_changed
from error_pages import read_catalogue, read_pages

ROOT = Path(__file__).resolve().parent.parent

HEAD = """// Made by tools/cpp_examples.py from the pages of errors/.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "packattn/packattn.h"

#include "errors/page_example.h"

namespace {

using namespace packattn;
"""


def test_of(page, name, code):
    body = "\n".join(f"    {line}" if line else "" for line in page.cpp[name].splitlines())
    stem = Path(page.path).stem.replace("-", "_")
    check = f'problem_of_before("{code}", ' if name == "before" else "problem_of_after("
    return (
        f"\nTEST(PageExamples, {stem}_{name}) {{\n  const auto call = [] {{\n{body}\n  }};\n"
        f'  EXPECT_EQ(test::{check}call), "") << "{page.path}";\n}}\n'
    )


def program(root):
    own, foreign = read_pages(root, {entry.code for entry in read_catalogue(root)})
    parts = [HEAD]
    for page in [*own.values(), *foreign]:
        code = page.head.get("code") or Path(page.path).stem
        parts += [test_of(page, name, code) for name in ("before", "after") if name in page.cpp]
    return "".join([*parts, "\n}  // namespace\n"])


if __name__ == "__main__":
    write_if_changed(Path(sys.argv[1]), program(ROOT))
