# SPDX-License-Identifier: Apache-2.0
"""Each rule for pages, ids and numbers catches the reference that breaks it."""

import json
from pathlib import Path

import cpp_examples
import error_gates
import jsonschema
import pytest
from error_pages import PageError, read_catalogue
from error_records import load_records, slug_of

ROOT = Path(__file__).parent.parent.parent

CATALOGUE = """// SPDX-License-Identifier: Apache-2.0
PACKATTN_CODE(2007, boundaries_decrease, "{argument} decreases at \\"{position}\\": "
              "{value}",
              "sum")
PACKATTN_CODE(9001, internal, "internal {value}", "report")
"""
HEAD = """---
id: {id}
tags: [cu_seqlens, packing]
background: invalid-boundaries
severity: error
related: [{related}]
{more}---
"""
BODY = """## Meaning
They go
down.

Second paragraph.

## Triggers
A call.

## Situations
A server.

## Solutions
1. Sum
   them.
2. Or not.

## Example
```python before
x = 1
```
```python after
x = 2
```

## Validation
```python
assert x
```

## Prevention
- Care.
"""
HANDLING = "## Try/catch\n```python\ntry_it()\n```\n\n"
RAISE = "\n".join(["//"] * 30 + ["  fail(Code::boundaries_decrease, {});"] + ["//"] * 30)
FOREIGN = """repo: o/lib
file: a/b.py
line: 7
class: ValueError
message: "{name} must rise"
code: PA2007
"""
A, B, C = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture
def tree(tmp_path):
    """A whole reference of two codes and one foreign page."""
    page9 = HEAD.format(id=B, related="PA2007", more='example: "none: nothing provokes it"\n')
    before, rest = BODY.split("## Example")
    files = {
        "errors/catalogue.def": CATALOGUE,
        "errors/PA2007.md": HEAD.format(
            id=A, related=f"PA9001, {C}", more='also_known_as:\n  - lib: "{argument} must rise"\n'
        )
        + BODY,
        "errors/PA9001.md": page9
        + before
        + "## Validation"
        + rest.split("## Validation")[1].replace("## Prevention", HANDLING + "## Prevention"),
        "errors/foreign/lib-rise.md": HEAD.format(id=C, related="PA2007", more=FOREIGN) + BODY,
        "errors/schema.json": (ROOT / "errors/schema.json").read_text(encoding="utf-8"),
        "src/core/checks.cpp": RAISE,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    error_gates.note_new(tmp_path)
    return tmp_path


def edit(tree, name, old, new):
    path = tree / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_whole_reference_has_no_problems(tree):
    assert error_gates.check(tree) == []


def test_catalogue_strings_are_read_as_c_reads_them(tree):
    assert read_catalogue(tree)[0].message == '{argument} decreases at "{position}": {value}'


def test_records_fill_every_field(tree):
    own, internal, foreign = load_records(tree)
    schema = json.loads((ROOT / "errors/schema.json").read_text(encoding="utf-8"))
    for record in (own, internal, foreign):
        jsonschema.Draft202012Validator(schema).validate(record.document)
    record = own.document["record"]
    assert record["documentation"] == "They go down.\n\nSecond paragraph."
    assert record["solutions"] == ["Sum them.", "Or not."]
    assert record["exampleFix"] == "# before\nx = 1\n# after\nx = 2"
    assert (record["filePath"], record["lineNumber"]) == ("src/core/checks.cpp", 31)
    assert (record["sourceCodeStart"], record["sourceCodeEnd"]) == (13, 49)
    assert record["sourceCode"].count("\n") == 37
    assert record["typeGuard"] is None
    causes = own.document["nullBecause"]
    assert set(causes) == {name for name, value in record.items() if value is None}
    assert "one expression" in causes["typeGuard"]
    assert internal.document["nullBecause"]["exampleFix"] == "nothing provokes it"
    assert own.document["exampleFixCpp"] is None
    assert [link["id"] for link in own.document["related"]] == [B, C]
    # The wording in the front matter is the foreign page's, so it is listed once.
    assert own.document["alsoKnownAs"] == [
        {"library": "lib", "message": "{name} must rise", "id": C}
    ]
    assert internal.document["record"]["exampleFix"] is None
    assert foreign.document["record"]["sourceCode"] is None
    assert foreign.document["record"]["errorClass"] == "ValueError"
    assert foreign.document["alsoKnownAs"][0]["id"] == A


def test_a_foreign_page_lists_further_messages_of_its_library(tree):
    more = 'also_known_as:\n  - lib: "{name}[{i}] must not fall"\nseverity:'
    edit(tree, "errors/foreign/lib-rise.md", "severity:", more)
    assert error_gates.check(tree) == []
    known = load_records(tree)[2].document["alsoKnownAs"]
    assert [row["library"] for row in known] == ["packattn", "lib"]
    assert known[1]["message"] == "{name}[{i}] must not fall"
    assert known[1]["id"] is None


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("PA2007.md", "## Meaning\n", "## Sense\n", "no section Sense"),
        ("PA2007.md", "## Triggers\nA call.\n", "", "section Triggers is missing"),
        ("PA2007.md", "## Triggers\nA call.\n", "## Triggers\n", "Triggers is empty"),
        ("PA2007.md", "```python after\nx = 2\n```\n", "", "needs after and before"),
        ("PA2007.md", "x = 2", "x = = 2", "after is not Python"),
        ("PA2007.md", "```python after", "```cpp before\n```\n```python after", "the C++ example"),
        ("PA2007.md", "```python after", "```rust after", "python after, or sh or cpp"),
        ("PA2007.md", "```python after", "```python before", "two before blocks"),
        ("PA2007.md", "- Care.", "Care.", "only list items"),
        ("PA2007.md", "- Care.\n", "", "the list is empty"),
        ("PA2007.md", "{argument} must", "{name} must", "a fault cannot fill it"),
        ("PA2007.md", f"id: {A}", "id: 12", "16 hex digits"),
        ("PA2007.md", f"id: {A}", f"id: {'d' * 16}", "for ever"),
        ("PA2007.md", f"id: {A}", f"id: {B}", "used by two pages"),
        ("PA2007.md", "related: [PA9001", "related: [PA9002", "PA9002 does not exist"),
        ("PA2007.md", "related: [PA9001", "related: [PA2007", "related to itself"),
        ("PA2007.md", "severity: error", "severity: bad", "error or warning"),
        ("PA2007.md", "severity: error", "severity: error\ncolour: red", "unknown front matter"),
        ("PA2007.md", "severity: error\n", "", "has no severity"),
        ("PA2007.md", "---\n", "", "starts with front matter"),
        ("foreign/lib-rise.md", "code: PA2007", "code: PA2999", "no code PA2999"),
        ("foreign/lib-rise.md", "code: PA2007\n", "", "code or accepted"),
        ("foreign/lib-rise.md", "code: PA2007", "accepted: true", "the example needs after"),
        ("foreign/lib-rise.md", '"{name} must rise"', "{name} must rise", "double quotes"),
        ("catalogue.def", "2007, boundaries_decrease", "2007, boundaries_fall", "is now"),
        (
            "catalogue.def",
            "PACKATTN_CODE(9",
            'PACKATTN_CODE(2007, x, "a", "b")\nPACKATTN_CODE(9',
            "twice",
        ),
        ("catalogue.def", "PACKATTN_CODE(9001,", "PACKATTN_CODE( 9.1,", "does not have the form"),
    ],
)
def test_a_broken_rule_is_caught(tree, name, old, new, expected):
    edit(tree, f"errors/{name}", old, new)
    problems = error_gates.check(tree)
    assert any(expected in problem for problem in problems), problems


