# SPDX-License-Identifier: Apache-2.0
"""Makes the records of the error reference: catalogue + pages + raise sites -> JSON documents.

A record is what /api/errors/<id> serves. errors/README.md says where each field comes from.
"""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from error_markdown import page_of
from error_nulls import causes_of_nulls
from error_pages import Page, PageError, read_catalogue, read_pages

# Where the sources can be read on the web, without a trailing slash; None until they are.
REPOSITORY_URL = None

SCHEMA_VERSION = 2
CONTEXT_LINES = 18
SLUG_LENGTH = 50
SOURCE_FOLDERS = {
    "src": {".cpp", ".h", ".cu", ".cuh"},
    "cli": {".cpp", ".h"},
    "python": {".py", ".cpp"},
}

# Provokes for tests what other lines raise; no record names it as the place.
INJECTION = "src/core/injection.cpp"

# By the number's thousand: errorType, handlingStrategy.
TYPES = {
    "1": ("validation", "validation"),
    "2": ("validation", "validation"),
    "3": ("unsupported", "fallback"),
    "4": ("device", "fallback"),
    "5": ("resource", "try-catch"),
    "6": ("validation", "validation"),
    "7": ("input", "try-catch"),
    "9": ("internal", "try-catch"),
}


@dataclass(frozen=True)
class Site:
    """Where a code is raised."""

    path: str
    line: int
    start: int
    end: int
    excerpt: str


@dataclass(frozen=True)
class Record:
    id: str
    repo: str
    code: str  # "" for an error of another library
    slug: str
    message: str
    severity: str
    tags: list
    wordings: list  # [(library, wording)], what render() adds to a fault
    document: dict
    page: str  # Markdown


def git(root, *arguments):
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None


def read_origin(root):
    """(commit, time) of the last change of what the records are made from; None where unknown.

    SOURCE_DATE_EPOCH, which reproducible builds set, stands in for a missing checkout.
    """
    found = git(root, "log", "-1", "--format=%H %ct", "--", "errors", *SOURCE_FOLDERS)
    sha, seconds = found.split() if found else (None, os.environ.get("SOURCE_DATE_EPOCH"))
    if seconds is None:
        return sha, None
    time = datetime.fromtimestamp(int(seconds), timezone.utc)
    return sha, time.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def slug_of(message):
    words = re.sub(r"[^a-z0-9]+", "-", message.lower()).strip("-")
    if len(words) > SLUG_LENGTH:
        words = words[: SLUG_LENGTH + 1].rpartition("-")[0] or words[:SLUG_LENGTH]
    return words


def find_sites(root, entries):
    """{code: Site} of the first line that raises each code."""
    by_name = {entry.name: entry.code for entry in entries}
    known = set(by_name.values())
    sites = {}
    for folder, suffixes in SOURCE_FOLDERS.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in suffixes or not path.is_file():
                continue
            if path.relative_to(root).as_posix() == INJECTION:
                continue
            lines = path.read_text(encoding="utf-8").splitlines()
            for number, line in enumerate(lines, 1):
                if re.search(r"^\s*(//|#|case\b)|[!=]= *Code::", line):
                    continue  # mentions a code, does not raise it
                raised = {by_name.get(name) for name in re.findall(r"\bCode::(\w+)", line)}
                if path.suffix == ".py":
                    raised |= set(re.findall(r"\[\"(PA\d{4})\", ", line)) & known  # fault rows
                for code in raised - {None} - set(sites):
                    start = max(1, number - CONTEXT_LINES)
                    end = min(len(lines), number + CONTEXT_LINES)
                    excerpt = "\n".join(lines[start - 1 : end]) + "\n"
                    where = path.relative_to(root).as_posix()
                    sites[code] = Site(where, number, start, end, excerpt)
    return sites


def example_fix(page):
    parts = []
    for name in ("before", "after"):
        if name in page.examples:
            parts.append(f"# {name}\n{page.examples[name][2]}")
    return "\n".join(parts) or None


def example_fix_cpp(page):
    parts = [f"// {name}\n{page.cpp[name]}" for name in ("before", "after") if name in page.cpp]
    return "\n".join(parts) or None


def explained(page):
    """The fields that a page of either kind gives."""
    return {
        "documentation": page.text["Meaning"],
        "triggerScenarios": page.text["Triggers"],
        "commonSituations": page.text["Situations"],
        "solutions": page.text["Solutions"],
        "exampleFix": example_fix(page),
        "validationCode": page.text.get("Validation"),
        "typeGuard": page.text.get("Type guard"),
        "tryCatchPattern": page.text.get("Try/catch"),
        "preventionTips": page.text["Prevention"],
        "tags": page.head["tags"],
        "backgroundTag": page.head["background"],
    }


def own_record(entry, page, site, origin):
    sha, time = origin
    kind, strategy = TYPES[entry.code[2]]
    url = None
    if REPOSITORY_URL and sha and site:
        url = f"{REPOSITORY_URL}/blob/{sha}/{site.path}#L{site.start}-L{site.end}"
    return {
        "id": page.id,
        "repo": "packattn",
        "slug": slug_of(entry.message),
        "errorCode": entry.code,
        "errorMessage": entry.message,
        "messagePattern": entry.message,
        "errorType": kind,
        "errorClass": "packattn.Error",
        "httpStatus": None,
        "severity": page.head["severity"],
        "filePath": site.path if site else None,
        "lineNumber": site.line if site else None,
        "sourceCode": site.excerpt if site else None,
        "sourceCodeStart": site.start if site else None,
        "sourceCodeEnd": site.end if site else None,
        "githubUrl": url,
        "handlingStrategy": strategy,
        "analyzedSha": sha,
        "analyzedAt": time,
        "schemaVersion": SCHEMA_VERSION,
        **explained(page),
    }


