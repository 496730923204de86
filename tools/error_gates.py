# SPDX-License-Identifier: Apache-2.0
"""What the error reference has to hold, beyond the form of a page; errors/README.md explains."""

import ast
from pathlib import Path

from error_pages import PageError, read_catalogue, read_pages
from error_records import find_sites, load_records

# Codes that need no line that raises them, each with its reason.
EXEMPT_FROM_RAISING = {
    "PA9001": "a fault of packattn itself has no call that provokes it",
}


def read_lock(path):
    """{name: value} of a file with one "name value" a line; # starts a comment."""
    pairs = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        words = line.partition("#")[0].split()
        if words:
            pairs[words[0]] = words[1]
    return pairs


def page_key(path):
    """ "errors/PA2007.md" -> "PA2007", "errors/foreign/x.md" -> "foreign/x"."""
    return Path(path).relative_to("errors").with_suffix("").as_posix()


def check_numbers(root, entries):
    released = read_lock(root / "errors/released.txt")
    names = {}
    for entry in entries:
        if entry.code in names:
            yield f"errors/catalogue.def: {entry.code} is used twice"
        names[entry.code] = entry.name
        known = released.get(entry.code)
        if known is None:
            yield f"errors/released.txt: {entry.code} is missing; run embed_errors.py --note"
        elif known != entry.name:
            yield f"errors/catalogue.def: {entry.code} was {known} and is now {entry.name}"


def check_ids(root, pages):
    locked = read_lock(root / "errors/ids.txt")
    for page in pages:
        name = page_key(page.path)
        if name not in locked:
            yield f"errors/ids.txt: {name} is missing; run embed_errors.py --note"
        elif locked[name] != page.id:
            yield f"{page.path}: the id of this page is {locked[name]}, for ever"
    names = {page_key(page.path) for page in pages}
    for name in sorted(set(locked) - names):
        yield f"errors/ids.txt: {name} has no page; pages are not removed"
    if len(set(locked.values())) != len(locked):
        yield "errors/ids.txt: an id is given to two pages"


def check_links(own, pages):
    targets = {page.id for page in pages} | set(own)
    for page in pages:
        for link in page.head["related"]:
            if link not in targets:
                yield f"{page.path}: related {link} does not exist"
            if link in (page.id, Path(page.path).stem):
                yield f"{page.path}: is related to itself"


def check_snippets(pages):
    for page in pages:
        snippets = [
            (n, code) for n, (language, _, code) in page.examples.items() if language == "python"
        ]
        if not page.path.startswith("errors/PA7"):  # those of the command line are for a shell
            names = ("Validation", "Type guard", "Try/catch")
            snippets += [(name, page.text.get(name)) for name in names]
        for name, code in snippets:
            try:
                ast.parse(code or "")
            except SyntaxError as error:
                yield f"{page.path}: {name} is not Python: {error.msg}, its line {error.lineno}"


def check_nulls(records):
    for record in records:
        for name, cause in record.document["nullBecause"].items():
            if not cause:
                yield f"{record.code or record.id}: {name} is null without a cause"


def check_slugs(records):
    seen = {}
    for record in records:
        other = seen.setdefault((record.repo, record.slug), record.id)
        if other != record.id:
            name = record.code or record.id
            yield f"{name}: slug {record.slug} is also that of {other}; give it one by `slug:`"


def check(root):
    """All problems, as lines; an empty list means that the reference is whole."""
    try:
        entries = read_catalogue(root)
        own, foreign = read_pages(root, {entry.code for entry in entries})
        records = load_records(root)
    except PageError as error:
        return [str(error)]
    pages = [*own.values(), *foreign]
    problems = [
        *check_numbers(root, entries),
        *check_ids(root, pages),
        *check_links(own, pages),
        *check_snippets(pages),
        *check_slugs(records),
        *check_nulls(records),
    ]
    sites = find_sites(root, entries)
    for entry in entries:
        if entry.code not in own:
            problems.append(f"{entry.code} ({entry.name}) has no page errors/{entry.code}.md")
        if entry.code not in sites and entry.code not in EXEMPT_FROM_RAISING:
            problems.append(f"{entry.code} ({entry.name}) is never raised")
    return problems


def extend_lock(path, pairs):
    """Adds the pairs that the file does not have; never changes what is there."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    comments = [line for line in text.splitlines() if line.startswith("#")]
    merged = {**pairs, **read_lock(path)}
    body = [f"{name} {merged[name]}" for name in sorted(merged)]
    path.write_text("\n".join([*comments, *body]) + "\n", encoding="utf-8")


def note_new(root):
    """Enters new codes into released.txt and the ids of new pages into ids.txt."""
    entries = read_catalogue(root)
    own, foreign = read_pages(root, {entry.code for entry in entries})
    extend_lock(root / "errors/released.txt", {entry.code: entry.name for entry in entries})
    pages = [*own.values(), *foreign]
    extend_lock(root / "errors/ids.txt", {page_key(page.path): page.id for page in pages})
