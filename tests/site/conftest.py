# SPDX-License-Identifier: Apache-2.0
"""The site of this tree, made once."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """(folder, documents)"""
    pytest.importorskip("mkdocs", reason="the site needs requirements/site.txt")
    pytest.importorskip("griffe", reason="the site needs requirements/site.txt")
    import build_site
    from error_records import load_records

    out = tmp_path_factory.mktemp("site")
    documents = [record.document for record in load_records(ROOT)]
    build_site.build(documents, out)
    return out, documents
