#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy on every translation unit of a build directory that changed since it passed.

What a unit depends on comes from ninja's own record, so a changed header reruns its users only.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLANG_TIDY = Path(sys.executable).parent / "clang-tidy"


def dependencies(build):
    """Object file -> the project's files that it was made from."""
    listing = subprocess.run(
        ["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True
    ).stdout
    found = {}
    for block in listing.split("\n\n"):
        lines = block.splitlines()
        if lines:
            paths = [(build / line.strip()).resolve() for line in lines[1:]]
            found[lines[0].split(":")[0]] = [p for p in paths if p.is_relative_to(ROOT)]
    return found


def digest(command, files):
    parts = hashlib.sha256(command.encode())
    for path in [ROOT / ".clang-tidy", ROOT / "requirements/lint.txt", *sorted(files)]:
        parts.update(path.read_bytes() if path.exists() else b"")
    return parts.hexdigest()


def check(build, file):
    command = [CLANG_TIDY, "--quiet", "-p", build, file]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    return run.returncode, run.stdout


def main():
    build = Path(sys.argv[1]).resolve()
    passed = build.parent / "tidy"
    passed.mkdir(parents=True, exist_ok=True)
    units = {}
    known = dependencies(build)
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = Path(entry["file"])
        # Sources that the build generates are data, not code that anybody reads.
        # CUDA sources carry flags that only nvcc knows.
        if file.is_relative_to(build) or file.suffix == ".cu":
            continue
        output = re.search(r" -o (\S+)", entry["command"]).group(1)
        stamp = passed / digest(entry["command"], known.get(output, [file]))
        if not stamp.exists():
            units[file] = stamp

    failures = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for stamp, (status, text) in zip(
            units.values(), pool.map(lambda file: check(build, file), units), strict=True
        ):
            if status == 0:
                stamp.touch()
            else:
                failures += 1
                print(text, end="")
    print(f"clang-tidy: {len(units)} files checked, {failures} with faults")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
