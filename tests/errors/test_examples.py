# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of every page: `before` raises its code and no other, `after` passes."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from error_pages import read_catalogue, read_pages

pytest.importorskip("packattn")

ROOT = Path(__file__).parent.parent.parent
OWN, FOREIGN = read_pages(ROOT, {entry.code for entry in read_catalogue(ROOT)})
COMMAND = os.environ.get("PACKATTN_CLI") or shutil.which("packattn")
# A forced implementation that declines is one refusal with two faults: that, and its reason.
FORCED = "PA3002"


def examples():
    for page in [*OWN.values(), *FOREIGN]:
        code = page.head.get("code") or Path(page.path).stem
        for name in page.examples:
            yield pytest.param(page, name, code, id=f"{Path(page.path).stem}-{name}")


def run_shell(text, folder):
    if not COMMAND:
        pytest.skip("PACKATTN_CLI does not name the packattn command")
    tools = f"{Path(COMMAND).parent}{os.pathsep}{Path(sys.executable).parent}"
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["sh", "-e", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def check_shell(text, name, code, folder):
    done = run_shell(text, folder)
    output = done.stdout + done.stderr
    if name == "after":
        assert done.returncode == 0, output
    else:
        assert done.returncode != 0
        assert f"error[{code}]" in output


def run_python(text, path):
    exec(compile(text, path, "exec"), {"__name__": "__main__"})


def check_python(text, path, name, code):
    if name == "after":
        run_python(text, path)
        return
    with pytest.raises(Exception) as raised:
        run_python(text, path)
    codes = {fault.code for fault in getattr(raised.value, "faults", ())}
    alone = codes == {code}
    assert alone or (code in codes and FORCED in codes and len(codes) == 2), repr(raised.value)


@pytest.mark.parametrize(("page", "name", "code"), list(examples()))
def test_example(page, name, code, tmp_path, monkeypatch):
    language, needs, text = page.examples[name]
    for module in needs:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    monkeypatch.chdir(tmp_path)
    if language == "sh":
        check_shell(text, name, code, tmp_path)
    else:
        check_python(text, page.path, name, code)
