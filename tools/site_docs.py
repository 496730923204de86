# SPDX-License-Identifier: Apache-2.0
"""The project's Markdown files as pages of the site: where each lies, and links between them."""

import re
from pathlib import Path, PurePosixPath

# Repository file -> page of the site. Every file of docs/ keeps its own place.
PAGES = {
    "DESIGN.md": "project/design.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "errors/README.md": "project/adding-errors.md",
    "examples/README.md": "guide/examples.md",
}
# Files that the site has in another form.
ASSETS = {
    "errors/schema.json": "api/errors.schema.json",
    "docs/errors/index.md": "errors/index.md",  # made from the records
}

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def all_pages(root):
    """{repository file: page} of everything that is written by hand."""
    pages = {
        path.relative_to(root).as_posix(): path.relative_to(root / "docs").as_posix()
        for path in sorted((root / "docs").rglob("*.md"))
    }
    return {**pages, **{name: page for name, page in PAGES.items() if (root / name).exists()}}


def relative(target, page):
    """A link from one page of the site to another place of it."""
    up = len(PurePosixPath(page).parent.parts)
    here = PurePosixPath(page).parent.parts
    there = PurePosixPath(target).parts
    shared = 0
    while shared < min(up, len(there) - 1) and here[shared] == there[shared]:
        shared += 1
    return "/".join([".."] * (up - shared) + list(there[shared:]))


def place_of(name, pages):
    """Where a file or folder of the repository is on the site; None if it is not."""
    if name in pages:
        return pages[name]
    if name in ASSETS:
        return ASSETS[name]
    inside = sorted(page for file, page in pages.items() if file.startswith(name.rstrip("/") + "/"))
    return inside[0] if inside else None


def with_links(text, name, page, pages, titles=None):
    """Links to files of the repository become links within the site, or plain text.

    A label that is a file's name, as it reads well in a checkout, becomes the page's title.
    """

    def replaced(match):
        label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, _, anchor = target.partition("#")
        parts = []
        for part in [*PurePosixPath(name).parent.parts, *path.split("/")]:
            if part == "..":
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        wanted = "/".join(parts) + ("/" if path.endswith("/") else "")
        place = place_of(wanted, pages)
        if place is None:
            return label
        if re.fullmatch(r"[\w./-]+\.md", label.strip("`")):
            label = (titles or {}).get(place, label)
        return f"[{label}]({relative(place, page)}{'#' + anchor if anchor else ''})"

    fenced = False
    lines = []
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        lines.append(line if fenced else LINK.sub(replaced, line))
    return "\n".join(lines) + "\n"


def read_pages(root):
    """{page of the site: Markdown}."""
    root = Path(root)
    pages = all_pages(root)
    texts = {name: (root / name).read_text(encoding="utf-8") for name in pages}
    titles = {}
    for name, page in pages.items():
        title = re.search(r"^# (.+)$", texts[name], re.M)
        if title:
            titles[page] = title[1]
    return {
        page: with_links(texts[name], name, page, pages, titles) for name, page in pages.items()
    }
