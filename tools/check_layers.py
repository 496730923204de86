#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the source tree keeps the rules a compiler does not see.

The include direction (include <- errors <- core <- {ref, cpu, cuda, io} <- ops <- {cli, python,
bench, tests}), who may name a backend, what a public header may need, and that the library does not
print or stop its caller. `--sizes` also lists files above the size guides; it never fails for them.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

# For each directory, the directories it may include from, besides the public headers.
MAY_INCLUDE = {
    "include": [],
    "src/errors": ["errors"],
    "src/core": ["core", "errors"],
    "src/ref": ["ref", "core", "errors"],
    "src/cpu": ["cpu", "core", "errors"],
    "src/cuda": ["cuda", "core", "errors"],
    "src/io": ["io", "core", "errors"],
    "src/ops": ["ops", "ref", "cpu", "cuda", "io", "core", "errors"],
    "cli": [],
    "python": [],
    "bench": [],
    "examples": [],
    "tests": ["ops", "ref", "cpu", "cuda", "io", "core", "errors"],
}
INTERNAL = {"errors", "core", "ref", "cpu", "cuda", "io", "ops"}
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".cu", ".cuh", ".def"}
HEADERS = {".h", ".hpp", ".cuh"}
SOURCES = {".cpp", ".cc", ".cu"}

# Tests and benchmarks of GPU kernels need memory and graphs there: these files, chosen by CMake.
OWN_DEVICE_MEMORY = {
    "tests/support/device_memory_cuda.cpp",
    "tests/conformance/device_graph_test.cpp",
    "bench/gpu/device.h",
    "cli/device_memory_cuda.cpp",
}

# (directory, suffixes, lines): the first that fits a file is its guide.
SIZE_GUIDES = [
    ("include", SUFFIXES - {".def"}, 150),
    ("src/core", SUFFIXES, 200),
    ("src/errors", SUFFIXES, 200),
    ("src/ref", SUFFIXES, 120),
    ("src/cuda", SUFFIXES, 450),
    ("src", SUFFIXES, 300),
    ("tests", SUFFIXES | {".py"}, 300),
    ("errors", {".md"}, 70),  # one page an error
    ("", SUFFIXES - {".def"} | {".py"}, 450),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
CUDA_HEADER = re.compile(
    r"^(cuda|cu[A-Z_]|cub/|cute/|cutlass/|thrust/|nv/|nvtx|cooperative_groups|mma\.h)"
)
STANDARD_HEADER = re.compile(r"^[a-z0-9_]+$")
INLINE_ASSEMBLY = re.compile(r"\b(asm|__asm|__asm__)\b\s*(volatile|__volatile__|goto)?\s*\(")
# What launches or dispatches; a header with a step that several kernels share does neither.
KERNEL = re.compile(r"<<<|\bHWY_EXPORT\b")
PRINTS = re.compile(
    r"\bstd::(cout|cerr|clog)\b|(?<![\w.>])(std::)?(printf|puts|putchar|perror)\s*\("
)
STOPS = re.compile(r"(?<![\w.>])(std::)?(abort|exit|_Exit|quick_exit|terminate|assert)\s*\(")
COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"', re.S
)


@dataclass(frozen=True)
class Fault:
    path: str
    line: int
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class SourceFile:
    path: str  # relative to the root, with '/'
    text: str

    @property
    def code(self):
        """The text without comments and string literals, line numbers kept."""
        return COMMENT_OR_TEXT.sub(lambda m: "\n" * m.group().count("\n"), self.text)

    @property
    def suffix(self):
        return Path(self.path).suffix

    @property
    def layer(self):
        parts = self.path.split("/")
        return "/".join(parts[:2]) if parts[0] == "src" else parts[0]

    def includes(self):
        for match in INCLUDE.finditer(self.text):
            yield self.line_of(match), match.group(1) == "<", match.group(2)

    def line_of(self, match):
        return self.text.count("\n", 0, match.start()) + 1 + match.group().count("\n")


def read_tree(root):
    files = []
    for top in sorted({layer.split("/")[0] for layer in MAY_INCLUDE}):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                text = path.read_text(encoding="utf-8")
                files.append(SourceFile(path.relative_to(root).as_posix(), text))
    return files


