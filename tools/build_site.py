#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the static site: documentation, interface reference, error reference and its data.

  build_site.py [-o site] [--records FILE.json]

  index.html, guide/, reference/, ...   the documentation
  errors/<code or id>.html              the page of a record
  api/errors/<id>                       its JSON document
  api/errors/index.json                 id, code, repository, message, ... of all records
  api/errors.json                       all documents
  api/errors.schema.json                the schema of a document

MkDocs with the theme Material makes the pages. Without --records the records are those of the
command $PACKATTN_CLI, or of packattn on the path.
"""

import argparse
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from error_records import load_records
from mkdocs.commands.build import build as mkdocs_build
from mkdocs.config import load_config
from site_api import cpp_page, python_page
from site_docs import read_pages
from site_records import LISTED, finder_data, groups_page, index_page, page_name, record_page

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent

# Title and pages of each tab; a page of docs/ that is not named here goes to the end of the guide.
# (page, title) where the page's own title says too little beside its neighbours.
NAVIGATION = [
    (
        "Guide",
        [
            "install.md",
            "quick-start.md",
            "guide.md",
            "command-line.md",
            "mathematics.md",
            "guide/examples.md",
        ],
    ),
    (
        "Errors",
        ["errors/index.md", "errors/groups.md", ("project/adding-errors.md", "Adding an error")],
    ),
    ("API", ["reference/python.md", "reference/cpp.md"]),
    ("Drop-ins", ["switching.md", ("dropins.md", "Argument by argument"), "peers.md"]),
    ("Kernels", ["kernels/index.md"]),
    ("Project", ["project/design.md", "project/contributing.md", "project/changelog.md"]),
]


def read_documents(path):
    if path:
        return json.loads(path.read_text(encoding="utf-8"))
    command = os.environ.get("PACKATTN_CLI") or shutil.which("packattn")
    if not command:
        sys.exit("build_site.py: no packattn on the path, and PACKATTN_CLI is not set")
    return json.loads(subprocess.check_output([command, "errors", "--json"], text=True))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_json(path, value):
    write(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def navigation(pages):
    """The tabs with the pages that there are; every page is in one of them."""
    records = re.compile(r"errors/([0-9a-f]{16}|PA\d{4})\.md")
    rest = sorted(page for page in pages if not records.fullmatch(page) and page != "index.md")
    tabs = []
    for title, entries in NAVIGATION:
        named = [entry if isinstance(entry, tuple) else (entry, None) for entry in entries]
        there = [(name, label) for name, label in named if name in rest]
        rest = [page for page in rest if page not in dict(there)]
        tabs.append((title, [{label: name} if label else name for name, label in there]))
    for page in rest:
        tab = "Kernels" if page.startswith("kernels/") else "Guide"
        next(names for title, names in tabs if title == tab).append(page)
    return [{"Home": "index.md"}, *({title: names} for title, names in tabs if names)]


def kernels_index(pages):
    rows = []
    for page, text in sorted(pages.items()):
        if page.startswith("kernels/"):
            title = re.search(r"^# (.+)$", text, re.M)[1]
            about = re.split(r"\n\s*\n", text.split(title, 1)[1].strip())[0]
            rows.append(f"## [{title}]({page.removeprefix('kernels/')})\n\n{about}\n")
    head = "# Kernels\n\nHow each fast implementation works, and what it reaches: one page each.\n"
    return head + "\n" + "\n".join(rows)


def scripts(documents):
    """One classic script, because modules do not load from a disk."""
    matching = (TOOLS / "site/assets/matching.js").read_text(encoding="utf-8")
    finder = (TOOLS / "site/assets/finder.js").read_text(encoding="utf-8")
    plain = re.sub(r"^export ", "", matching, flags=re.M)
    wordings = {record.id: [text for _, text in record.wordings] for record in load_records(ROOT)}
    data = json.dumps(finder_data(documents, wordings), ensure_ascii=False, separators=(",", ":"))
    return f"window.packattnRecords = {data};\n", f"(() => {{\n{plain}\n{finder}}})();\n"


def write_sources(documents, folder):
    """Everything that MkDocs reads; returns the Markdown pages."""
    names = {document["record"]["id"]: page_name(document["record"]) for document in documents}
    pages = read_pages(ROOT)
    pages["kernels/index.md"] = kernels_index(pages)
    pages["index.md"] = (TOOLS / "site/home.md").read_text(encoding="utf-8")
    pages["reference/python.md"] = python_page(ROOT)
    pages["reference/cpp.md"] = cpp_page(ROOT)
    pages["errors/index.md"] = index_page(documents)
    pages["errors/groups.md"] = groups_page(documents)
    for document in documents:
        pages[f"errors/{page_name(document['record'])}.md"] = record_page(document, names)
    for page, text in pages.items():
        write(folder / page, text)
    for picture in (ROOT / "docs").rglob("*.svg"):
        place = folder / picture.relative_to(ROOT / "docs")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, place)
    data, script = scripts(documents)
    write(folder / "assets/records.js", data)
    write(folder / "assets/finder.js", script)
    for asset in ("style.css", "icon.svg", "iframe-worker.js"):
        shutil.copy(TOOLS / "site/assets" / asset, folder / "assets" / asset)
    return pages


def write_data(documents, out):
    for document in documents:
        write_json(out / "api/errors" / document["record"]["id"], document)
    listed = [{name: document["record"][name] for name in LISTED} for document in documents]
    write_json(out / "api/errors/index.json", listed)
    write_json(out / "api/errors.json", documents)
    shutil.copy(ROOT / "errors/schema.json", out / "api/errors.schema.json")


def build(documents, out):
    """Writes the whole site into `out`; what was there before goes away."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # strict makes them fatal
    with tempfile.TemporaryDirectory() as folder:
        pages = write_sources(documents, Path(folder))
        config = load_config(
            str(TOOLS / "site/mkdocs.yml"),
            docs_dir=folder,
            site_dir=str(out.resolve()),
            nav=navigation(pages),
        )
        mkdocs_build(config)
    write_data(documents, out)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "site")
    parser.add_argument("--records", type=Path, help="documents in a file instead")
    options = parser.parse_args(arguments)
    documents = read_documents(options.records)
    build(documents, options.out)
    pages = len(list(options.out.rglob("*.html")))
    print(f"{options.out}: {pages} pages, {len(documents)} records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
