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


RIGHT = "import packattn\npackattn.PackedBatch.from_cu_seqlens([0, 2, 5])\n"
WRONG = RIGHT.replace("[0, 2, 5]", "[0, 2, 1]")


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("before", "PA2007", RIGHT),  # raises nothing
        ("before", "PA2008", WRONG),  # raises another code
        ("before", "PA2007", WRONG.replace("[0, 2, 1]", "[1, 2, 1]")),  # raises a second one
        ("before", "PA2007", "raise ValueError('PA2007')"),  # no error of packattn's
        ("after", "PA2007", WRONG),  # the fix is refused
        ("after", "PA2007", "import no_such_module"),  # does not run at all
    ],
)
def test_an_example_that_is_wrong_fails(name, code, text):
    check_python(WRONG, "page", "before", "PA2007")
    check_python(RIGHT, "page", "after", "PA2007")
    with pytest.raises((Exception, pytest.fail.Exception)) as failed:
        check_python(text, "page", name, code)
    assert not isinstance(failed.value, pytest.skip.Exception)


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("before", "PA7006", "true"),  # does not fail
        ("before", "PA7001", "packattn explain PA8888"),  # prints another code
        ("after", "PA7006", "packattn explain PA8888"),  # the fix fails
        ("after", "PA7006", "false\ntrue"),  # its first command fails
    ],
)
def test_a_command_line_example_that_is_wrong_fails(name, code, text, tmp_path):
    check_shell("packattn explain PA8888", "before", "PA7006", tmp_path)
    check_shell("packattn explain PA2007", "after", "PA7006", tmp_path)
    with pytest.raises(AssertionError):
        check_shell(text, name, code, tmp_path)
