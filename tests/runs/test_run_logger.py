import asyncio
import io
import json
import math
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import Config, DataConfig, RunConfig
from azr.errors import UserError
from azr.files import hash_file
from azr.records import PromptIds, Task
from azr.runs.metrics import Metrics
from azr.runs.progress import Progress, summary
from azr.runs.run_dir import RunDirectory
from azr.runs.run_logger import RunLogger
from azr.runs.sample_file import FileOffset, JsonLines, LogOffsets, read_metrics, read_tasks
from azr.tasks.base import RejectReason
from tests.runs.factory import largest_file, proposals, sample


def config(root: Path) -> Config:
    return replace(Config(), run=RunConfig(root=str(root), name="run", steps=2))


def opened(of: Config) -> RunLogger:
    return RunLogger.create(RunDirectory.of(of.run), of, Progress())


def decode(ids: Sequence[int]) -> str:
    return str(list(ids))


async def step(logger: RunLogger, number: int, loss: float = 0.5) -> Metrics:
    logger.begin_step()
    with logger.phase("solve"):
        await asyncio.sleep(0.01)
    samples = [sample("solver", accuracy=number - 1.0), sample("proposer")]
    samples += proposals(4, Counter({RejectReason.FAILED: 2}), [0.5, 1.0])
    timing = logger.step_timing()
    await logger.log_rollouts(number, samples, decode)
    parts = {"policy": {"loss": loss}, "seconds": timing.seconds, "driver": {"cpu_share": timing.cpu_share}}
    return logger.end_step(number, samples, parts, {"safety/flagged": 0.0})


async def test_a_run_leaves_everything_in_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = opened(config(tmp_path))
    logger.progress.start(2)
    steps = [await step(logger, 1), await step(logger, 2)]
    logger.finish([])
    logger.close()
    run = logger.run
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert lines == [{"step": number, **metrics} for number, metrics in enumerate(steps, 1)]
    assert lines[0]["seconds/solve"] >= 0.01 and lines[0]["driver/cpu_share"] >= 0
    assert lines[0]["safety/flagged"] == 0.0 and lines[0]["deduction/proposer/funnel/failed"] == 2
    assert {entry.name for entry in run.path.iterdir()} == {
        "config.yaml", "metrics.jsonl", "tensorboard", "rollouts", "tasks.jsonl", "checkpoints", "log.txt",
    }  # fmt: skip
    assert [entry.name for entry in sorted((run.path / "rollouts").iterdir())] == [
        "step_000001.jsonl.gz", "step_000002.jsonl.gz",
    ]  # fmt: skip
    printed = capsys.readouterr().out
    assert "step 1/2 · valid 50% · solve ded .00 · loss 0.5000" in printed
    assert f"tensorboard --logdir {run.tensorboard}\n" in printed
    assert "step 2/2 · valid 50%" in run.log.read_text()


async def test_texts_are_written_beside_the_next_step(tmp_path: Path) -> None:
    logger, may_go_on, threads = opened(config(tmp_path)), threading.Event(), set[int]()

    def slow(ids: PromptIds) -> str:
        may_go_on.wait()
        threads.add(threading.get_ident())
        return "text"

    await logger.log_rollouts(1, [sample("solver")], slow)
    assert not logger.run.rollouts(1).exists()
    flushing = asyncio.ensure_future(logger.flush())
    await asyncio.sleep(0.05)
    assert not flushing.done(), "a checkpoint waits for the texts"
    may_go_on.set()
    await flushing
    assert logger.run.rollouts(1).exists() and threading.get_ident() not in threads
    logger.close()


