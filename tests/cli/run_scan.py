#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `packattn errors scan`: run_scan.py PATH/TO/packattn. Standard library only."""

import ast
import json
import os
import sys
import sysconfig
import unittest
from pathlib import Path

from command import CommandTest

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMA = json.loads((ROOT / "errors/schema.json").read_text(encoding="utf-8"))

PYTHON = '''\
"""raise ValueError("in a docstring")"""
import warnings


def plan(name, lens, total, q):
    # raise ValueError("in a comment")
    if lens is None:
        raise ValueError("lens is required") from None
    if sum(lens) != total:
        raise ValueError(
            f"{name} sums to {sum(lens)!r:>8}, "  # both values
            f"but {{expected}} {total} tokens"
        )
    msg = (
        "q must be 3D, "
        "got " + str(q.ndim)
    )
    raise errors.ShapeError(msg)


def check(q, k, level):
    assert q.dtype == k.dtype, "q and k differ: %s vs %s" % (q.dtype, k.dtype)
    assert q.shape[0] == 1
    assert level in (1, 2), f"{level=} {', '.join(f'{x}' for x in level)}"
    try:
        run(q)
    except ValueError as error:
        raise
    except KeyError as error:
        raise error
    warnings.warn("slow path", RuntimeWarning, stacklevel=2)
    warnings.warn("old name {}".format(level))
    if level == 3:
        raise NotImplementedError
    raise HTTPException(status_code=422, detail="no cu_seqlens")
'''

CPP = """\
// throw std::runtime_error("in a comment");
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be on CUDA")
void check(const Tensor& q, int64_t b, const std::string& name) {
  TORCH_CHECK(q.dim() == 3,
              "q must be 3D, got ", q.dim(), " in ", name);
  CHECK_CUDA(q);
  TORCH_CHECK(q.stride(-1) == 1);
  if (b <= 0) throw std::invalid_argument("batch " + std::to_string(b) + " is not positive");
  if (b > 9) throw Error(fmt::format("{} of {}: {:>4}", name, b, q.size(0)));
  CHECK_EQ(q.size(1), b) << "heads of " << name << " differ";
  LOG(INFO) << "not an error";
  const char* text = R"(throw "raw")";
  std::ostringstream err_msg;
  err_msg << "indptr[" << b << "] decreases";
  FLASH_ERROR(err_msg.str());
  try { run(); } catch (...) { throw; }
  throw custom::Failure{7, "state is gone"};
}
"""


