"""Run every test of a built tree and end with one line: N passed, N failed, N skipped.

C++ tests run through ctest, Python tests through pytest, the fuzz targets for a few seconds each when
clang with libFuzzer is there. What was skipped is listed with its reason. Exit status 0 only if nothing failed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "logs"
PYTEST_ARGS = ["-p", "no:cacheprovider", "tests"]
FINISHED = (0, 1, 5)  # exit codes of pytest that leave a complete report


@dataclass
class Tally:
    """Names of failed tests, (name, reason) of skipped ones and the number that passed."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def line(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"

    def add(self, other: Tally) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def skip_reason(case: ElementTree.Element) -> str:
    """The text given to GTEST_SKIP or pytest.skip, or after SKIPPED: in the output of a program of its own."""
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines()]
    for at, line in enumerate(lines):
        if line.endswith(": Skipped") and at + 1 < len(lines):
            return lines[at + 1]
        if line.startswith("SKIPPED: "):
            return line.removeprefix("SKIPPED: ")
    skipped = case.find("skipped")
    return (skipped.get("message") or "no reason given") if skipped is not None else "not run"


def read_junit(path: Path, with_class: bool) -> Tally:
    """Count the cases of a JUnit report written by ctest (names are complete) or pytest (class and name)."""
    tally = Tally()
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.get("name", "?")
        if with_class:
            name = f"{case.get('classname', '')}::{name}"
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed.append(name)
        elif case.find("skipped") is not None:
            tally.skipped.append((name, skip_reason(case)))
        else:
            tally.passed += 1
    return tally


def failed_output(path: Path) -> str:
    """Output of the failed cases of a ctest report."""
    parts = []
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None:
            parts.append(f"--- {case.get('name')}\n{case.findtext('system-out') or ''}")
    return "\n".join(parts)


def run_ctest(build: Path, jobs: int) -> Tally:
    report, log = LOGS / "ctest.xml", LOGS / "ctest.log"
    report.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error"]
    command += ["--output-junit", str(report), "-j", str(jobs)]
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    if not report.is_file():
        return Tally(failed=[f"ctest did not finish (exit code {code}); see {log.relative_to(ROOT)}"])
    tally = read_junit(report, with_class=False)
    print(failed_output(report), end="", flush=True)
    if code != 0 and not tally.failed:
        tally.failed.append(f"ctest ended with exit code {code}; see {log.relative_to(ROOT)}")
    return tally


def run_pytest() -> Tally:
    report = LOGS / "pytest.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *PYTEST_ARGS, f"--junitxml={report}"]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code not in FINISHED or not report.is_file():
        return Tally(failed=[f"pytest did not finish (exit code {code})"])
    return read_junit(report, with_class=True)


def has_libfuzzer() -> bool:
    if shutil.which("clang++") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text('extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n')
        command = ["clang++", "-fsanitize=fuzzer", str(source), "-o", f"{folder}/probe"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def run_fuzz(seconds: int) -> Tally:
    if not has_libfuzzer():
        return Tally(skipped=[("fuzz", "clang with libFuzzer is not installed (Debian: clang, libclang-rt-dev)")])
    log = LOGS / "fuzz.log"
    with log.open("w") as out:
        command = ["scripts/fuzz.sh", str(seconds)]
        code = subprocess.run(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    if code == 0:
        return Tally(passed=1)
    print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:]))
    return Tally(failed=[f"fuzz; see {log.relative_to(ROOT)}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="build folder")
    parser.add_argument("--jobs", type=int, default=1, help="tests at once")
    parser.add_argument("--fuzz-seconds", type=int, default=5, help="seconds for each fuzz target")
    args = parser.parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)

    total = Tally()
    suites = (
        ("C++ tests", lambda: run_ctest(args.build, args.jobs)),
        ("Python tests", run_pytest),
        ("fuzz targets", lambda: run_fuzz(args.fuzz_seconds)),
    )
    for title, run in suites:
        print(f"== {title}", flush=True)
        begin = time.monotonic()
        tally = run()
        print(f"{title}: {tally.line()} in {time.monotonic() - begin:.0f} s", flush=True)
        total.add(tally)

    print("== summary")
    if not shutil.which("nvcc"):
        print("device tests were not built: nvcc is not on PATH")
    for name, reason in total.skipped:
        print(f"skipped: {name}: {reason}")
    for name in total.failed:
        print(f"FAILED: {name}")
    print(total.line(), flush=True)
    return 1 if total.failed or total.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
