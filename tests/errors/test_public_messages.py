# SPDX-License-Identifier: Apache-2.0
"""Messages as public threads have them, which no pattern was written from, and the page of each.

When they were first tried, 14 of 20 (list a) and 15 of 20 (list b) found a right page first, and 16
of each after the ranking was changed by them. Both were then used to see which families of messages
had no page, so since the reference has those they say nothing new about unseen messages.

A path that starts in somebody's home is shortened to [...] in the lists.

Later lists were collected in the same way, each after the widening that the one before it led to,
in the order in which an issue search gave its threads. Only the first try says what the reference
does with an unseen message:

  list  first try  then
  c     11 of 20   more than 700 messages were taken from the libraries' sources
  d     10 of 20   checks without a text, and ranking: a full stop, long captures, raised lines
  e     11 of 20   what CUDA, Triton and mixed versions raise around attention
  f      8 of 20   compilers, versions and what servers log

Where a list had a message without any page that would be right, a page made since is right for it.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COMMAND = os.environ.get("PACKATTN_CLI") or shutil.which("packattn")
# The last part of the addresses of those that miss.
MISSES = {
    "a": [],
    "b": ["v100/issues/8"],
    "c": [],
    "d": ["NATTEN/issues/239"],
    "e": ["sglang/issues/11409"],
    "f": ["vllm/issues/46480", "flash-linear-attention/pull/636", "torch-xpu-ops/issues/3140"],
}


def first_page(text, pages):
    done = subprocess.run(
        [COMMAND, "explain", "--json"], input=text, capture_output=True, text=True, timeout=30
    )
    matches = json.loads(done.stdout) if done.returncode == 0 else []
    return pages[matches[0]["document"]["record"]["id"]] if matches else None


@pytest.mark.parametrize("name", sorted(MISSES))
def test_messages_find_their_page(name):
    if not COMMAND:
        pytest.skip("PACKATTN_CLI does not name the packattn command")
    lines = (ROOT / "errors/ids.txt").read_text(encoding="utf-8").splitlines()
    pages = {line.split()[1]: line.split()[0] for line in lines if line and line[0] != "#"}
    cases = json.loads((ROOT / f"tests/errors/data/public_messages_{name}.json").read_text())
    missed = [
        case["from"] for case in cases if first_page(case["text"], pages) not in case["right"]
    ]
    expected = [case["from"] for case in cases if case["from"].endswith(tuple(MISSES[name]))]
    assert missed == expected
