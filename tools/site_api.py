# SPDX-License-Identifier: Apache-2.0
"""The reference of the Python and C++ interfaces, from docstrings and header comments."""

import ast
import re
from functools import cache
from pathlib import Path

import griffe
from site_records import front_matter

# ---- Python -----------------------------------------------------------------------------------

ROLE = re.compile(r"``([^`]+)``")


def code_marks(text):
    """reStructuredText's ``code`` and indented :: blocks as Markdown."""
    text = ROLE.sub(r"`\1`", text or "")
    lines = []
    for line in text.splitlines():
        lines.append(line[:-1] if line.endswith("::") else line)
    return "\n".join(lines)


@cache
def constants(path):
    """{name: value as written} of what a module assigns, also several names at once."""
    found = {}
    for node in ast.parse(Path(path).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            together = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            names = target.elts if together else [target]
            values = node.value.elts if together else [node.value]
            for each, value in zip(names, values, strict=False):
                if isinstance(each, ast.Name):
                    found[each.id] = ast.unparse(value)
    return found


def default_of(parameter, item):
    """As a reader may type it: private names stand for their values."""
    text = str(parameter.default)
    return constants(item.filepath).get(text, text) if text.startswith("_") else text


def signature(name, item):
    """A definition on one line if it fits, else an argument a line."""
    parts = []
    seen_star = False
    for parameter in item.parameters:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind.value
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        if kind == "keyword-only" and not seen_star:
            parts.append("*")
            seen_star = True
        seen_star = seen_star or kind == "variadic positional"
        text = f"{star}{parameter.name}"
        if parameter.annotation:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not star:
            default = default_of(parameter, item)
            text += f" = {default}" if parameter.annotation else f"={default}"
        parts.append(text)
    returns = f" -> {item.returns}" if item.returns else ""
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= 88:
        return line
    body = "".join(f"    {part},\n" for part in parts)
    return f"{name}(\n{body}){returns}"


def docstring(item):
    if not item.docstring:
        return ""
    parts = []
    for section in item.docstring.parse("sphinx", warnings=False):
        kind = section.kind.value
        if kind == "text":
            parts.append(code_marks(section.value))
        elif kind == "parameters":
            rows = [
                f"| `{p.name}` | {one_line(p.description)} |"
                for p in section.value
                if p.description
            ]
            parts.append("| argument | |\n| --- | --- |\n" + "\n".join(rows))
        elif kind == "returns":
            parts += [f"**Returns** {one_line(value.description)}" for value in section.value]
        elif kind == "raises":
            parts += [
                f"**Raises** `{value.annotation}` {one_line(value.description)}"
                for value in section.value
            ]
    return "\n\n".join(part for part in parts if part)


def one_line(text):
    return code_marks(" ".join((text or "").split())).replace("|", "\\|")


def members(item):
    found = [
        m
        for m in item.members.values()
        if not m.is_alias
        and not m.name.startswith("_")
        and (m.is_function or (m.is_attribute and m.docstring))
    ]
    return [m for m in found if m.docstring]


def python_item(name, item):
    parts = [f"### `{name}`"]
    if item.is_function:
        parts += [f"```python\n{signature('packattn.' + name, item)}\n```", docstring(item)]
    elif item.is_class:
        start = item.members.get("__init__")
        shown = f"packattn.{name}"
        if start is not None and start.is_function:
            shown = signature(shown, start)
        parts += [f"```python\n{shown}\n```", docstring(item)]
        for member in members(item):
            if member.is_function:
                head = signature(f"{name}.{member.name}", member)
            else:
                head = f"{name}.{member.name}"
            parts += [f"#### `{name}.{member.name}`", f"```python\n{head}\n```", docstring(member)]
    return "\n\n".join(part for part in parts if part)


def resolved(item):
    return item.final_target if item.is_alias else item


def python_page(root):
    package = griffe.load("packattn", search_paths=[str(root / "python")], allow_inspection=False)
    exported = [str(name).strip("'\"") for name in package.exports or []]
    groups = {"Functions": [], "Classes": [], "Modules": []}
    for name in sorted(exported, key=str.lower):
        if name.startswith("__"):
            continue
        item = package.members.get(name)
        if item is None:  # made on first use
            groups["Modules"].append((name, None))
            continue
        item = resolved(item)
        kind = "Functions" if item.is_function else "Classes" if item.is_class else "Modules"
        groups[kind].append((name, item))
    parts = [
        front_matter("Python", "Every function and class of the packattn package."),
        "# Python",
        code_marks(package.docstring.value if package.docstring else ""),
    ]
    for title in ("Functions", "Classes"):
        parts.append(f"## {title}")
        parts += [python_item(name, item) for name, item in groups[title]]
    parts.append("## Modules")
    for name, item in groups["Modules"]:
        about = code_marks(item.docstring.value) if item is not None and item.docstring else ""
        if name == "compat":
            about = "The [drop-ins](../dropins.md) for other libraries, one module each."
        parts.append(f"### `packattn.{name}`\n\n{about}")
        if item is not None and item.is_module:
            for member in members(item):
                parts += [
                    f"#### `{name}.{member.name}`",
                    f"```python\n{signature(f'packattn.{name}.{member.name}', member)}\n```",
                    docstring(member),
                ]
    return "\n\n".join(part for part in parts if part) + "\n"


# ---- C++ --------------------------------------------------------------------------------------

SKIPPED = ("export.h", "packattn.h")
NAME = [
    re.compile(r"\b(?:enum class|enum|struct|class)\s+(?:PACKATTN_EXPORT\s+)?(\w+)"),
    re.compile(r"\busing\s+(\w+)\s*="),
    re.compile(r"\b(operator\S+|\w+)\s*\("),
    re.compile(r"\bconstexpr\s+\w+\s+(\w+)"),
]


def chunks(text):
    """[(documentation, declaration)] of the namespace's own level."""
    body = text.split("namespace packattn {", 1)[1].rsplit("}  // namespace packattn", 1)[0]
    found = []
    about, code, depth = [], [], 0
    for line in body.splitlines():
        inside = depth > 0 or bool(code)
        if not inside and line.startswith("///"):
            about.append(line[3:].removeprefix(" "))
            continue
        if not inside and (not line.strip() or line.startswith(("//", "#"))):
            about = [] if not line.strip() else about
            continue
        code.append(line)
        plain = re.sub(r"//.*|\"(?:[^\"\\]|\\.)*\"", "", line)
        depth += plain.count("{") + plain.count("(") - plain.count("}") - plain.count(")")
        if depth == 0 and re.search(r"[;}]\s*$", plain):
            found.append(("\n".join(about), "\n".join(code)))
            about, code = [], []
    return found


def declared_name(declaration):
    plain = re.sub(r"//.*", "", declaration).replace("PACKATTN_EXPORT ", "")
    for pattern in NAME:
        match = pattern.search(plain.split("{")[0] if pattern is not NAME[2] else plain)
        if match:
            return match[1]
    return None


def cpp_page(root):
    parts = [
        front_matter("C++", "Every public header of packattn."),
        "# C++",
        "`#include <packattn/packattn.h>` has all of them; namespace `packattn`. Every call that is"
        " refused throws [`Error`](#error) with every fault found.",
    ]
    headers = sorted(Path(root / "include/packattn").glob("*.h"))
    for header in headers:
        if header.name in SKIPPED:
            continue
        parts.append(f"## packattn/{header.name}")
        last = None
        for about, declaration in chunks(header.read_text(encoding="utf-8")):
            name = declared_name(declaration)
            if name is None or (not about and declaration.startswith("namespace")):
                continue
            shown = declaration.replace("PACKATTN_EXPORT ", "")
            if name != last:
                parts.append(f"### `{name}`")
            last = name
            parts += [about, f"```cpp\n{shown}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"
