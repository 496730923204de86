#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel that people install, and installs it as they would.

    tools/build_wheel.py [--out dist] [--cuda ON|OFF|AUTO] [--no-try]

pip builds it, auditwheel reads from its symbols which systems can load it and names it after them
(manylinux_2_34: glibc 2.34 or newer, as in Debian 12, Ubuntu 22.04, RHEL 9). Then the wheel goes
into a fresh environment without a compiler, with NumPy alone, and has to run the quick start there.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_BYTES = 20_000_000
# What the wheel may ask of the system, besides glibc and libstdc++ of the manylinux policy.
# libtvm_ffi is of a package that pip installs, and `import tvm_ffi` has loaded it before.
FROM_PACKAGES = ["libtvm_ffi.so"]


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], text=True, capture_output=True, check=False, **options
    )
    if done.returncode != 0:
        sys.exit(f"build_wheel: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(out, cuda, scratch):
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-build-isolation", "--config-settings=build-dir=build/python",
        f"--config-settings=cmake.define.PACKATTN_CUDA={cuda}", "--wheel-dir", scratch, ROOT,
        cwd=ROOT,
    )  # fmt: skip
    (made,) = scratch.glob("packattn-*.whl")
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    excluded = [part for name in FROM_PACKAGES for part in ("--exclude", name)]
    run(
        sys.executable, "-m", "auditwheel", "repair", *excluded, "--wheel-dir", out, made,
        cwd=ROOT, env={**os.environ, "PATH": tools},
    )  # fmt: skip
    newest = max(out.glob("packattn-*manylinux*.whl"), key=lambda path: path.stat().st_mtime)
    return newest


def check(wheel):
    faults = []
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        faults.append(f"{size} bytes, more than {MOST_BYTES}")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("_packattn.so", "py.typed", "libtbb.so", "libhwy.so"):
        if not any(name.startswith(f"packattn/{needed}") for name in names):
            faults.append(f"no {needed}")
    if "-py3-none-manylinux_" not in wheel.name:
        faults.append("not one wheel for every Python on a manylinux system")
    if faults:
        sys.exit(f"build_wheel: {wheel.name}: {'; '.join(faults)}")
    return size


def install_and_run(wheel, scratch):
    """Returns the seconds that pip took."""
    home = scratch / "fresh"
    venv.create(home, with_pip=True)
    # No compiler is found there, and no torch: what the wheel needs has to come with it.
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "CC", "CXX", "LD_LIBRARY_PATH")
    } | {"PATH": str(home / "bin")}
    started = time.monotonic()
    run(
        home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--only-binary", ":all:", wheel, env=clean,
    )  # fmt: skip
    seconds = time.monotonic() - started
    text = run(home / "bin" / "python", ROOT / "examples/python/quickstart.py", env=clean, cwd=home)
    if "error[PA" not in text or "kda:" not in text:
        sys.exit(f"build_wheel: the quick start printed\n{text}")
    seen = run(
        home / "bin" / "python", "-c",
        "import sys, packattn, packattn.compat.flash_attn\n"
        "print(packattn.__file__, 'torch' in sys.modules)", env=clean, cwd=home,
    )  # fmt: skip
    if not seen.startswith(str(home)) or "False" not in seen:
        sys.exit(f"build_wheel: imported {seen}")
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--cuda", choices=["ON", "OFF", "AUTO"], default="OFF")
    parser.add_argument("--no-try", action="store_true", help="do not install it anywhere")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        wheel = build(options.out.resolve(), options.cuda, scratch)
        print(f"{wheel}: {check(wheel) / 1e6:.1f} MB")
        if not options.no_try:
            seconds = install_and_run(wheel, scratch)
            print(f"installed with NumPy alone in {seconds:.1f} s; the quick start runs")


if __name__ == "__main__":
    main()
