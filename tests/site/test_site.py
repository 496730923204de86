# SPDX-License-Identifier: Apache-2.0
"""The static site holds every record, and none of its links is dead."""

import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

from site_docs import with_links
from site_records import inline, message_html


class Links(HTMLParser):
    """The addresses that a page leads to, and those that it loads."""

    def __init__(self):
        super().__init__()
        self.led_to, self.loaded = [], []

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        if tag == "a" and "href" in named:
            self.led_to.append(named["href"])
        if tag in ("script", "img") and "src" in named:
            self.loaded.append(named["src"])
        if tag == "link" and named.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(named["href"])


def links_of(page):
    parser = Links()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def dead_links(out):
    """Every link within the site that leads nowhere."""
    found = []
    for page in sorted(out.rglob("*.html")):
        if page.name == "404.html":  # its links are absolute
            continue
        links = links_of(page)
        for target in [*links.led_to, *links.loaded]:
            path = unquote(re.split(r"[?#]", target)[0])
            if not path or re.match(r"https?:|data:", target):
                continue
            if not (page.parent / path).exists():
                found.append(f"{page.relative_to(out)}: {target}")
    return found


def test_every_record_has_its_document_and_page(site):
    out, documents = site
    for document in documents:
        record = document["record"]
        assert json.loads((out / "api/errors" / record["id"]).read_text()) == document
        name = record["errorCode"] or record["id"]
        assert "<ol>" in (out / f"errors/{name}.html").read_text(encoding="utf-8")
    listed = json.loads((out / "api/errors/index.json").read_text())
    assert [row["id"] for row in listed] == [d["record"]["id"] for d in documents]
    assert json.loads((out / "api/errors.json").read_text()) == documents


def test_no_link_is_dead(site):
    assert dead_links(site[0]) == []


def test_a_dead_link_would_be_seen(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html?x#y">b</a><a href="#top"></a>')
    assert dead_links(tmp_path) == ["a.html: b.html?x#y"]
    (tmp_path / "b.html").write_text("")
    assert dead_links(tmp_path) == []


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site[0].rglob("*.html"):
        for source in links_of(page).loaded:
            assert not re.match(r"(https?:)?//", source), f"{page}: {source}"


def test_the_documentation_is_there(site):
    home = (site[0] / "peers.html").read_text(encoding="utf-8")
    for name in ("command-line", "mathematics", "dropins", "reference/python", "reference/cpp"):
        assert (site[0] / f"{name}.html").is_file(), name
        assert f'href="{name}.html' in home, name  # the navigation leads there
    assert 'href="kernels/index.html' in home and "What packattn lacks" in home
    python = (site[0] / "reference/python.html").read_text(encoding="utf-8")
    assert 'id="kda_chunk"' in python and 'id="packedbatch"' in python
    assert "_UNBOUNDED" not in python
    cpp = (site[0] / "reference/cpp.html").read_text(encoding="utf-8")
    assert 'id="packedbatch"' in cpp and 'id="check_attention"' in cpp


def test_links_of_the_repository_become_links_of_the_site():
    pages = {"docs/a.md": "a.md", "DESIGN.md": "project/design.md"}
    titled = with_links("[a.md](a.md) [`b.md`](b.md)", "docs/c.md", "c.md", {"docs/a.md": "a.md", "docs/b.md": "b.md"}, {"a.md": "A"})
    assert titled == "[A](a.md) [`b.md`](b.md)\n"
    text = "[d](../DESIGN.md#x) [w](https://w) [none](../src/x.cpp)\n```\n[d](../DESIGN.md)\n```"
    assert with_links(text, "docs/a.md", "a.md", pages).splitlines() == [
        "[d](project/design.md#x) [w](https://w) none",
        "```",
        "[d](../DESIGN.md)",
        "```",
    ]


def test_text_cannot_become_markup():
    assert inline("a <b> & `x<y>` *em* **strong** 2 * 3 * 4") == (
        "a &lt;b&gt; &amp; <code>x&lt;y&gt;</code> <em>em</em> <strong>strong</strong> 2 * 3 * 4"
    )
    assert message_html("<{a<b}>") == '&lt;<span class="hole">a&lt;b</span>&gt;'
