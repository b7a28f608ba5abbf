"""The exam in a model's card is the last one up to its step, also of a run that is writing its metrics."""

from pathlib import Path

from azr.runs.model_export import exam_table


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path):
    metrics = tmp_path / "metrics.jsonl"
    assert exam_table(metrics, 3) == ""
    metrics.write_text('{"step": 1, "eval/pass": 0.25}\n{"step": 2, "eval/pass": 0.5}\n{"step": 3, "eval/pa')
    assert "After step 2" in exam_table(metrics, 3) and "| pass | 0.500 |" in exam_table(metrics, 3)
    assert "| pass | 0.250 |" in exam_table(metrics, 1)