@pytest.mark.parametrize("next_call", ["log_rollouts", "flush", "close"])
async def test_texts_that_could_not_be_written_end_the_run(next_call: str, tmp_path: Path) -> None:
    logger = opened(config(tmp_path))
    logger.run.rollouts(1).mkdir()
    await logger.log_rollouts(1, [sample("solver")], decode)
    for _ in range(2 if next_call != "close" else 0):
        with pytest.raises(IsADirectoryError):
            await (logger.flush() if next_call == "flush" else logger.log_rollouts(2, [], decode))
            await logger.flush()
    logger.close()
    assert not logger.run.rollouts(2).exists()
    assert next_call != "close" or "could not be written" in logger.run.log.read_text(), "nobody asked about it"


async def test_an_evaluation_before_the_first_step_is_step_0_and_a_diverged_step_leaves_no_line(tmp_path: Path) -> None:
    logger = opened(config(tmp_path))
    logger.log_baseline({})
    logger.log_baseline({"exam/mean@2": 0.25})
    await step(logger, 1)
    with pytest.raises(RuntimeError, match="policy/loss is nan in step 2"):
        await step(logger, 2, float("nan"))
    logger.close()
    lines = [json.loads(line) for line in logger.run.metrics.read_text().splitlines()]
    assert lines[0] == {"step": 0, "eval/exam/mean@2": 0.25} and [line["step"] for line in lines] == [0, 1]


def test_the_final_table_compares_start_and_end_and_the_first_and_the_last_evaluation() -> None:
    others = {"mean@2_low": 0.0, "greedy": 0.5, "deduction/mean@2": 0.3, "deduction/short/mean@2": 0.1}
    measured = [{"mean@2": share} | others for share in (0.125, 0.5, 0.75)]
    evals: list[Metrics] = [{f"eval/exam/{name}": value for name, value in each.items()} for each in measured]
    run = RunDirectory(Path("orz_ckpt/x"))
    table = summary([{}], run, evals, [], tensorboard=False).splitlines()
    assert {"exam              12.5%   75.0%", "exam, deduction   30.0%   30.0%"} <= set(table)

    def at(accuracy: float, valid: int) -> Metrics:
        funnel = {"proposed": 10, "valid": valid, "lost": 0}
        counts = {f"deduction/proposer/funnel/{name}": count for name, count in funnel.items()}
        return {"deduction/solver/accuracy": accuracy, "buffer/deduction": 40} | counts

    steps = [at(0.1, 4), at(0.3, 6), at(0.0, 0), at(0.5, 9), at(0.7, 10)]
    *table, view, tensorboard, then = summary(steps, run, [], ["exam: a gain"], tensorboard=True).splitlines()
    assert "azr export orz_ckpt/x FOLDER" in then
    assert table == [
        "5 steps; start and end: means of 2 steps each", "                                 start     end",
        "valid proposals                  50.0%   95.0%", "solve rate, deduction            20.0%   60.0%",
        "tasks in the buffer, deduction              40", "exam: a gain", "run directory: orz_ckpt/x",
    ]  # fmt: skip
    (title, *_) = summary(steps[:1], run, [], [], tensorboard=True).splitlines()
    assert title == "1 steps; start and end: means of 1 step each"
    assert view.startswith("to see it:     ") and view.endswith("bin/azr view orz_ckpt/x")
    assert tensorboard.endswith("tensorboard --logdir orz_ckpt/x/tensorboard")


TASK = Task(
    id="a", kind="deduction", program="def f(x): return '\u2028\x85\n'", inputs=("'\ud800ü'",), outputs=("'\\ud800'",),
    fingerprint="f", message="m\u2029", parents=("b", "c"), step=3, solve_rate=0.5,
)  # fmt: skip


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_digest_grows_with_the_file_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = JsonLines(path)
    assert log.offset() == FileOffset()
    log.write([{"a": "ü"}, {"b": 1}])
    offset = log.offset()
    assert offset == FileOffset(path.stat().st_size, hash_file(path).digest)
    log.write([{"c": 1}])
    log.close()
    offset.truncate(path, tmp_path / "aside")
    again = JsonLines(path, offset)
    assert again.offset() == offset and len(read(path)) == 2
    again.write([{"d": 1}])
    again.close()
    assert again.offset() == FileOffset(path.stat().st_size, hash_file(path).digest)


