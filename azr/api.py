"""The Python API: train, read runs, evaluate and export, from a script or a notebook.

What computes runs as a command in a process of its own. So it may be called while an event loop runs, and its memory
is free when it ends.
"""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azr.config import Config
from azr.config_tree import from_tree
from azr.errors import UserError
from azr.launch import is_run, load_recipe
from azr.records import Sample, Task
from azr.runs.metrics import eval_shares
from azr.runs.run_dir import RunDirectory, write_config
from azr.runs.sample_file import read_metrics, read_sample, read_tasks

_WRONG_INPUT = 2
"""Exit code of a command after a UserError."""


class Run:
    """A run that is on disk, finished or not. Each property reads its files again."""

    def __init__(self, path: str | Path) -> None:
        """``path``: folder of the run. Raises UserError if there is no run."""
        self.path = Path(path)
        if not is_run(str(path)):
            raise UserError(f"{path} is not a run: name the folder of one, such as orz_ckpt/azr_14m_mini.")
        self._files = RunDirectory(self.path)

    def __repr__(self) -> str:
        return f"azr.Run({str(self.path)!r})"

    @property
    def config(self) -> Config:
        """All options of the run."""
        return load_recipe(str(self.path))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A record for each step: ``step``, and numbers by name."""
        return [{"step": step, **record} for step, record in read_metrics(self._files.metrics)]

    @property
    def tasks(self) -> list[Task]:
        """Every accepted task, in order."""
        return read_tasks(self._files.tasks)

    def samples(self, step: int | None = None) -> Iterator[Sample]:
        """Yield prompts, responses and verdicts of a step, by default of all steps in order. Raises UserError if the
        step has no samples."""
        if step is None:
            files = sorted(self._files.rollouts(0).parent.glob("step_*.jsonl.gz"))
        elif (file := self._files.rollouts(step)).is_file():
            files = [file]
        else:
            raise UserError(f"{self.path} has no samples of step {step}.")
        for file in files:
            with gzip.open(file) as lines:
                yield from map(read_sample, lines)

    @property
    def evaluations(self) -> dict[int, dict[str, float]]:
        """Shares of right answers by step and suite, such as ``exam``, of the evaluations within the run."""
        shares = {step: eval_shares(record) for step, record in read_metrics(self._files.metrics)}
        return {step: found for step, found in shares.items() if found}

    @property
    def policy(self) -> Path:
        """Folder of the last policy, as transformers and vLLM load it; written on first use. Raises UserError if there
        is none yet."""
        from azr.runs.model_export import find_source, kept_export  # They load the hub's library.

        return kept_export(find_source(self.path, None))

    def frame(self, of: str = "metrics") -> Any:
        """Return ``metrics``, ``tasks`` or ``samples`` as a `pandas.DataFrame`, a row for each. Needs pandas."""
        import pandas as pd  # type: ignore[import-untyped]

        if of not in ("metrics", "tasks", "samples"):
            raise UserError(f"There is no frame of {of!r}: name metrics, tasks or samples.")
        return pd.DataFrame(list(self.samples()) if of == "samples" else getattr(self, of))


@dataclass(frozen=True, slots=True)
class Report:
    """An evaluation that is on disk."""

    folder: Path
    results: Mapping[str, Any]
    """What ``results.json`` holds: settings, versions, and the rows."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Scores by suite and group of questions; ``estimates`` has value and 95% interval of each measure."""
        return list(self.results["rows"])

    def __str__(self) -> str:
        return (self.folder / "table.md").read_text(encoding="utf-8")


def run(recipe: str | Config, *, resume: bool = False, restart: bool = False, **sections: Mapping[str, Any]) -> Run:
    """Train as ``azr run`` does, print its lines, and return the run at its end.

    ``recipe``: a name or file as on the command line, or a config. ``sections``: options by section, such as
    ``run={"steps": 2}``. ``resume``: continue from the last checkpoint; ``restart``: keep an earlier run under another
    name.

    Raises UserError if the run is refused, RuntimeError if it ends before its last step.
    """
    config = from_tree(sections, load_recipe(recipe) if isinstance(recipe, str) else recipe)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        write_config(config, file)
        _command("run", str(file), *["--resume"] * resume, *["--restart"] * restart)
    return Run(RunDirectory.of(config.run).path)


def evaluate(
    model: str | Path | Run, suites: str | Sequence[str] = "exam", *, out: str | Path, **options: Any
) -> Report:
    """Ask a model the questions of ``suites`` as ``azr eval`` does, and return the report.

    ``model``: a Hugging Face folder or name, or a run. ``out``: folder of table, numbers and answers. ``options``: of
    the command, with underscores, such as ``samples=4, limit=100, data="DIR", resume=True``.

    Raises UserError if the command refuses, RuntimeError if it fails.
    """
    names = suites if isinstance(suites, str) else ",".join(suites)
    _command("eval", _place(model), "--suite", names, "--out", str(out), *_words(options))
    return Report(Path(out), json.loads((Path(out) / "results.json").read_text(encoding="utf-8")))


def export(run: str | Path | Run, out: str | Path, **options: Any) -> Path:
    """Write a run's policy as a Hugging Face folder, as ``azr export`` does, and return it.

    ``options``: of the command, such as ``step=24``. Raises as `evaluate`.
    """
    _command("export", _place(run), str(out), *_words(options))
    return Path(out)


def _place(model: str | Path | Run) -> str:
    return str(model.path if isinstance(model, Run) else model)


def _words(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if value is not None and value is not False:
            yield f"--{name.replace('_', '-')}"
            if value is not True:
                yield str(value)


def _command(*words: str) -> None:
    """Run an azr command and print its lines as they come. Ctrl-C stops it as on a terminal."""
    command, last = [sys.executable, "-m", "azr", *words], ""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        while True:
            try:
                for line in process.stdout:
                    last = line.strip() or last
                    print(line, end="", flush=True)
                break
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)
    if process.returncode == _WRONG_INPUT:
        raise UserError(last.removeprefix("error: "))
    if process.returncode:
        raise RuntimeError(f"azr {words[0]} ended with exit code {process.returncode}: {last}")
