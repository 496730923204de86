# SPDX-License-Identifier: Apache-2.0
"""Each rule of tools/check_layers.py catches the tree that breaks it, and the real tree passes."""

from pathlib import Path

import check_layers
import pytest

ROOT = Path(__file__).parent.parent.parent

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = LICENCE + "#pragma once\n"


def faults_of(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [str(fault) for fault in check_layers.check(tmp_path)[1]]


def test_this_tree_keeps_the_rules():
    files, faults = check_layers.check(ROOT)
    assert files
    assert [str(fault) for fault in faults] == []


def test_a_good_tree_passes(tmp_path):
    files = {
        "include/packattn/error.h": HEADER + "#include <vector>\n#include <packattn/export.h>\n",
        "src/core/problem.h": HEADER + '#include "packattn/error.h"\n#include "errors/raise.h"\n',
        "src/cuda/cuda.h": HEADER,
        "src/ops/lists.cpp": LICENCE + '#include "cuda/cuda.h"\n',
        "src/cuda/launch.cu": LICENCE + '#include <cuda_runtime.h>\n#include "core/problem.h"\n',
        "src/ops/attention.cpp": LICENCE + '#include "cpu/attention.h"\n#include "ref/kda.h"\n',
        "src/core/text.cpp": LICENCE + '// abort() here\nauto t = "std::cout << exit(1)";\n',
        "cli/main.cpp": LICENCE + '#include "packattn/packattn.h"\n#include "cli/commands.h"\n',
        "tests/unit/problem_test.cpp": LICENCE + '#include "core/problem.h"\n',
    }
    assert faults_of(tmp_path, files) == []


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("src/core/plan.cpp", '#include "ops/attention.h"', "it may include"),
        ("src/errors/text.cpp", '#include "core/problem.h"', "it may include"),
        ("src/cpu/kda.cpp", '#include "ref/kda.h"', "it may include"),
        ("src/io/reader.cpp", '#include "cpu/kda.h"', "it may include"),
        ("cli/run.cpp", '#include "core/problem.h"', "it may include"),
        ("python/module.cpp", '#include "ops/attention.h"', "it may include"),
        ("bench/softmax.cpp", '#include "cpu/attention.h"', "it may include"),
        ("src/other/x.cpp", "", "no place in the include direction"),
        ("include/packattn/a.h", "#pragma once\n#include <fmt/core.h>", "only the standard"),
        ("include/packattn/a.h", '#pragma once\n#include "core/problem.h"', "only the standard"),
        ("src/core/device.cpp", "#include <cuda_runtime.h>", "outside src/cuda"),
        ("tests/support/guarded.cpp", "#include <cuda_runtime.h>", "outside src/cuda"),
        ("src/cpu/kda.cpp", '#include "cpu/attention.cpp"', "includes the source file"),
        ("src/core/amx.cpp", 'void f() { asm volatile("nop"); }', "assembly outside src/cuda"),
        ("src/core/x.cpp", "void f() { std::abort(); }", "stops its caller"),
        ("src/core/x.cpp", "void f() { assert(1); }", "stops its caller"),
        ("src/core/x.cpp", 'void f() { printf("x"); }', "prints"),
        ("src/core/x.cpp", "// FIXME later", "unfinished mark"),
        ("src/core/x.h", "int x();", "without #pragma once"),
    ],
)
def test_a_broken_rule_is_caught_at_its_line(tmp_path, path, body, expected):
    faults = faults_of(tmp_path, {path: LICENCE + body + "\n"})
    assert len(faults) == 1
    assert faults[0].startswith(f"{path}:")
    assert expected in faults[0]


def test_a_kernel_does_not_include_a_kernel(tmp_path):
    files = {
        "src/cuda/steps.cuh": HEADER + "__global__ void combine();\n",
        "src/cuda/attention.cuh": HEADER
        + '#include "cuda/steps.cuh"\nauto a = [] { f<<<1, 1>>>(); };\n',
        "src/cuda/attention_bf16.cu": LICENCE + '#include "cuda/attention.cuh"\n',
        "src/cuda/kda.cu": LICENCE
        + '#include "cuda/attention.cuh"\nauto k = [] { g<<<1, 1>>>(); };\n',
    }
    faults = faults_of(tmp_path, files)
    assert len(faults) == 1
    assert faults[0].startswith("src/cuda/kda.cu:2: a kernel file includes another kernel")


def test_inline_assembly_has_one_home(tmp_path):
    body = LICENCE + 'void f() { asm volatile("nop"); }\n'
    faults = faults_of(tmp_path, {"src/cuda/a.cu": body, "src/cuda/b.cu": body})
    assert len(faults) == 1
    assert "src/cuda/a.cu has it" in faults[0]


def test_a_missing_licence_line_is_caught(tmp_path):
    assert faults_of(tmp_path, {"src/core/x.cpp": "int x;\n"}) == [
        "src/core/x.cpp:1: first line is not the SPDX licence line"
    ]


def test_main_says_how_many_and_fails(tmp_path, capsys):
    (tmp_path / "src/core").mkdir(parents=True)
    (tmp_path / "src/core/x.cpp").write_text(LICENCE + '#include "ops/a.h"\n' + "//\n" * 250)
    assert check_layers.main([str(tmp_path), "--sizes"]) == 1
    printed = capsys.readouterr()
    assert "layers: 1 files, 1 faults" in printed.out
    assert "size: src/core/x.cpp: 252 lines, guide 200" in printed.out
    assert "src/core/x.cpp:2: src/core includes" in printed.err
