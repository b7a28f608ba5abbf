"""The long form is cut into parts that fit, and its report is read back as it was written."""

from tests.long_form import PART_MINUTES, Row, last_rows, parts, report_of

ROWS = [Row("tests/a.py", 2.5, 7, 0, 1, "2026-11-28", "abc1234"), Row("site", 0.4, 1, 0, 0, "2026-11-27", "abc1234")]


def test_a_part_takes_no_longer_than_it_may_and_nothing_is_left_out():
    minutes = {"a": 5.0, "b": 6.0, "c": 2.0, "d": 30.0, "e": 1.0}
    cut = parts([*minutes, "new"], minutes)
    assert cut == [["a", "b"], ["c"], ["d"], ["e", "new"]]
    assert all(len(part) == 1 or sum(minutes.get(name, 4.0) for name in part) <= PART_MINUTES for part in cut)


def test_a_report_is_read_back():
    report = report_of(ROWS, "2 cores")
    assert last_rows(report) == {row.name: row for row in ROWS}
    assert "3 minutes; 8 passed, 0 failed, 1 skipped" in report
    assert last_rows("") == {}
