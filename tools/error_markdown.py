# SPDX-License-Identifier: Apache-2.0
"""The explanation page of a record as Markdown: what `packattn explain` prints."""


def block(code, language="python"):
    return f"```{language}\n{code}\n```"


def bullets(items):
    return "\n".join(f"- {item}" for item in items)


def header(record):
    title = record["errorCode"] or record["errorClass"]
    lines = [f"# {title}: {record['errorMessage']}", ""]
    lines.append(f"{record['repo']} · {record['severity']} · {record['errorClass']}")
    if record["filePath"]:
        line = f":{record['lineNumber']}" if record["lineNumber"] else ""
        lines.append(f"Raised at {record['filePath']}{line}")
    return "\n".join(lines)


def examples(page):
    parts = []
    for name, heading in (("before", "Raises the error:"), ("after", "Works:")):
        if name in page.examples:
            language, _, code = page.examples[name]
            parts += [heading, block(code, language)]
    for name, heading in (("before", "In C++, raises the error:"), ("after", "In C++, works:")):
        if name in page.cpp:
            parts += [heading, block(page.cpp[name], "cpp")]
    return "\n\n".join(parts)


def snippet(record, name):
    shell = (record["errorCode"] or "").startswith("PA7")
    return record[name] and block(record[name], "sh" if shell else "python")


def links(document):
    lines = []
    for other in document["related"]:
        lines.append(f"- {other['code'] or other['repo']}: {other['errorMessage']} ({other['id']})")
    return "\n".join(lines)


def of_same_library(document, known):
    return known["library"] == document["record"]["repo"].split("/")[-1]


def further_wordings(document):
    return bullets(k["message"] for k in document["alsoKnownAs"] if of_same_library(document, k))


def elsewhere(document):
    return bullets(
        f"{known['library']}: {known['message']}"
        for known in document["alsoKnownAs"]
        if not of_same_library(document, known)
    )


def verdict(page):
    if page.own:
        return ""
    if "accepted" in page.head:
        return "packattn accepts this call; the example is such a call."
    return f"packattn refuses the same call with {page.head['code']}."


def page_of(document, page):
    record = document["record"]
    sections = [
        ("What it means", record["documentation"]),
        ("In packattn", verdict(page)),
        ("Solutions", "\n".join(f"{i}. {text}" for i, text in enumerate(record["solutions"], 1))),
        ("Example", examples(page)),
        ("Check before the call", snippet(record, "validationCode")),
        ("Type guard", snippet(record, "typeGuard")),
        ("Handling it", snippet(record, "tryCatchPattern")),
        ("When it happens", f"Trigger: {record['triggerScenarios']}"),
        ("Common situations", record["commonSituations"]),
        ("Prevention", bullets(record["preventionTips"])),
        ("Other messages of this kind", further_wordings(document)),
        ("The same fault elsewhere", elsewhere(document)),
        ("Related errors", links(document)),
    ]
    text = header(record)
    for title, body in sections:
        if body:
            text += f"\n\n## {title}\n\n{body}"
    when = f" · {record['analyzedAt'][:10]}" if record["analyzedAt"] else ""
    return f"{text}\n\nRecord {record['id']}{when} · JSON: /api/errors/{record['id']}\n"
