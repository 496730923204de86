# SPDX-License-Identifier: Apache-2.0
"""Reads errors/: the catalogue, the pages of our own codes and those of other libraries' errors.

The format is described in errors/README.md. Standard library only, because every build reads it.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

SECTIONS = [  # in the order of a page; (title, what it holds, needed)
    ("Meaning", "text", True),
    ("Triggers", "text", True),
    ("Situations", "text", True),
    ("Solutions", "numbered", True),
    ("Example", "example", True),
    ("Validation", "code", True),
    ("Type guard", "code", False),
    ("Try/catch", "code", False),
    ("Prevention", "bullets", True),
]
OWN_KEYS = {"id", "tags", "background", "severity", "related", "also_known_as", "example"}
FOREIGN_KEYS = {"id", "repo", "file", "line", "class", "type", "message", "sha", "code", "accepted"}
FOREIGN_KEYS |= {"tags", "background", "severity", "related", "example", "slug", "also_known_as"}
FIELDS = {"argument", "position", "value", "limit"}

ID = re.compile(r"[0-9a-f]{16}")
WORD = re.compile(r"[a-z0-9_]+([-.][a-z0-9_]+)*")
ENTRY = re.compile(
    r'PACKATTN_CODE\(\s*(\d{4}),\s*(\w+),\s*((?:"(?:[^"\\]|\\.)*"\s*)+),'
    r'\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)'
)


class PageError(Exception):
    """A page that does not have the form; the text names file and line."""


@dataclass(frozen=True)
class Entry:
    """A line of the catalogue."""

    code: str  # "PA2007"
    name: str  # "boundaries_decrease"
    message: str
    help: str


@dataclass
class Page:
    path: str  # relative to the root of the tree
    head: dict
    text: dict = field(default_factory=dict)  # section title -> text, or list of items
    examples: dict = field(default_factory=dict)  # "before", "after" -> (language, needs, code)
    cpp: dict = field(default_factory=dict)  # "before", "after" -> code, where it has C++ too

    @property
    def id(self):
        return self.head["id"]

    @property
    def own(self):
        return "repo" not in self.head


def c_text(literals):
    """The value of adjacent C string literals."""
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"', literals)
    return re.sub(r"\\(.)", r"\1", "".join(parts))


def read_catalogue(root):
    text = (root / "errors/catalogue.def").read_text(encoding="utf-8")
    code = "\n".join("" if line.startswith("//") else line for line in text.splitlines())
    entries = [
        Entry(f"PA{number}", name, c_text(message), c_text(help_text))
        for number, name, message, help_text in ENTRY.findall(code)
    ]
    if len(entries) != code.count("PACKATTN_CODE("):
        raise PageError("errors/catalogue.def: an entry does not have the form of the others")
    return entries


def read_value(text, where):
    text = text.strip()
    if text.startswith("["):
        if not text.endswith("]"):
            raise PageError(f"{where}: a list in brackets stays on one line")
        inner = text[1:-1].strip()
        return [read_value(item, where) for item in inner.split(",")] if inner else []
    if text.startswith('"'):
        if not re.fullmatch(r'"(?:[^"\\]|\\["\\])*"', text):
            raise PageError(f'{where}: text in quotes, with \\" and \\\\ as the only escapes')
        return re.sub(r'\\(["\\])', r"\1", text[1:-1])
    if (text[:1] in "{'#" and text) or ": " in text:
        raise PageError(f"{where}: this value has to stand in double quotes")
    return text


def read_head(lines, path):
    head = {}
    key = None
    for number, line in enumerate(lines, 2):
        where = f"{path}:{number}"
        item = re.fullmatch(r"  - ([\w.-]+): (.+)", line)
        pair = re.fullmatch(r"(\w+):(?: (.*))?", line)
        if item and key and isinstance(head[key], list):
            head[key].append((item[1], read_value(item[2], where)))
        elif pair:
            key = pair[1]
            if key in head:
                raise PageError(f"{where}: {key} is given twice")
            head[key] = read_value(pair[2], where) if pair[2] else []
        elif line.strip():
            raise PageError(f"{where}: not a front matter line")
    return head


def read_items(lines, bullet, where):
    items = []
    for line in lines:
        start = re.match(bullet, line)
        if start:
            items.append(line[start.end() :].strip())
        elif line.startswith("  ") and items:
            items[-1] += " " + line.strip()
        elif line.strip():
            raise PageError(f"{where}: only list items here")
    if not items:
        raise PageError(f"{where}: the list is empty")
    return items


def read_blocks(lines, where):
    """The fenced blocks of a section: [(info, code)]; text between them is not allowed."""
    blocks = []
    code = None
    for line in lines:
        if code is None and line.startswith("```"):
            code = []
            blocks.append((line[3:].strip(), code))
        elif code is not None and line == "```":
            code = None
        elif code is not None:
            code.append(line)
        elif line.strip():
            raise PageError(f"{where}: only code blocks here")
    if code is not None:
        raise PageError(f"{where}: a code block is not closed")
    return [(info, "\n".join(code)) for info, code in blocks]


def read_example(page, lines, where):
    for info, code in read_blocks(lines, where):
        words = info.split()
        if (
            len(words) < 2
            or words[0] not in {"python", "sh", "cpp"}
            or words[1] not in {"before", "after"}
        ):
            raise PageError(f"{where}: a block is ```python before, ```python after, or sh or cpp")
        examples = page.cpp if words[0] == "cpp" else page.examples
        if words[1] in examples:
            raise PageError(f"{where}: two {words[1]} blocks")
        examples[words[1]] = code if words[0] == "cpp" else (words[0], words[2:], code)


def read_section(page, title, kind, lines, number):
    where = f"{page.path}:{number}"
    if kind == "text":
        text = "\n".join(lines).strip()
        paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]
        page.text[title] = "\n\n".join(paragraphs)
        if not paragraphs:
            raise PageError(f"{where}: {title} is empty")
    elif kind == "numbered":
        page.text[title] = read_items(lines, r"\d+\. ", where)
    elif kind == "bullets":
        page.text[title] = read_items(lines, r"- ", where)
    elif kind == "example":
        read_example(page, lines, where)
    else:
        blocks = read_blocks(lines, where)
        if len(blocks) != 1:
            raise PageError(f"{where}: {title} holds one code block")
        page.text[title] = blocks[0][1]


def check_head(page, codes):
    head, path = page.head, page.path
    for key in sorted(set(head) - (OWN_KEYS if page.own else FOREIGN_KEYS)):
        raise PageError(f"{path}: unknown front matter key {key}")
    needed = ["id", "tags", "background", "severity", "related"]
    needed += [] if page.own else ["repo", "file", "class", "message"]
    for key in needed:
        if key not in head:
            raise PageError(f"{path}: front matter has no {key}")
    if not isinstance(head["id"], str) or not ID.fullmatch(head["id"]):
        raise PageError(f"{path}: id has to be 16 hex digits")
    for word in [*head["tags"], head["background"]]:
        if not WORD.fullmatch(word):
            raise PageError(f"{path}: {word} is not lower-case words joined by '-'")
    if head["severity"] not in {"error", "warning"}:
        raise PageError(f"{path}: severity is error or warning")
    for _, wording in head.get("also_known_as", []) if page.own else ():
        for name in re.findall(r"\{([^}]*)\}", wording):
            if name not in FIELDS:
                raise PageError(f"{path}: also_known_as has {{{name}}}; a fault cannot fill it")
    if not page.own:
        if ("code" in head) == ("accepted" in head):
            raise PageError(f"{path}: give either code or accepted: true")
        if head.get("accepted", "true") != "true":
            raise PageError(f"{path}: accepted is true or left out")
        if head.get("type", "validation") not in {"validation", "unsupported", "resource"}:
            raise PageError(f"{path}: type is validation, unsupported or resource")
        if "code" in head and head["code"] not in codes:
            raise PageError(f"{path}: there is no code {head['code']}")
    if str(head.get("example", "injected")) != "injected" and not head["example"].startswith(
        "none"
    ):
        raise PageError(f'{path}: example is injected, or "none: why"')


def read_page(root, path, codes):
    lines = (root / path).read_text(encoding="utf-8").splitlines()
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        raise PageError(f"{path}:1: a page starts with front matter between two --- lines")
    end = lines.index("---", 1)
    page = Page(path, read_head(lines[1:end], path))
    check_head(page, codes)

    sections = []  # (title, line number, lines)
    fenced = False
    for number, line in enumerate(lines[end + 1 :], end + 2):
        if line.startswith("```"):
            fenced = not fenced
        if not fenced and line.startswith("## "):
            sections.append((line[3:].strip(), number, []))
        elif sections:
            sections[-1][2].append(line)
        elif line.strip():
            raise PageError(f"{path}:{number}: text before the first section")

    order = [title for title, _, _ in SECTIONS]
    titles = [title for title, _, _ in sections]
    for title, number, _ in sections:
        if title not in order:
            raise PageError(f"{path}:{number}: there is no section {title}")
    if titles != sorted(set(titles), key=order.index):
        raise PageError(f"{path}: sections are repeated or not in order: {', '.join(titles)}")
    kinds = {title: kind for title, kind, _ in SECTIONS}
    for title, number, body in sections:
        read_section(page, title, kinds[title], body, number)

    no_example = page.head.get("example", "").startswith("none")
    for title, kind, needed in SECTIONS:
        if needed and title not in titles and not (kind == "example" and no_example):
            raise PageError(f"{path}: section {title} is missing")
    if not no_example:
        expected = {"after"} if "accepted" in page.head else {"before", "after"}
        if set(page.examples) != expected:
            raise PageError(f"{path}: the example needs {' and '.join(sorted(expected))}")
        if page.cpp and set(page.cpp) != expected:
            raise PageError(f"{path}: the C++ example needs {' and '.join(sorted(expected))}")
    return page


def read_pages(root, codes):
    """(own pages by code, foreign pages), both in order."""
    own = {}
    for path in sorted((root / "errors").glob("PA*.md")):
        own[path.stem] = read_page(root, f"errors/{path.name}", codes)
        if not own[path.stem].own:
            raise PageError(f"errors/{path.name}: a page of a code of ours has no repo")
    foreign = []
    for path in sorted(Path(root / "errors/foreign").glob("*.md")):
        page = read_page(root, f"errors/foreign/{path.name}", codes)
        if page.own:
            raise PageError(f"{page.path}: front matter has no repo")
        foreign.append(page)
    return own, foreign
