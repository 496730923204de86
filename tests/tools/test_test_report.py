# SPDX-License-Identifier: Apache-2.0
"""tools/test_report.py decides whether a run passed, so its own counting is tested."""

import pytest
import test_report

GTEST = """<testsuites><testsuite name="S">
<testcase name="a" status="run" result="completed" classname="S"/>
<testcase name="b" status="run" result="skipped" classname="S">
<skipped message="tests/unit/s_test.cpp:9&#x0A;no CUDA device here&#x0A;"/></testcase>
{extra}</testsuite></testsuites>"""
FAILED = '<testcase name="c" classname="S"><failure message="x"/></testcase>'
PYTEST = """<testsuites><testsuite><testcase classname="t" name="p"/>
<testcase classname="t" name="s"><skipped message="Skipped: needs torch with CUDA">x</skipped>
</testcase></testsuite></testsuites>"""


def ctest(**tests):
    cases = "".join(f'<testcase name="{name}" status="{tests[name]}"/>' for name in tests)
    return f"<testsuite>{cases}</testsuite>"


@pytest.fixture
def build(tmp_path):
    for preset in ("release", "debug"):
        results = tmp_path / preset / "test-results"
        results.mkdir(parents=True)
        (results / "ctest.junit").write_text(ctest(unit_tests="run"))
        (results / "unit_tests.xml").write_text(GTEST.format(extra=""))
    (tmp_path / "pytest.junit").write_text(PYTEST)
    (tmp_path / "test-steps.tsv").write_text("check\trelease build\t0\t5\ntests\tC++ tests\t0\t1\n")
    return tmp_path


def run(build, capsys):
    status = test_report.report(build)
    return status, capsys.readouterr().out.splitlines()


def test_counts_by_test_and_says_what_was_left_out(build, capsys):
    status, lines = run(build, capsys)
    assert status == 0
    assert lines[-1] == "4 passed, 0 failed, 3 skipped"
    assert "  2 tests: no CUDA device here" in lines
    assert "  1 tests: needs torch with CUDA" in lines


def test_a_program_without_results_counts_as_one(build, capsys):
    listing = build / "release/test-results/ctest.junit"
    listing.write_text(ctest(unit_tests="run", installed_package="run"))
    assert run(build, capsys)[1][-1] == "5 passed, 0 failed, 3 skipped"


def test_a_failed_test_is_named(build, capsys):
    (build / "debug/test-results/ctest.junit").write_text(ctest(unit_tests="fail"))
    (build / "debug/test-results/unit_tests.xml").write_text(GTEST.format(extra=FAILED))
    status, lines = run(build, capsys)
    assert status == 1
    assert "failed: S.c" in lines
    assert lines[-1] == "4 passed, 1 failed, 3 skipped"


@pytest.mark.parametrize("removed", [True, False])
def test_a_program_that_stopped_is_a_failure(build, capsys, removed):
    """A crash leaves no result file; a leak found at exit leaves one without a failure."""
    (build / "debug/test-results/ctest.junit").write_text(ctest(unit_tests="fail"))
    if removed:
        (build / "debug/test-results/unit_tests.xml").unlink()
    status, lines = run(build, capsys)
    assert status == 1
    assert any("unit_tests (stopped, or failed after its tests)" in line for line in lines)


@pytest.mark.parametrize("lost", ["pytest.junit", "release/test-results/ctest.junit"])
def test_lost_results_are_a_failure(build, capsys, lost):
    (build / lost).unlink()
    assert run(build, capsys)[0] == 1


def test_a_failed_check_is_a_failure(build, capsys):
    (build / "test-steps.tsv").write_text("check\tclang-tidy\t1\t60\n")
    status, lines = run(build, capsys)
    assert status == 1
    assert "failed: clang-tidy" in lines


def test_what_no_test_can_say_is_printed(build, capsys):
    (build / "test-left-out.txt").write_text("GPU kernels: not built\n")
    status, lines = run(build, capsys)
    assert status == 0
    assert "  GPU kernels: not built" in lines