class Scan(CommandTest):
    def scan(self, **files):
        for name, text in files.items():
            path = self.path / "tree" / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        documents = json.loads(self.run_command("errors", "scan", "tree", "--json"))
        return [document["record"] for document in documents]

    def summary(self, records):
        return [(r["lineNumber"], r["errorClass"], r["messagePattern"]) for r in records]

    def test_python(self):
        records = self.scan(plan_dot_py=PYTHON)
        self.assertEqual(
            self.summary(records),
            [
                (8, "ValueError", "lens is required"),
                (10, "ValueError", "{name} sums to {sum(lens)}, but {expected} {total} tokens"),
                (18, "ShapeError", "q must be 3D, got {q.ndim}"),
                (22, "AssertionError", "q and k differ: {q.dtype} vs {k.dtype}"),
                (24, "AssertionError", "level={level} {', '.join(f'x' for x in level)}"),
                (31, "RuntimeWarning", "slow path"),
                (32, "UserWarning", "old name {level}"),
                (34, "NotImplementedError", "NotImplementedError"),
                (35, "HTTPException", "no cu_seqlens"),
            ],
        )
        self.assertEqual([r["severity"] for r in records].count("warning"), 2)
        self.assertEqual(records[-1]["httpStatus"], 422)
        self.assertEqual(records[-2]["errorType"], "unsupported")

    def test_cpp(self):
        self.assertEqual(
            self.summary(self.scan(csrc__check_dot_cu=CPP)),
            [
                (2, "RuntimeError", "{x} must be on CUDA"),
                (4, "RuntimeError", "q must be 3D, got {q.dim()} in {name}"),
                (7, "RuntimeError", "Expected q.stride(-1) == 1 to be true, but got false."),
                (8, "invalid_argument", "batch {b} is not positive"),
                (9, "Error", "{name} of {b}: {q.size(0)}"),
                (10, "CHECK_EQ", "heads of {name} differ"),
                (15, "FLASH_ERROR", "indptr[{b}] decreases"),
                (17, "Failure", "state is gone"),
            ],
        )

    def test_a_skeleton_has_every_field_of_a_record(self):
        (record, *_) = self.scan(deep__plan_dot_py="\n" * 40 + PYTHON)
        self.assertEqual(list(record), SCHEMA["properties"]["record"]["required"])
        self.assertEqual(record["filePath"], "deep/plan.py")
        self.assertEqual(record["repo"], "tree")
        self.assertEqual((record["sourceCodeStart"], record["sourceCodeEnd"]), (30, 66))
        self.assertEqual(len(record["sourceCode"].splitlines()), 37)
        self.assertEqual(record["sourceCode"].splitlines()[18].strip()[:5], "raise")
        self.assertEqual(record["slug"], "lens-is-required")
        self.assertIsNone(record["id"])
        self.assertEqual(record["schemaVersion"], 2)

    def test_one_file_and_the_listing(self):
        (self.path / "one.py").write_text("raise ValueError('a\\nb')\n")
        text = self.run_command("errors", "scan", "one.py")
        self.assertEqual(text, "one.py:1: ValueError: a\\nb\n1 raise sites in 1 sources\n")
        named = json.loads(self.run_command("errors", "scan", "one.py", "--json", "--repo", "o/r"))
        self.assertEqual(named[0]["record"]["repo"], "o/r")

    def test_what_is_not_a_source_is_left_alone(self):
        self.assertEqual(
            self.scan(
                **{"__git__a_dot_py": ""},
                _dot_venv__x_dot_py="raise ValueError('x')",
                build__x_dot_py="raise ValueError('x')",
                notes_dot_md="raise ValueError('x')",
            ),
            [],
        )
        os.symlink(self.path, self.path / "tree/loop")
        self.run_command("errors", "scan", "tree")
        self.assertIn("PA7001", self.run_command("errors", "scan", "absent", status=1))

    def test_broken_sources_end(self):
        for name, text in {
            "a.py": "raise ValueError(f'{x",
            "b.py": "raise ValueError('open\nraise KeyError('next')\n",
            "c.cpp": 'throw X("open\n; throw Y("next");',
            "d.cpp": 'throw X(R"(never closed',
            "e.py": "raise ValueError(" * 2000,
            "f.py": "\x00\xff{}{}{}assert , , raise (",
            "g.py": "raise ValueError('%d%' % x)",
            "h.py": "raise ValueError('%(a' % x)",
            "i.py": "raise ValueError('{0}{999999999999999999999}{'.format(1))",
        }.items():
            (self.path / name).write_text(text, encoding="latin-1")
        documents = json.loads(self.run_command("errors", "scan", ".", "--json"))
        found = {(d["record"]["filePath"], d["record"]["errorMessage"]) for d in documents}
        self.assertIn(("b.py", "next"), found)
        self.assertIn(("c.cpp", "next"), found)

    def test_a_real_tree_has_what_its_parser_finds(self):
        tree = Path(sysconfig.get_path("stdlib"))
        for package in ("asyncio", "email", "importlib", "unittest"):
            expected = {}
            for path in sorted((tree / package).rglob("*.py")):
                name = path.relative_to(tree / package).as_posix()
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    error = raised_class(node)
                    if error:
                        expected[name, node.lineno] = error
            documents = json.loads(self.run_command("errors", "scan", tree / package, "--json"))
            found = {
                (d["record"]["filePath"], d["record"]["lineNumber"]): d["record"]["errorClass"]
                for d in documents
                if d["record"]["severity"] == "error"
            }
            self.assertGreater(len(found), 20)
            self.assertEqual(found, {**found, **expected}, package)


def raised_class(node):
    """The class of a raise statement that makes an exception, or of an assert with a message."""
    if isinstance(node, ast.Assert):
        return "AssertionError" if node.msg else None
    if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
        return None
    called = node.exc.func
    if isinstance(called, ast.Name):
        return called.id
    return called.attr if isinstance(called, ast.Attribute) and plain(called.value) else None


def plain(node):
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and plain(node.value))


if __name__ == "__main__":
    CommandTest.program = Path(sys.argv[1]).resolve()
    unittest.main(argv=[sys.argv[0]])
