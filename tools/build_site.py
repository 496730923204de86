#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the static site of the error reference from what `packattn errors --json` prints.

  build_site.py [-o site] [--records FILE.json]

  index.html                every record, filtered in the browser
  errors/<code or id>.html  the page of a record
  api/errors/<id>           its JSON document
  api/errors/index.json     id, code, repository, message, severity and tags of all records
  api/errors.json           all documents
  api/errors.schema.json    the schema of a document

Without --records the command is $PACKATTN_CLI, or packattn on the path.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from site_html import index_page, page_name, record_page

TOOLS = Path(__file__).resolve().parent
LISTED = ("id", "errorCode", "repo", "slug", "errorMessage", "severity", "tags")


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


def build(documents, out):
    """Writes the whole site into `out`, an empty or a former site's folder."""
    for folder in ("errors", "api"):
        shutil.rmtree(out / folder, ignore_errors=True)
    pages = {document["record"]["id"]: page_name(document["record"]) for document in documents}
    for document in documents:
        record = document["record"]
        write_json(out / "api/errors" / record["id"], document)
        write(out / "errors" / page_name(record), record_page(document, pages))
    listed = [{name: document["record"][name] for name in LISTED} for document in documents]
    write_json(out / "api/errors/index.json", listed)
    write_json(out / "api/errors.json", documents)
    shutil.copy(TOOLS.parent / "errors/schema.json", out / "api/errors.schema.json")
    for name in ("style.css", "index.js", "copy.js"):
        shutil.copy(TOOLS / "site" / name, out / name)
    write(out / "index.html", index_page(documents))


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=TOOLS.parent / "site")
    parser.add_argument("--records", type=Path, help="documents in a file instead")
    options = parser.parse_args(arguments)
    documents = read_documents(options.records)
    build(documents, options.out)
    print(f"{options.out}: {len(documents)} records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
