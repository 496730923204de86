# SPDX-License-Identifier: Apache-2.0
"""Pages of the site that come from records: one each, one a background group, and the finder."""

import re
from html import escape

from error_markdown import of_same_library

# What the finder and the browser's own search for a message need of a record.
LISTED = ("id", "errorCode", "repo", "slug", "errorMessage", "errorClass", "severity", "tags")

VERDICTS = {
    True: "packattn refuses the same call with {code}.",
    False: "packattn accepts this call; the example is such a call.",
}


def page_name(record):
    return record["errorCode"] or record["id"]


def group_title(background):
    text = background.replace("-", " ")
    return text[0].upper() + text[1:]


def front_matter(title, description, extra=""):
    quoted = [f'"{text.translate({34: "", 92: ""})}"' for text in (title, description)]
    return f"---\ntitle: {quoted[0]}\ndescription: {quoted[1]}\n{extra}---\n"


def inline(text):
    """Markdown's `code`, **strong** and *emphasis* as HTML; everything else is text."""
    parts = re.split(r"`([^`]+)`", text)
    for i, part in enumerate(parts):
        part = escape(part, quote=False)
        if i % 2:
            parts[i] = f"<code>{part}</code>"
        else:
            part = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", part)
            parts[i] = re.sub(r"(?<!\w)\*([^*\s][^*]*)\*(?!\w)", r"<em>\1</em>", part)
    return "".join(parts)


def message_html(text):
    """A message pattern with its placeholders set apart."""
    parts = re.split(r"(\{[^{}]*\})", text)
    return "".join(
        f'<span class="hole">{escape(part[1:-1])}</span>' if i % 2 else escape(part, quote=False)
        for i, part in enumerate(parts)
    )


def paragraphs(text):
    return "\n".join(f"<p>{inline(part)}</p>" for part in text.split("\n\n"))


def items(values, tag):
    return f"<{tag}>" + "".join(f"<li>{inline(value)}</li>" for value in values) + f"</{tag}>"


def block(code, language="python", title=""):
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", code)), default=0))
    name = f' title="{title}"' if title else ""
    return f"{fence}{language}{name}\n{code.rstrip()}\n{fence}"


def language_of(record):
    return "sh" if record["errorCode"] and record["errorCode"].startswith("PA7") else "python"


def example(document):
    """exampleFix holds "# before", the call, "# after", the call; or only the second half."""
    record = document["record"]
    fix = record["exampleFix"]
    if not fix:
        return "<p>No call of a user's makes this error, so there is none to show.</p>"
    parts = halves(fix, "# ", language_of(record), "")
    if document["exampleFixCpp"]:
        parts += halves(document["exampleFixCpp"], "// ", "cpp", "C++: ")
        parts.append(CPP_AROUND)
    return "\n\n".join(parts)


CPP_AROUND = (
    '<p class="aside">The C++ blocks are bodies of functions, with '
    "<code>#include &lt;packattn/packattn.h&gt;</code> and <code>using namespace packattn;</code> "
    "before them.</p>"
)


def halves(fix, comment, language, prefix):
    """The two blocks of an example; `comment` begins the lines that tell them apart."""
    before, _, after = fix.partition(f"{comment}after\n")
    parts = []
    if before.strip():
        call = before.removeprefix(f"{comment}before\n")
        parts.append(("before", block(call, language, f"{prefix}Before")))
    parts.append(("after", block(after, language, f"{prefix}After")))
    return [f'<div class="{kind}" markdown>\n{code}\n</div>' for kind, code in parts]


def source(document):
    record = document["record"]
    where = record["filePath"]
    if not where:
        return ""
    where += f":{record['lineNumber']}" if record["lineNumber"] else ""
    shown = f"<code>{escape(where)}</code>"
    if record["githubUrl"]:
        shown = f'<a href="{escape(record["githubUrl"])}">{shown}</a>'
    text = f"<p>Raised at {shown}.</p>"
    if record["sourceCode"]:
        first = record["sourceCodeStart"]
        marked = record["lineNumber"] - first + 1
        language = "python" if record["filePath"].endswith(".py") else "cpp"
        text += f'\n\n```{language} linenums="{first}" hl_lines="{marked}"\n'
        text += record["sourceCode"].rstrip("\n") + "\n```"
    return text


