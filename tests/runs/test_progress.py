import contextlib
import io
import logging
import os
import pty
import time

from azr.runs.metrics import Metrics, duration
from azr.runs.progress import Progress, share
from tests.runs.factory import Clock, until

METRICS: Metrics = {
    **{f"deduction/proposer/funnel/{name}": count for name, count in {"proposed": 12, "valid": 10, "lost": 1}.items()},
    "deduction/solver/accuracy": 0.41, "abduction/solver/accuracy": 1.0, "policy/loss": -0.01234,
}  # fmt: skip


def started(clock: Clock, steps: int, **more: float) -> tuple[Progress, io.StringIO]:
    """A run that is shown on a stream, which only gets what stays."""
    stream = io.StringIO()
    progress = Progress(stream, clock, interval_s=10**6)
    progress.start(steps, int(more.pop("first_step", 1)), **more)
    return progress, stream


def test_a_line_says_what_goes_on_how_far_it_is_and_what_is_left() -> None:
    clock = Clock()
    progress, _ = started(clock, 24)
    progress.phase("start engines", 1)
    clock.now = 40.0
    assert progress.line() == "starting · start engines 40 s · 40 s · time left known after step 1"
    progress.step_begun()
    clock.now = 50.0
    assert progress.line() == "step 1/24 · 10 s · time left known after step 1"
    clock.now = 60.0
    progress.step_done(1, {})
    progress.phase("propose", 36)
    progress.phase("propose").done += 36
    with contextlib.ExitStack() as solving:
        for _ in range(5):
            solving.enter_context(progress.busy("solve"))
        progress.phase("solve").done += 2
        clock.now = 70.0
        assert progress.line() == "step 2/24 · solve 2/5 · 10 s · about 8 min left"
    progress.step_done(24, {})
    clock.now = 73.0
    assert progress.line() == "ending · 3 s"
    progress.close()


def test_a_restarted_run_is_starting_again_and_explains_its_lines_no_more() -> None:
    clock = Clock()
    progress, stream = started(clock, 9)
    progress.step_begun()
    progress.phase("solve", 1)
    clock.now = 5.0
    progress.step_done(1, METRICS)
    progress.start(9, first_step=4)
    assert progress.line() == "starting · 0 s · time left known after step 4"
    progress.step_done(4, METRICS)
    assert stream.getvalue().count("in a step's line") == 1
    progress.close()


def test_time_left_is_the_median_of_past_steps_times_what_is_left_and_at_most_what_the_run_may_take() -> None:
    clock = Clock()
    progress, _ = started(clock, 1000, max_minutes=3, elapsed_s=60.0)
    clock.now = 50.0
    progress.step_done(1, {})
    assert progress.remaining_s() == 70.0
    clock.now = 130.0
    assert progress.remaining_s() == 0.0
    progress.close()
    progress, _ = started(clock, 6)
    assert progress.remaining_s() is None
    for step, seconds in enumerate((100.0, 10.0, 12.0), start=1):
        clock.now += seconds
        progress.step_done(step, {})
    assert progress.remaining_s() == 36.0
    clock.now += 5.0
    assert progress.remaining_s() == 31.0
    clock.now += 500.0
    assert progress.remaining_s() == 24.0
    progress.close()


def test_a_step_ends_in_one_summary_line_which_is_explained_before_the_first() -> None:
    clock = Clock()
    progress, stream = started(clock, 3, first_step=2)
    clock.now = 21.0
    progress.step_done(2, METRICS)
    clock.now = 22.0
    progress.step_done(3, {})
    assert stream.getvalue().splitlines() == [
        "in a step's line: valid, proposals that became tasks; solve, right answers by kind of task (ded: deduction, "
        "abd: abduction; .41 is 41%); loss, of the policy",
        "step 2/3 · valid 91% · solve ded .41 abd 1.0 · loss -0.0123 · 21 s · about 21 s left",
        "step 3/3 · 1 s",
    ]
    progress.close()
    assert [duration(seconds) for seconds in (8.2, 89.0, 90.0, 5399.0, 11100.0)] == [
        "8 s", "89 s", "2 min", "1 h 30 min", "3 h 05 min",
    ]  # fmt: skip
    assert [share(rate) for rate in (0.0, 0.414, 0.994, 0.996, 1.0)] == [".00", ".41", ".99", "1.0", "1.0"]


def test_without_a_terminal_lines_follow_what_moves_and_a_long_silence_is_broken(caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO, "azr")
    stream = io.StringIO()
    progress = Progress(stream, interval_s=0.02, patience=10**6)
    progress.start(2)
    progress.step_begun()
    progress.phase("propose", 3)
    progress.phase("propose").done += 1
    until(lambda: "propose 1/3" in stream.getvalue())
    progress.phase("solve", 2)
    progress.phase("solve").done += 1
    until(lambda: "solve 1/2" in stream.getvalue())
    time.sleep(0.2)
    lines = stream.getvalue().splitlines()
    assert len(lines) <= 6 and len(set(lines)) == len(lines)
    progress.step_done(1, METRICS)
    progress.log("a word\nor two")
    progress.close()
    progress.close()
    assert "step 1/2 · valid 91%" in stream.getvalue()
    assert "\na word\nor two\n" in stream.getvalue()
    assert any(message.startswith("step 1/2 · valid 91%") for message in caplog.messages)
    stream = io.StringIO()
    progress = Progress(stream, interval_s=0.01, patience=3)
    progress.start(2)
    progress.phase("train policy", 1)
    until(lambda: stream.getvalue().count("train policy 0 s") >= 3)
    progress.close()
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do
    plain = Progress(stream := io.StringIO())
    plain.start(1)
    plain.log("[bold]as it is[/bold]")
    plain.close()
    assert stream.getvalue() == "[bold]as it is[/bold]\n"


def test_a_terminal_gets_a_live_table_and_keeps_what_is_logged(monkeypatch) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    reader, writer = pty.openpty()
    os.set_blocking(reader, False)
    seen = bytearray()

    def shows(*words: str) -> bool:
        with contextlib.suppress(BlockingIOError):
            seen.extend(os.read(reader, 65536))
        return all(word.encode() in seen for word in words)

    with os.fdopen(writer, "w") as stream, contextlib.closing(Progress(stream)) as progress:
        progress.start(24)
        progress.step_begun()
        progress.phase("propose", 36)
        progress.phase("propose").done += 12
        progress.log("[tag] stays")
        until(lambda: shows("[tag] stays", "step 1/24 · propose 12/36", "━━━"))
        progress.step_done(1, METRICS)
        until(lambda: shows("step 1/24 · valid 91%"))
    os.close(reader)
