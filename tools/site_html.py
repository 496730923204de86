# SPDX-License-Identifier: Apache-2.0
"""The HTML of the error reference: one page a record, and the index."""

import re
from html import escape

SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{root}style.css">
</head>
<body>
<header class="top"><div><a href="{root}index.html">packattn errors</a>
<span>attention over packed variable-length batches</span></div></header>
<main>
{body}
</main>
<script src="{root}{script}"></script>
</body>
</html>
"""


def page_name(record):
    return f"{record['errorCode'] or record['id']}.html"


def inline(text):
    """Markdown's `code`, **strong** and *emphasis*; everything else is text."""
    parts = re.split(r"`([^`]+)`", text)
    for i, part in enumerate(parts):
        part = escape(part, quote=False)
        if i % 2:
            parts[i] = f"<code>{part}</code>"
        else:
            part = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", part)
            parts[i] = re.sub(r"(?<!\w)\*([^*\s][^*]*)\*(?!\w)", r"<em>\1</em>", part)
    return "".join(parts)


def paragraphs(text):
    return "\n".join(f"<p>{inline(part)}</p>" for part in text.split("\n\n"))


def items(values, tag):
    return f"<{tag}>" + "".join(f"<li>{inline(value)}</li>" for value in values) + f"</{tag}>"


def code(text, kind=""):
    return f'<div class="block"><pre class="{kind}"><code>{escape(text)}</code></pre></div>'


def section(title, body):
    return f"<h2>{title}</h2>\n{body}" if body else ""


def source(record):
    where = escape(record["filePath"] or "")
    if not where:
        return ""
    if record["lineNumber"]:
        where += f":{record['lineNumber']}"
    if record["githubUrl"]:
        where = f'<a href="{escape(record["githubUrl"])}">{where}</a>'
    body = f"<p>Raised at {where}</p>"
    if record["sourceCode"]:
        lines = record["sourceCode"].splitlines()
        marked = record["lineNumber"] - record["sourceCodeStart"]
        shown = [escape(line) + "\n" for line in lines]
        shown[marked] = f"<mark>{escape(lines[marked])}</mark>"
        body += f'<div class="block"><pre><code>{"".join(shown)}</code></pre></div>'
    return body


def example(record):
    """exampleFix holds "# before", the call, "# after", the call; or only the second half."""
    fix = record["exampleFix"]
    if not fix:
        return ""
    before, _, after = fix.partition("# after\n")
    parts = []
    if before.strip():
        call = before.removeprefix("# before\n").rstrip("\n")
        parts += ["<h3>Raises the error</h3>", code(call, "before")]
    return "\n".join([*parts, "<h3>Works</h3>", code(after, "after")])


def record_links(links):
    rows = []
    for link in links:
        name = link["code"] or link["repo"]
        target = escape(page_name({"errorCode": link["code"], "id": link["id"]}))
        rows.append(
            f'<li><a href="{target}">{escape(name)}</a> {inline(link["errorMessage"])}</li>'
        )
    return f"<ul>{''.join(rows)}</ul>" if rows else ""


def elsewhere(known, pages):
    rows = []
    for item in known:
        name = escape(item["library"])
        if item["id"] in pages:
            name = f'<a href="{escape(pages[item["id"]])}">{name}</a>'
        rows.append(f"<li>{name}: <code>{escape(item['message'])}</code></li>")
    return f"<ul>{''.join(rows)}</ul>" if rows else ""


def tag_links(record, root):
    links = [f'<li><a href="{root}index.html?tag={tag}">{tag}</a></li>' for tag in record["tags"]]
    return f'<ul class="tags">{"".join(links)}</ul>'


def record_page(document, pages):
    """`pages` maps the ids of all records to their file names."""
    record = document["record"]
    kind = [record["repo"], record["severity"], record["errorClass"]]
    kind += [record["errorCode"]] if record["errorCode"] else []
    handling = {"typeGuard": "Type guard", "tryCatchPattern": "Handling it"}
    date = f" · {record['analyzedAt'][:10]}" if record["analyzedAt"] else ""
    body = [
        f'<p class="kind">{" · ".join(f"<b>{escape(k)}</b>" for k in kind)}</p>',
        f"<h1>{inline(record['errorMessage'])}</h1>",
        tag_links(record, "../"),
        section("Error message", f'<pre class="message">{escape(record["errorMessage"])}</pre>'),
        section("What it means", paragraphs(record["documentation"])),
        section("Solutions", items(record["solutions"], "ol")),
        section("Example", example(record)),
        section("Check before the call", code(record["validationCode"] or "")),
        *(section(title, code(record[name])) for name, title in handling.items() if record[name]),
        section("When it happens", paragraphs(record["triggerScenarios"])),
        section("Common situations", paragraphs(record["commonSituations"])),
        section("Prevention", items(record["preventionTips"], "ul")),
        section("Source", source(record)),
        section("The same fault elsewhere", elsewhere(document["alsoKnownAs"], pages)),
        section("Related errors", record_links(document["related"])),
        f"<footer><p>Record {record['id']}{date} · "
        f'<a href="../api/errors/{record["id"]}">data as JSON</a></p></footer>',
    ]
    title = record["errorCode"] or record["errorClass"]
    return SHELL.format(
        title=escape(f"{title}: {record['errorMessage']}"[:110]),
        root="../",
        body="\n".join(body),
        script="copy.js",
    )


def options(values):
    return "".join(f'<option value="{escape(v)}">{escape(v)}</option>' for v in sorted(values))


def index_row(document):
    record = document["record"]
    name = record["errorCode"] or record["errorClass"]
    known = " ".join(item["message"] for item in document["alsoKnownAs"])
    searched = [record["id"], name, record["repo"], record["errorMessage"], known, *record["tags"]]
    text = escape(" ".join(searched).lower())
    return (
        f'<tr data-repo="{escape(record["repo"])}" data-severity="{record["severity"]}"'
        f' data-tags="{escape(" ".join(record["tags"]))}" data-text="{text}">'
        f'<td><a href="errors/{page_name(record)}">{escape(name)}</a>'
        f"<small>{escape(record['repo'])}</small></td>"
        f"<td>{inline(record['errorMessage'])}</td></tr>"
    )


def index_page(documents):
    records = [document["record"] for document in documents]
    repos = options({record["repo"] for record in records})
    tags = options({tag for record in records for tag in record["tags"]})
    body = f"""<h1>Errors of packed attention, explained</h1>
<p>What each message means, when it happens, and a fix that has been run: packattn's own codes, and
messages of other libraries about the same mistakes.</p>
<div class="filters">
<input name="q" type="search" placeholder="code, id or words of a message" aria-label="search">
<select name="repo" aria-label="library"><option value="">every library</option>{repos}</select>
<select name="tag" aria-label="tag"><option value="">every tag</option>{tags}</select>
<select name="severity" aria-label="severity"><option value="">error and warning</option>
<option>error</option><option>warning</option></select>
</div>
<p class="kind"><span id="count">{len(records)}</span> of {len(records)} records ·
<a href="api/errors.json">all as JSON</a> · <a href="api/errors.schema.json">schema</a></p>
<table><tbody>
{chr(10).join(index_row(document) for document in documents)}
</tbody></table>"""
    return SHELL.format(title="packattn errors", root="", body=body, script="index.js")
