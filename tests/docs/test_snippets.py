# SPDX-License-Identifier: Apache-2.0
"""Every snippet of the documentation runs: those of one page one after the other, as a reader would
type them. Commands in ``console`` blocks are those that ./x test or this test run."""

import re
from pathlib import Path

import pytest

pytest.importorskip("packattn")
torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if "```python" in path.read_text(encoding="utf-8")
)
# What ./x test runs itself: the wheel in a fresh environment, the package from source, the build.
RUN_BY_CI = {
    "./x wheel": "x",
    "python3 -m pip install dist/packattn-*.whl": "tools/build_wheel.py",
    "python3 -m pip install .": "x",
    "cmake --preset release": "x",
    "cmake --build --preset release": "x",
    "cmake --install build/release": "tests/consumer",
}


def blocks(page, language):
    text = (ROOT / page).read_text(encoding="utf-8")
    for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.S | re.M):
        yield text[: match.start()].count("\n") + 1, match[1]


@pytest.mark.parametrize("page", PAGES)
def test_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "snippet"}
    for line, code in blocks(page, "python"):
        # As many empty lines before it as the page has, so that a traceback names the page's line.
        exec(compile("\n" * line + code, str(ROOT / page), "exec"), names)


def test_commands_are_run_somewhere():
    for page in PAGES:
        for line, text in blocks(page, "console"):
            for command in text.splitlines():
                assert command in RUN_BY_CI, f"{page}:{line}: {command} is run by no test"
                assert (ROOT / RUN_BY_CI[command]).exists()
