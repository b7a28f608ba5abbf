"""The evaluation in a model's card is the last one up to its step, also of a run that is writing its metrics."""

from pathlib import Path

from azr.runs.model_export import evaluation_table, last_evaluation


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path):
    metrics = tmp_path / "metrics.jsonl"
    assert last_evaluation(metrics, 3) == (0, {})
    metrics.write_text('{"step": 1, "eval/pass": 0.25}\n{"step": 2, "eval/pass": 0.5}\n{"step": 3, "eval/pa')
    assert last_evaluation(metrics, 3) == (2, {"pass": 0.5})
    assert last_evaluation(metrics, 1) == (1, {"pass": 0.25})


def test_an_interval_stands_beside_its_share():
    table = evaluation_table(4, {"exam/mean@2": 0.5, "exam/mean@2_high": 0.75, "exam/mean@2_low": 0.25, "tokens": 7.0})
    assert table.splitlines()[-2:] == ["| exam/mean@2 | 0.500 [0.250, 0.750] |", "| tokens | 7.000 |"]
