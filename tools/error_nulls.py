# SPDX-License-Identifier: Apache-2.0
"""Why a field of a record is null: each such field has its cause beside the record."""

# By field; None where it depends on the kind of error.
CAUSES = {
    "errorCode": "the library gives its errors no codes",
    "httpStatus": "no HTTP is spoken where it is raised",
    "filePath": "no call of a user's raises it, so there is no line to show",
    "lineNumber": "the line is not the same in every release that has the message",
    "sourceCode": "no line of another library's source is kept",
    "sourceCodeStart": "there is no excerpt",
    "sourceCodeEnd": "there is no excerpt",
    "analyzedSha": "made outside a checkout, or from no single commit of the library",
    "analyzedAt": "made outside a checkout",
    "validationCode": "nothing can be checked ahead of it",
    "exampleFix": None,
    "githubUrl": None,
    "typeGuard": None,
    "tryCatchPattern": None,
}
TYPE_GUARDS = {
    "validation": "the check before the call is one expression; a guard would only name it",
    "unsupported": "no property of the arguments alone tells what the machine and the build have",
    "device": "nothing in the arguments shows it before the call",
    "resource": "nothing in the arguments shows it before the call",
    "input": "it is a fault of a command line or a file, not of a value in a program",
    "internal": "a fault of the library is not a property of the arguments",
}
TRY_CATCH = {
    "validation": "the call is wrong and has to be mended; catching this would hide it",
    "unsupported": "what to use instead is chosen before the call, not after it has failed",
    "resource": "the buffer that is too small is made larger before the call",
}


def cause_of(name, page, fields):
    kind = fields["errorType"]
    if name == "exampleFix":
        return page.head.get("example", "").partition(":")[2].strip()
    if name == "githubUrl":
        if page.own:
            return "these sources have no public address"
        return "no single commit of the library is named"
    if name == "typeGuard":
        return TYPE_GUARDS[kind]
    if name == "tryCatchPattern":
        return TRY_CATCH.get(kind)
    if name.startswith("sourceCode") and page.own:
        return CAUSES["filePath"]
    return CAUSES.get(name)


def causes_of_nulls(page, fields):
    """{field: cause} of every field that is null; a cause of None is a gap that a gate reports."""
    return {name: cause_of(name, page, fields) for name, value in fields.items() if value is None}
