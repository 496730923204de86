#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up one ./x test run: steps, GoogleTest and pytest results, what was left out and why.

Ends with the line `N passed, N failed, N skipped` and exits 1 if anything failed.
"""

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree


@dataclass
class Tally:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    left_out: Counter = field(default_factory=Counter)  # reason -> tests

    def add(self, name, failure, skip_reason):
        if failure:
            self.failed.append(name)
        elif skip_reason is not None:
            self.left_out[skip_reason] += 1
        else:
            self.passed += 1


def skip_reason(element):
    """The author's words; GoogleTest and pytest put a source position before them."""
    text = (element.get("message") or element.text or "").strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not re.match(r"^\S+:\d+(: .*)?$|^Skipped$", line)]
    return lines[-1].removeprefix("Skipped: ") if lines else "no reason given"


def add_file(tally, path):
    """A GoogleTest or pytest result file; returns whether it holds a failure."""
    failed_before = len(tally.failed)
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failure = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped")
        reason = None
        if skipped is not None or case.get("result") == "skipped":
            reason = skip_reason(skipped) if skipped is not None else "no reason given"
        tally.add(name, failure, reason)
    return len(tally.failed) > failed_before


def add_ctest(tally, results):
    """ctest's own list: programs that wrote results are counted by test, the others as one."""
    listing = results / "ctest.junit"
    if not listing.exists():
        tally.failed.append(f"{results.parent.name}: ctest wrote no results")
        return
    for case in ElementTree.parse(listing).getroot().iter("testcase"):
        name = case.get("name")
        status = case.get("status")
        details = results / f"{name}.xml"
        seen_failure = add_file(tally, details) if details.exists() else False
        if status == "fail" and not seen_failure:
            tally.failed.append(
                f"{results.parent.name}: {name} (stopped, or failed after its tests)"
            )
        elif not details.exists():
            tally.add(name, status not in ("run", "disabled"), None)


def report(build):
    tally = Tally()
    print("\nsteps")
    for line in (build / "test-steps.tsv").read_text().splitlines():
        kind, name, status, seconds = line.split("\t")
        print(f"  {'ok    ' if status == '0' else 'FAILED'} {name} ({seconds} s)")
        # A step with results of its own is counted by them, except where it left none.
        if kind == "check":
            tally.add(name, status != "0", None)
    for preset in ("release", "debug"):
        add_ctest(tally, build / preset / "test-results")
    if (build / "pytest.junit").exists():
        add_file(tally, build / "pytest.junit")
    else:
        tally.failed.append("pytest wrote no results")

    for name in tally.failed:
        print(f"failed: {name}")
    notes = build / "test-left-out.txt"
    not_there = notes.read_text().splitlines() if notes.exists() else []
    if tally.left_out or not_there:
        print("left out")
        for reason, count in sorted(tally.left_out.items()):
            print(f"  {count} tests: {reason}")
        for note in not_there:
            print(f"  {note}")
    skipped = sum(tally.left_out.values())
    print(f"{tally.passed} passed, {len(tally.failed)} failed, {skipped} skipped")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(report(Path(sys.argv[1])))
