# SPDX-License-Identifier: Apache-2.0
"""The static site holds every record, and none of its links is dead."""

import json
import re
from pathlib import Path

import build_site
import pytest
from error_records import load_records
from site_html import inline

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    documents = [record.document for record in load_records(ROOT)]
    records = out / "records.json"
    records.write_text(json.dumps(documents), encoding="utf-8")
    assert build_site.main(["-o", str(out), "--records", str(records)]) == 0
    return out, documents


def test_every_record_has_its_document_and_page(site):
    out, documents = site
    for document in documents:
        record = document["record"]
        assert json.loads((out / "api/errors" / record["id"]).read_text()) == document
        name = record["errorCode"] or record["id"]
        page = (out / f"errors/{name}.html").read_text(encoding="utf-8")
        assert record["solutions"] and "<ol>" in page
    listed = json.loads((out / "api/errors/index.json").read_text())
    assert [row["id"] for row in listed] == [d["record"]["id"] for d in documents]


def test_no_link_is_dead_and_nothing_comes_from_elsewhere(site):
    out, _ = site
    pages = list(out.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r'(?:href|src)="([^"]*)"', text):
            if target.startswith("https://github.com/"):
                continue  # where another library raises it
            if not target.startswith("data:"):
                assert (page.parent / target.partition("?")[0]).is_file(), f"{page}: {target}"
        assert not re.search(r'(?:src|rel="stylesheet" href)="http', text)


def test_text_cannot_become_markup():
    assert inline("a <b> & `x<y>` *em* **strong** 2 * 3 * 4") == (
        "a &lt;b&gt; &amp; <code>x&lt;y&gt;</code> <em>em</em> <strong>strong</strong> 2 * 3 * 4"
    )


def test_building_again_leaves_nothing_behind(site):
    out, documents = site
    stale = out / "errors/PA0000.html"
    stale.write_text("x")
    build_site.build(documents, out)
    assert not stale.exists()
