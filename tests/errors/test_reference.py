# SPDX-License-Identifier: Apache-2.0
"""The reference of this tree is whole: every gate, and every record against the schema."""

import json
from pathlib import Path

import error_gates
import jsonschema
import pytest
from error_records import load_records

ROOT = Path(__file__).parent.parent.parent
SCHEMA = json.loads((ROOT / "errors/schema.json").read_text(encoding="utf-8"))
RECORDS = load_records(ROOT)

# The ids under which these three errors are known elsewhere.
KNOWN_IDS = {
    "96ac66f040f18c17": "cu_seqlens_q and cu_seqlens_k must describe the same batch",
    "5a32e337b8b4429a": "NPU packed attention requires q, k, and v with the same dtype",
    "39f78f9c15a7c54b": "The batch size is expected to be 1 rather than {q.shape[0]}",
}


def test_every_gate():
    assert error_gates.check(ROOT) == []


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.code or record.id)
def test_record_fits_the_schema(record):
    validator = jsonschema.Draft202012Validator(
        SCHEMA, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    validator.validate(record.document)


def test_own_records_show_where_they_are_raised():
    for record in RECORDS:
        fields = record.document["record"]
        if fields["sourceCode"]:
            lines = (ROOT / fields["filePath"]).read_text(encoding="utf-8").splitlines()
            excerpt = lines[fields["sourceCodeStart"] - 1 : fields["sourceCodeEnd"]]
            assert fields["sourceCode"].splitlines() == excerpt
            assert fields["sourceCodeStart"] <= fields["lineNumber"] <= fields["sourceCodeEnd"]


def test_foreign_records_carry_facts_and_no_source():
    foreign = [record.document["record"] for record in RECORDS if not record.code]
    assert foreign
    for fields in foreign:
        assert fields["filePath"]
        assert fields["sourceCode"] is None


def test_ids_that_others_know_are_kept():
    messages = {record.id: record.message for record in RECORDS}
    for identity, message in KNOWN_IDS.items():
        assert messages[identity].startswith(message)