def test_a_line_that_does_not_fit_on_the_disk_is_an_error(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    with largest_file(1000), pytest.raises(OSError, match="could not be written"):
        log.write([{"text": "x" * 5000}])
    log.close()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinity_never_reach_a_file(tmp_path: Path, bad: float) -> None:
    lines = JsonLines(tmp_path / "lines.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        lines.write([{"nested": {"reward": bad}}])
    lines.close()
    assert (tmp_path / "lines.jsonl").read_bytes() == b""


def test_an_offset_knows_what_a_file_began_with(tmp_path: Path) -> None:
    file = tmp_path / "log"
    FileOffset().check(tmp_path / "missing")  # a run that begins asks for no file
    FileOffset().truncate(tmp_path / "missing", tmp_path / "aside")
    assert not (tmp_path / "aside").exists()
    file.write_text("one\n")
    offset = FileOffset(file.stat().st_size, hash_file(file).digest)
    file.write_text("one\ntwo\n")
    offset.check(file)
    offset.truncate(file, tmp_path / "aside")
    assert file.read_text() == "one\n" and (tmp_path / "aside").read_text() == "two\n"
    for text in ("oNe\n", "on"):
        file.write_text(text)
        with pytest.raises(UserError, match="was altered"):
            offset.check(file)


def test_a_run_is_cut_back_to_a_step_and_tensorboard_made_again(tmp_path: Path) -> None:
    data = DataConfig(path="rows.jsonl")  # no kind of self-play, whose funnel would be among the numbers
    config = Config(run=RunConfig(root=str(tmp_path), name="run", steps=9), data=data)
    logger = RunLogger.create(RunDirectory.of(config.run), config, Progress(io.StringIO()))
    offsets: dict[int, LogOffsets] = {}
    for step in (1, 2, 3):
        logger.log_tasks([TASK])
        logger.end_step(step, [], {"policy": {"loss": float(step)}}, {})
        logger.run.rollouts(step).write_bytes(b"...")
        offsets[step] = logger.offsets()
    logger.run.rollouts(4).with_name(".step_000004.jsonl.gz").write_bytes(b"half")
    logger.close()
    again = RunLogger.reopen(RunDirectory.of(config.run), config, Progress(io.StringIO()), 2, offsets[2])
    run = again.run
    assert read_metrics(run.metrics) == [(1, {"policy/loss": 1.0}), (2, {"policy/loss": 2.0})]
    assert read_tasks(run.tasks) == [TASK, TASK]
    assert sorted(path.name for path in run.rollouts(0).parent.iterdir()) == [
        "step_000001.jsonl.gz", "step_000002.jsonl.gz",
    ]  # fmt: skip
    (aside,) = (run.path / "passed_over").iterdir()
    assert read_metrics(aside / "metrics.jsonl") == [(3, {"policy/loss": 3.0})]
    assert read_tasks(aside / "tasks.jsonl") == [TASK] and (aside / "rollouts" / "step_000003.jsonl.gz").is_file()
    again.end_step(3, [], {"policy": {"loss": 7.0}}, {})
    again.close()
    assert scalars(run) == {1: 1.0, 2: 2.0, 3: 7.0}


def test_a_run_that_seeds_again_has_nothing_of_its_first_seeding(tmp_path: Path) -> None:
    config = Config(run=RunConfig(root=str(tmp_path), name="run", steps=9))
    logger = RunLogger.create(RunDirectory.of(config.run), config, Progress(io.StringIO()))
    logger.log_tasks([TASK])
    logger.run.rollouts(0).write_bytes(b"...")
    logger.close()
    run = RunLogger.reopen(RunDirectory.of(config.run), config, Progress(io.StringIO()), 0, LogOffsets()).run
    assert not run.rollouts(0).exists() and read_tasks(run.tasks) == []


def scalars(run: RunDirectory) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    return {event.step: event.value for event in events.Scalars("policy/loss")}