def link_row(target, name, message):
    return (
        f'<li><a href="{escape(target)}.html"><b>{escape(name)}</b>'
        f"<span>{message_html(message)}</span></a></li>"
    )


def related(document):
    rows = [
        link_row(link["code"] or link["id"], link["code"] or link["repo"], link["errorMessage"])
        for link in document["related"]
    ]
    return f'<ul class="cards">{"".join(rows)}</ul>' if rows else ""


def further_wordings(document):
    own = [k["message"] for k in document["alsoKnownAs"] if of_same_library(document, k)]
    rows = "".join(f"<li>{message_html(text)}</li>" for text in own)
    return f"<ul>{rows}</ul>" if rows else ""


def elsewhere(document, names):
    rows = []
    for known in document["alsoKnownAs"]:
        if of_same_library(document, known):
            continue
        if known["id"] in names:
            rows.append(link_row(names[known["id"]], known["library"], known["message"]))
        else:
            rows.append(
                f"<li><b>{escape(known['library'])}</b>"
                f"<span>{message_html(known['message'])}</span></li>"
            )
    return f'<ul class="cards">{"".join(rows)}</ul>' if rows else ""


def verdict(document):
    if document["record"]["errorCode"]:
        return ""
    known = [o["id"] for o in document["alsoKnownAs"] if o["library"] == "packattn"]
    codes = {link["id"]: link["code"] for link in document["related"]}
    code = next((codes[name] for name in known if codes.get(name)), None)
    text = VERDICTS[bool(known)]
    link = f'<a href="{code}.html">{code}</a>' if code else "a code of its own"
    return f'<p class="verdict">{text.format(code=link)}</p>'


def head(record):
    kind = [record["repo"], record["severity"], record["errorClass"]]
    kind += [record["errorCode"]] if record["errorCode"] else []
    tags = "".join(f'<a href="index.html?tag={tag}">{tag}</a>' for tag in record["tags"])
    group = record["backgroundTag"]
    return (
        f'<p class="kind">{" · ".join(escape(part) for part in kind)}</p>\n'
        f'<h1 class="message">{message_html(record["errorMessage"])}</h1>\n'
        f'<p class="tags"><a class="group" href="groups.html#{group}">'
        f"{group_title(group)}</a>{tags}</p>\n"
    )


def record_page(document, names):
    """Markdown; `names` maps the ids of all records to the names of their pages."""
    record = document["record"]
    title = f"{record['errorCode'] or record['errorClass']}: {record['errorMessage']}"
    message = record["errorMessage"]
    date = f" · {record['analyzedAt'][:10]}" if record["analyzedAt"] else ""
    commit = f" · commit {record['analyzedSha'][:10]}" if record["analyzedSha"] else ""
    handling = {"typeGuard": "Type guard", "tryCatchPattern": "Handling it"}
    language = language_of(record)
    sections = [
        ("What it means", verdict(document) + "\n" + paragraphs(record["documentation"])),
        ("How to fix it", items(record["solutions"], "ol")),
        ("Example", example(document)),
        ("Check before the call", block(record["validationCode"], language)),
        *(
            (title, block(record[name], language))
            for name, title in handling.items()
            if record[name]
        ),
        ("When it happens", paragraphs(record["triggerScenarios"])),
        ("Common situations", paragraphs(record["commonSituations"])),
        ("How to prevent it", items(record["preventionTips"], "ul")),
        ("Related errors", related(document)),
        ("Other messages of this kind", further_wordings(document)),
        ("The same fault elsewhere", elsewhere(document, names)),
        ("Source", source(document)),
    ]
    text = front_matter(title[:110], record["documentation"][:150], "hide:\n  - navigation\n")
    text += head(record)
    text += f'<div class="copyable" markdown>\n\n{block(message, "text")}\n\n</div>\n'
    for heading, body in sections:
        if body.strip():
            text += f"\n## {heading}\n\n{body}\n"
    return text + (
        f'\n<p class="record">Record {record["id"]}{date}{commit} · '
        f'<a href="../api/errors/{record["id"]}">data as JSON</a></p>\n'
    )