def test_a_code_without_page_and_a_page_without_code(tree):
    page = tree / "errors/PA2007.md"
    page.rename(tree / "errors/PA2008.md")
    assert "errors/PA2008.md: the catalogue has no PA2008" in error_gates.check(tree)
    (tree / "errors/PA2008.md").unlink()
    assert any("has no page errors/PA2007.md" in problem for problem in error_gates.check(tree))


def test_a_code_that_nothing_raises(tree):
    edit(
        tree,
        "src/core/checks.cpp",
        "  fail(Code::boundaries_decrease",
        "  // Code::boundaries_decrease",
    )
    assert error_gates.check(tree) == ["PA2007 (boundaries_decrease) is never raised"]


def test_a_code_that_only_tests_provoke(tree):
    (tree / "src/core/checks.cpp").rename(tree / "src/core/injection.cpp")
    assert "PA2007 (boundaries_decrease) is never raised" in error_gates.check(tree)


def test_a_field_that_is_null_without_a_cause(tree):
    problems = error_gates.check(tree)
    edit(tree, "errors/PA9001.md", "## Try/catch\n```python\ntry_it()\n```\n\n", "")
    assert problems == []
    assert error_gates.check(tree) == ["PA9001: tryCatchPattern is null without a cause"]


def test_two_messages_with_the_same_first_words(tree):
    first = (tree / "errors/foreign/lib-rise.md").read_text(encoding="utf-8")
    second = first.replace(C, "d" * 16).replace("must rise", "must rise!")
    (tree / "errors/foreign/lib-rise-more.md").write_text(second, encoding="utf-8")
    error_gates.note_new(tree)
    (problem,) = error_gates.check(tree)
    assert "slug name-must-rise is also that of" in problem
    edit(tree, "errors/foreign/lib-rise-more.md", "severity:", "slug: lib-rise-more\nseverity:")
    assert error_gates.check(tree) == []


