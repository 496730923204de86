# SPDX-License-Identifier: Apache-2.0
"""The site in the distribution's Chromium, from a disk, without a network."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LOCAL = ("file:", "data:", "blob:", "about:")
MESSAGE = (
    "[rank0]: Traceback (most recent call last):\n"
    "[rank0]: ValueError: cu_seqlens_q and cu_seqlens_k must describe the same batch"
)


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="needs requirements/site.txt")
    program = shutil.which("chromium")
    if not program:
        pytest.skip("no chromium here; Ubuntu's is a snap, which ./x does not install")
    with driver.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except driver.Error as error:
            pytest.skip(f"chromium does not start here: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture
def page(browser, site):
    """A page that fails on console errors and on whatever is not the site's."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    problems = []
    opened.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda r: None if r.url.startswith(LOCAL) else problems.append(r.url))
    opened.goto((site[0] / "errors/index.html").as_uri())
    yield opened
    context.close()
    assert problems == []


def shown(page):
    return page.locator("table.records tr:visible").count()


def test_the_index_is_filtered(page, site):
    total = len(site[1])
    assert shown(page) == total
    page.select_option("select[name=repo]", "sgl-project/sglang")
    sglang = shown(page)
    assert 0 < sglang < total
    page.select_option("select[name=tag]", "dtype")
    assert 0 < shown(page) < sglang
    assert page.locator("#count").inner_text() == str(shown(page))
    page.select_option("select[name=repo]", "")
    page.select_option("select[name=tag]", "")
    page.select_option("select[name=severity]", "warning")
    assert shown(page) < total


def test_a_page_is_opened_its_fix_copied_and_a_related_error_followed(page):
    page.fill(".finder textarea", "decreases")
    page.wait_for_function("document.querySelectorAll('table.records tr:not([hidden])').length < 12")
    page.click("table.records tr:visible a >> text=PA2007")
    assert "decreases" in page.locator("h1").inner_text()
    after = page.locator(".after .highlight").first
    after.hover()
    after.locator("button.md-clipboard, .md-code__button[data-md-type=copy]").first.click()
    assert "np.cumsum(lengths)" in page.evaluate("navigator.clipboard.readText()")
    page.click("ul.cards a >> text=PA2005")
    assert page.url.endswith("PA2005.html")


@pytest.mark.parametrize("start", ["index.html", "errors/index.html"])
def test_a_pasted_message_lands_right(page, site, start):
    page.goto((site[0] / start).as_uri())
    page.fill(".finder textarea", MESSAGE)
    page.locator(".finder .best").wait_for()
    page.press(".finder textarea", "Enter")
    page.wait_for_url("**/96ac66f040f18c17.html")
    assert "must describe the same batch" in page.locator("h1").inner_text()


def public_messages():
    for path in sorted((ROOT / "tests/errors/data").glob("public_messages_*.json")):
        yield from (case["text"] for case in json.loads(path.read_text(encoding="utf-8")))


def explained(command, text):
    """[record, score] of each match that the command finds."""
    done = subprocess.run(
        [command, "explain", "--json"], input=text, capture_output=True, text=True, timeout=30
    )
    matches = json.loads(done.stdout) if done.returncode == 0 else []
    return [[match["document"]["record"]["id"], round(match["score"], 6)] for match in matches]


def test_the_page_and_the_command_find_the_same(page):
    command = os.environ.get("PACKATTN_CLI") or shutil.which("packattn")
    if not command:
        pytest.skip("PACKATTN_CLI does not name the packattn command")
    source = (ROOT / "tools/site/assets/matching.js").read_text(encoding="utf-8")
    texts = [MESSAGE, "PA2007", "PA2007: 12 then 5", "the head dimension", *public_messages()]
    found = page.evaluate(
        """([source, texts]) => {
          const matcher = new (new Function(`${source}; return Matcher;`)())(packattnRecords);
          const shown = (match) => [match.record.id, Number(match.score.toFixed(6))];
          return texts.map((text) => matcher.find(text).map(shown));
        }""",
        [re.sub(r"^export ", "", source, flags=re.M), texts],
    )
    assert len(texts) > 40
    for text, matches in zip(texts, found, strict=True):
        assert matches == explained(command, text), text


def test_a_phone_needs_no_sideways_scrolling(browser, site):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    opened = context.new_page()
    for name in ("index.html", "errors/index.html", "errors/PA2007.html", "dropins.html"):
        opened.goto((Path(site[0]) / name).as_uri())
        assert opened.evaluate("document.documentElement.scrollWidth") <= 390, name
    context.close()
