"""Run what the short form of the tests leaves out, file by file: `make test-long`.

A file that passed on this commit is not run again, so the long form can be run in parts. Every part is a few files, the
documentation as a site, or the training image. tests/last_long.md says what was run last, where, and for how long.

    python -m tests.long_form                 everything that has not passed on this commit
    python -m tests.long_form --part day      the part of today, by the day of the year, of those within twelve minutes
    python -m tests.long_form --list          the parts, with the minutes that they took last
"""

import argparse
import datetime
import hashlib
import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORT = Path(__file__).with_name("last_long.md")
PASSED = ROOT / ".cache" / "long_form.json"
"""Rows of the files that passed, by the tree that they passed on."""
COMMANDS = {"site": ["make", "docs"], "image": [".ci/image.sh"]}
PART_MINUTES = 12.0
UNKNOWN_MINUTES = 4.0
"""Of a file that has not been timed yet, unless it is one of these, which notes/log.md has timed without AVX-512."""
MINUTES = {
    "image": 12.0, "tests/e2e/test_faults.py": 25.0, "tests/e2e/test_real_models.py": 13.0,
    "tests/e2e/test_data.py": 7.0, "tests/e2e/test_mini.py": 6.0, "tests/e2e/test_notebook.py": 5.0,
    "tests/e2e/test_adapters_and_plugins.py": 5.0, "tests/test_gpu_lock.py": 13.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one file."""

    name: str
    minutes: float
    passed: int
    failed: int
    skipped: int
    date: str
    commit: str


def long_files() -> list[str]:
    """Return the test files that hold a test which only the long form runs, sorted."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "long", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"The tests cannot be collected:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return sorted({line.partition("::")[0] for line in done.stdout.splitlines() if re.match(r"tests/\S+\.py::", line)})


def parts(names: Iterable[str], minutes: Mapping[str, float]) -> list[list[str]]:
    """Cut names, in their order, into parts of at most `PART_MINUTES`; a longer one is a part of its own."""
    cut: list[list[str]] = []
    room = 0.0
    for name in names:
        takes = minutes.get(name, UNKNOWN_MINUTES)
        if not cut or takes > room:
            cut.append([])
            room = PART_MINUTES
        cut[-1].append(name)
        room -= takes
    return cut


def last_rows(report: str) -> dict[str, Row]:
    """Read the table of a report: rows by name."""
    rows = {}
    for line in report.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 7 and re.fullmatch(r"[\d.]+", cells[1]):
            name, took, passed, failed, skipped, date, commit = cells
            rows[name] = Row(name, float(took), int(passed), int(failed), int(skipped), date, commit)
    return rows


def report_of(rows: Iterable[Row], machine: str) -> str:
    """Return the report: totals, the machine of the last run, and a table."""
    ordered = sorted(rows, key=lambda row: row.name)
    total = sum(row.minutes for row in ordered)
    counts = [sum(getattr(row, name) for row in ordered) for name in ("passed", "failed", "skipped")]
    lines = [
        "# The long form, as it was run last",
        "",
        f"`make test-long` writes this file. {total:.0f} minutes; {counts[0]:,} passed, {counts[1]} failed, "
        f"{counts[2]} skipped. Last machine: {machine}.",
        "",
        "| file | minutes | passed | failed | skipped | date | commit |",
        "|---|---:|---:|---:|---:|---|---|",
        *(
            f"| {r.name} | {r.minutes:.1f} | {r.passed} | {r.failed} | {r.skipped} | {r.date} | {r.commit} |"
            for r in ordered
        ),
    ]
    return "\n".join(lines) + "\n"


def tree() -> tuple[str, str]:
    """Return the commit, and a name of what is checked out: the commit, or a digest where files differ from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    commit = git("rev-parse", "--short", "HEAD").strip()
    changes = git("diff", "HEAD", "--", ".", f":!{REPORT.relative_to(ROOT)}")
    digest = hashlib.sha256(changes.encode()).hexdigest()[:12]
    return commit, f"{commit}-{digest}" if changes else commit


def describe_machine() -> str:
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", info)
    flags = set((re.search(r"flags\s*: (.*)", info) or [""])[0].split())
    fast = next((word for flag, word in (("amx_bf16", "AMX"), ("avx512f", "AVX-512")) if flag in flags), "no AVX-512")
    return f"{info.count('processor')} cores, {model[1] if model else 'unknown'}, {fast}"


def run(name: str) -> tuple[float, int, int, int]:
    """Run one file, or a command of `COMMANDS`. Return minutes, and how many tests passed, failed, were skipped."""
    out = ROOT / ".cache" / "long_form.xml"
    out.parent.mkdir(exist_ok=True)
    out.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "long", f"--junitxml={out}", name]
    began = time.monotonic()
    code = subprocess.run(COMMANDS.get(name, pytest), cwd=ROOT, check=False).returncode
    minutes = (time.monotonic() - began) / 60
    if name in COMMANDS or not out.is_file():
        return minutes, int(code == 0), int(code != 0), 0
    (suite,) = ET.parse(out).getroot().iter("testsuite")
    tests, failed, skipped = (int(suite.attrib[key]) for key in ("tests", "failures", "skipped"))
    failed += int(suite.attrib["errors"])
    return minutes, tests - failed - skipped, max(failed, int(code != 0)), skipped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", metavar="N|day", help="number of a part; day: one of those that fit, by the day")
    parser.add_argument("--list", action="store_true", help="print the parts")
    given = parser.parse_args()
    rows = last_rows(REPORT.read_text() if REPORT.is_file() else "")
    names = [*COMMANDS, *long_files()]
    minutes = MINUTES | {name: row.minutes for name, row in rows.items()}
    cut = parts(names, minutes)
    if given.list:
        for number, part in enumerate(cut, 1):
            print(number, *part)
        return 0
    if given.part == "day":
        fitting = [part for part in cut if minutes.get(part[0], UNKNOWN_MINUTES) <= PART_MINUTES]
        names = fitting[(datetime.date.today().timetuple().tm_yday - 1) % len(fitting)]
    elif given.part is not None:
        if not given.part.isdecimal() or not 1 <= int(given.part) <= len(cut):
            parser.error(f"--part is a number from 1 to {len(cut)}, or day")
        names = cut[int(given.part) - 1]
    commit, state = tree()
    done = json.loads(PASSED.read_text()) if PASSED.is_file() else {}
    passed = set(done.get(state, ()))
    failed = []
    for name in names:
        if name in passed:
            print(f"{name} passed on this commit before", flush=True)
            continue
        row = Row(name, *run(name), str(datetime.date.today()), commit)
        rows[name] = row
        REPORT.write_text(report_of(rows.values(), describe_machine()))
        print(json.dumps(asdict(row)), flush=True)
        if row.failed:
            failed.append(name)
        else:
            passed.add(name)
            PASSED.write_text(json.dumps({state: sorted(passed)}))
    if failed:
        print("failed:", *failed)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