def groups_page(documents):
    groups = {}
    for document in documents:
        groups.setdefault(document["record"]["backgroundTag"], []).append(document["record"])
    parts = [
        front_matter("Errors by cause", "Errors of packed attention, grouped by what causes them."),
        "# Errors by cause\n",
        "Errors with one background stand together, whichever library words them.\n",
    ]
    for background in sorted(groups, key=lambda name: (-len(groups[name]), name)):
        records = groups[background]
        rows = [
            link_row(page_name(r), r["errorCode"] or r["repo"], r["errorMessage"]) for r in records
        ]
        parts.append(
            f'<h2 id="{background}">{group_title(background)} <small>{len(records)}</small></h2>'
        )
        parts.append(f'<ul class="cards">{"".join(rows)}</ul>\n')
    return "\n".join(parts)


WIDE = "finder: true\nhide:\n  - navigation\n  - toc\n"


def options(values):
    return "".join(f'<option value="{escape(v)}">{escape(v)}</option>' for v in sorted(values))


def index_row(document):
    record = document["record"]
    name = record["errorCode"] or record["errorClass"]
    known = " ".join(item["message"] for item in document["alsoKnownAs"])
    searched = [record["id"], name, record["repo"], record["errorMessage"], known, *record["tags"]]
    text = escape(" ".join(searched).lower())
    return (
        f'<tr data-id="{record["id"]}" data-repo="{escape(record["repo"])}"'
        f' data-severity="{record["severity"]}"'
        f' data-tags="{escape(" ".join(record["tags"]))}" data-text="{text}">'
        f'<td><a href="{page_name(record)}.html">{escape(name)}</a>'
        f"<small>{escape(record['repo'])}</small></td>"
        f"<td>{message_html(record['errorMessage'])}</td></tr>"
    )


FINDER = """<div class="finder" data-base="{base}">
<textarea name="q" rows="2" spellcheck="false" aria-label="error message"
 placeholder="Paste an error message, a traceback, a code or a few words"></textarea>
<div class="found" role="status" aria-live="polite"></div>
</div>"""


def index_page(documents):
    records = [document["record"] for document in documents]
    repos = options({record["repo"] for record in records})
    tags = options({tag for record in records for tag in record["tags"]})
    about = "What each message means, when it happens, and a fix that has been run."
    rows = "\n".join(index_row(document) for document in documents)
    return f"""{front_matter("Error reference", about, WIDE)}
<h1>Error reference</h1>

<p class="lead">{about} packattn's own codes, and messages of other libraries about the same
mistakes. <a href="groups.html">By cause</a></p>

{FINDER.format(base="")}

<div class="filters">
<select name="repo" aria-label="library"><option value="">every library</option>{repos}</select>
<select name="tag" aria-label="tag"><option value="">every tag</option>{tags}</select>
<select name="severity" aria-label="severity"><option value="">error and warning</option>
<option>error</option><option>warning</option></select>
<span><b id="count">{len(records)}</b> of {len(records)}</span>
<span class="downloads"><a href="../api/errors.json" download>dataset</a>
<a href="../api/errors.schema.json">schema</a></span>
</div>
<table class="records"><tbody>
{rows}
</tbody></table>
"""


def finder_data(documents, wordings):
    """What assets/finder.js searches when no server answers /api/explain.

    :param wordings: {id: texts} of other libraries, as the library itself searches them.
    """
    rows = []
    for document in documents:
        record = document["record"]
        row = {name: record[name] for name in ("id", "repo", "slug", "errorMessage", "tags")}
        row["page"] = page_name(record)
        row["wordings"] = wordings.get(record["id"], [])
        row["about"] = record["documentation"]
        rows.append(row)
    return rows