def check_direction(file):
    if file.layer == "include":
        return  # check_public_header allows less
    allowed = MAY_INCLUDE.get(file.layer)
    if allowed is None:
        yield Fault(file.path, 1, f"{file.layer} has no place in the include direction")
        return
    for line, _, name in file.includes():
        target = name.split("/")[0]
        if "/" in name and target in INTERNAL and target not in allowed:
            may = ", ".join(["packattn (public)", *allowed])
            yield Fault(file.path, line, f'{file.layer} includes "{name}"; it may include: {may}')


def check_public_header(file):
    if file.layer != "include":
        return
    for line, angled, name in file.includes():
        if name.startswith("packattn/"):
            continue
        if not (angled and STANDARD_HEADER.match(name)):
            text = f'a public header includes "{name}"; only the standard library and packattn/ are'
            yield Fault(file.path, line, f"{text} allowed")


def check_kernels(file, kernels):
    for line, _, name in file.includes():
        if Path(name).suffix in SOURCES:
            yield Fault(file.path, line, f'includes the source file "{name}"')
        # A file that only instantiates a kernel template is not a kernel itself.
        if file.path in kernels and f"src/{name}" in kernels:
            yield Fault(file.path, line, f'a kernel file includes another kernel, "{name}"')


def check_cuda(file, paths):
    if file.layer == "src/cuda" or file.path in OWN_DEVICE_MEMORY:
        return
    for line, _, name in file.includes():
        if CUDA_HEADER.match(name) and f"src/{name}" not in paths:
            yield Fault(file.path, line, f'CUDA header "{name}" outside src/cuda')


def check_library_manners(file):
    if not file.path.startswith(("src/", "include/")):
        return
    for number, line in enumerate(file.code.splitlines(), 1):
        if PRINTS.search(line):
            yield Fault(file.path, number, "the library prints; it must report by exception")
        if STOPS.search(line):
            yield Fault(file.path, number, "the library stops its caller; throw packattn::Error")


def check_assembly(files):
    """One file of a backend's directory may hold inline assembly: its wrappers of instructions."""
    homes = {}
    for file in files:
        match = INLINE_ASSEMBLY.search(file.code)
        if not match:
            continue
        line = file.code.count("\n", 0, match.start()) + 1
        backend = file.path.startswith(("src/cuda/", "src/cpu/"))
        home = homes.setdefault(str(Path(file.path).parent), file.path)
        if not backend:
            yield Fault(file.path, line, "inline assembly outside src/cuda and src/cpu")
        elif home != file.path:
            yield Fault(file.path, line, f"inline assembly in a second file; {home} has it")


def check_form(file):
    if not file.text.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
        yield Fault(file.path, 1, "first line is not the SPDX licence line")
    # Highway compiles an -inl.h file once per target, so it has a guard of another kind.
    guarded = "#pragma once" in file.text or file.path.endswith("-inl.h")
    if file.suffix in HEADERS and not guarded:
        yield Fault(file.path, 1, "header without #pragma once")
    for number, line in enumerate(file.text.splitlines(), 1):
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            yield Fault(file.path, number, "unfinished mark")


def check(root):
    files = read_tree(root)
    paths = {f.path for f in files}
    kernels = {f.path for f in files if KERNEL.search(f.code)}
    faults = list(check_assembly(files))
    for file in files:
        faults += check_direction(file)
        faults += check_public_header(file)
        faults += check_kernels(file, kernels)
        faults += check_cuda(file, paths)
        faults += check_library_manners(file)
        faults += check_form(file)
    return files, sorted(faults, key=lambda fault: (fault.path, fault.line))


def report_sizes(root):
    paths = [p for p in root.rglob("*") if p.suffix in SUFFIXES | {".py", ".md"} and p.is_file()]
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        if name.startswith(("build/", ".", "site/", "dist/")) or path.name == "README.md":
            continue
        for directory, suffixes, guide in SIZE_GUIDES:
            if path.suffix in suffixes and (not directory or name.startswith(directory + "/")):
                lines = len(path.read_text(encoding="utf-8").splitlines())
                if lines > guide:
                    print(f"size: {name}: {lines} lines, guide {guide}")
                break


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--sizes", action="store_true", help="also list files above a size guide")
    options = parser.parse_args(arguments)
    files, faults = check(options.root)
    for fault in faults:
        print(fault, file=sys.stderr)
    if options.sizes:
        report_sizes(options.root)
    print(f"layers: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
