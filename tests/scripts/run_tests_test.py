"""scripts/run_tests.py counts the reports of ctest and pytest alike."""

import importlib.util
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "run_tests.py"
spec = importlib.util.spec_from_file_location("run_tests", SCRIPT)
run_tests = importlib.util.module_from_spec(spec)
sys.modules["run_tests"] = run_tests
spec.loader.exec_module(run_tests)

CTEST = """<testsuite>
<testcase name="A.Passes" status="run"><system-out>fine</system-out></testcase>
<testcase name="A.Fails" status="fail"><failure message=""/><system-out>expected 1</system-out></testcase>
<testcase name="A.Skips" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>[ RUN ] A.Skips
a_test.cpp:3: Skipped
no such header

[  SKIPPED ] A.Skips</system-out></testcase>
<testcase name="device" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>SKIPPED: no CUDA device (none found)</system-out></testcase>
</testsuite>"""

PYTEST = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_passes"/>
<testcase classname="tests.a" name="test_skips"><skipped message="no model"/></testcase>
<testcase classname="tests.a" name="test_breaks"><error message="fixture"/></testcase>
</testsuite></testsuites>"""


def test_reports_are_added_up(tmp_path):
    (tmp_path / "ctest.xml").write_text(CTEST, encoding="utf-8")
    (tmp_path / "pytest.xml").write_text(PYTEST, encoding="utf-8")
    total = run_tests.read_junit(tmp_path / "ctest.xml", with_class=False)
    total.add(run_tests.read_junit(tmp_path / "pytest.xml", with_class=True))
    assert total.line() == "2 passed, 2 failed, 3 skipped"
    assert total.failed == ["A.Fails", "tests.a::test_breaks"]
    assert total.skipped == [
        ("A.Skips", "no such header"),
        ("device", "no CUDA device (none found)"),
        ("tests.a::test_skips", "no model"),
    ]
    assert "expected 1" in run_tests.failed_output(tmp_path / "ctest.xml")