def test_cpp_examples_become_tests(tree):
    edit(
        tree,
        "errors/PA2007.md",
        "## Validation",
        "```cpp before\nwrong();\n```\n```cpp after\nright();\n```\n\n## Validation",
    )
    program = cpp_examples.program(tree)
    assert "TEST(PageExamples, PA2007_before)" in program
    assert 'problem_of_before("PA2007", call)' in program and "    wrong();" in program
    assert "TEST(PageExamples, PA2007_after)" in program and "    right();" in program
    record = load_records(tree)[0]
    assert record.document["exampleFixCpp"] == "// before\nwrong();\n// after\nright();"
    assert "In C++, works:\n\n```cpp\nright();" in record.page


def test_a_removed_page_is_missed(tree):
    (tree / "errors/foreign/lib-rise.md").unlink()
    assert any("pages are not removed" in problem for problem in error_gates.check(tree))


def test_notes_never_change_what_is_there(tree):
    before = (tree / "errors/ids.txt").read_text(encoding="utf-8")
    edit(tree, "errors/PA2007.md", f"id: {A}", f"id: {'e' * 16}")
    error_gates.note_new(tree)
    assert (tree / "errors/ids.txt").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("message", "slug"),
    [
        (
            "NPU packed attention requires q, k, and v with the same dtype",
            "npu-packed-attention-requires-q-k-and-v-with-the",
        ),
        ("{name} must be non-decreasing", "name-must-be-non-decreasing"),
        ("x" * 80, "x" * 50),
    ],
)
def test_slugs_are_cut_at_a_word(message, slug):
    assert slug_of(message) == slug


def test_a_page_error_names_its_place(tree):
    edit(tree, "errors/PA2007.md", "severity: error", "severity error")
    with pytest.raises(PageError, match=r"errors/PA2007\.md:5: not a front matter line"):
        load_records(tree)


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", "12"), ("severity", "bad"), ("solutions", []), ("documentation", None), ("extra", 1)],
)
def test_a_record_that_does_not_fit_the_schema(tree, field, value):
    schema = json.loads((ROOT / "errors/schema.json").read_text(encoding="utf-8"))
    document = load_records(tree)[0].document
    document["record"][field] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(document)


def test_a_record_without_a_field(tree):
    schema = json.loads((ROOT / "errors/schema.json").read_text(encoding="utf-8"))
    document = load_records(tree)[0].document
    del document["record"]["tags"]
    with pytest.raises(jsonschema.ValidationError, match="tags"):
        jsonschema.Draft202012Validator(schema).validate(document)