def foreign_record(page, origin):
    head = page.head
    line = int(head["line"]) if "line" in head else None
    sha = head.get("sha")
    url = None
    if sha:
        url = f"https://github.com/{head['repo']}/blob/{sha}/{head['file']}"
        url += f"#L{line}" if line else ""
    kind = head.get("type", "validation")
    return {
        "id": page.id,
        "repo": head["repo"],
        "slug": head.get("slug") or slug_of(head["message"]),
        "errorCode": None,
        "errorMessage": head["message"],
        "messagePattern": head["message"],
        "errorType": kind,
        "errorClass": head["class"],
        "httpStatus": None,
        "severity": head["severity"],
        "filePath": head["file"],
        "lineNumber": line,
        "sourceCode": None,
        "sourceCodeStart": None,
        "sourceCodeEnd": None,
        "githubUrl": url,
        "handlingStrategy": {"unsupported": "fallback", "resource": "try-catch"}.get(kind, kind),
        "analyzedSha": sha,
        "analyzedAt": origin[1],
        "schemaVersion": SCHEMA_VERSION,
        **explained(page),
    }


def library_of(page):
    """ "sglang-requires-q.md" and "flash-attn-x.md" -> the repository's own name."""
    return page.head["repo"].rpartition("/")[2]


def field_order(root):
    """Readers of these records know their fields in one order; the schema keeps it."""
    schema = json.loads((root / "errors/schema.json").read_text(encoding="utf-8"))
    return schema["properties"]["record"]["required"]


def link_to(fields):
    link = {name: fields[name] for name in ("id", "repo", "slug", "errorMessage")}
    return {"code": fields["errorCode"], **link}


def load_records(root):
    """All records, our own first in the order of their codes; raises PageError."""
    root = Path(root)
    entries = read_catalogue(root)
    by_code = {entry.code: entry for entry in entries}
    own, foreign = read_pages(root, set(by_code))
    for code in sorted(set(own) - set(by_code)):
        raise PageError(f"errors/{code}.md: the catalogue has no {code}")
    sites = find_sites(root, entries)
    origin = read_origin(root)

    made = [  # (page, fields)
        (own[code], own_record(entry, own[code], sites.get(code), origin))
        for code, entry in by_code.items()
        if code in own
    ]
    made += [(page, foreign_record(page, origin)) for page in foreign]

    links = {}
    slugs = set()
    for _, fields in made:
        if fields["errorCode"] and fields["slug"] in slugs:  # two codes with one wording
            fields["slug"] += f"-{fields['errorCode'].lower()}"
        slugs.add(fields["slug"])
        if fields["id"] in links:
            raise PageError(f"id {fields['id']} is used by two pages")
        links[fields["id"]] = link_to(fields)
    ids = {fields["errorCode"]: fields["id"] for _, fields in made if fields["errorCode"]}

    order = field_order(root)
    records = []
    for page, fields in made:
        document = {
            "record": {name: fields[name] for name in order},
            "datasetVersion": origin[1],
            "related": related_of(page, links, ids),
            "alsoKnownAs": known_elsewhere(page, fields, made, links, ids),
            "exampleFixCpp": example_fix_cpp(page),
            "nullBecause": causes_of_nulls(page, fields),
        }
        records.append(finish(page, fields, document))
    return records


def related_of(page, links, ids):
    targets = [ids.get(name, name) for name in page.head["related"]]
    return [links[target] for target in targets if target in links]


def known_elsewhere(page, fields, made, links, ids):
    """The same fault in other libraries' words, or for a foreign record in ours."""
    wordings = page.head.get("also_known_as", [])
    if not page.own:
        target = links.get(ids.get(page.head.get("code")))
        ours = [("packattn", target["errorMessage"], target["id"])] if target else []
        known = [*ours, *((library, text, None) for library, text in wordings)]
        return [dict(zip(("library", "message", "id"), row, strict=True)) for row in known]
    known = [
        {"library": library_of(other), "message": other_fields["errorMessage"], "id": other.id}
        for other, other_fields in made
        if other.head.get("code") == fields["errorCode"]
    ]
    said = {re.sub(r"\{[^}]*\}", "{}", item["message"]) for item in known}
    for library, text in wordings:
        if re.sub(r"\{[^}]*\}", "{}", text) not in said:
            known.append({"library": library, "message": text, "id": None})
    return known


def finish(page: Page, fields, document):
    return Record(
        id=fields["id"],
        repo=fields["repo"],
        code=fields["errorCode"] or "",
        slug=fields["slug"],
        message=fields["messagePattern"],
        severity=fields["severity"],
        tags=fields["tags"],
        wordings=page.head.get("also_known_as", []),
        document=document,
        page=page_of(document, page),
    )


def to_text(document):
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
