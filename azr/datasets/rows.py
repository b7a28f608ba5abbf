"""Read a file of questions to train on, described in `docs/data.md`, and decide in which order steps take its rows."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azr.config import DataConfig
from azr.environments.own import described
from azr.errors import UserError
from azr.evaluation.suites.files import ROW_ERRORS, Row
from azr.evaluation.suites.files import read_rows as read_lines
from azr.evaluation.suites.own import FIELDS, TOLERANCE, check_grader, check_text, gold
from azr.graders.own import is_own, states_rewards
from azr.graders.question import GraderName, Question
from azr.records import NO_ROWS_TAKEN, RowsLeft
from azr.tasks.registry import KINDS

if TYPE_CHECKING:
    from azr.prompts.chat_template import Tool, Turn  # It loads transformers.

FORMATS = (".jsonl", ".jsonl.gz", ".json", ".parquet")
SOURCE = "data"
"""Where a row comes from that does not say it."""
BY_NAME = DataConfig()
_OPTIONAL = ("grader", "source", "id", "traces", "asked", TOLERANCE)
_VERL = ("data_source", "reward_model", "ability")
_ROLES = ("system", "user", "assistant")
_OF_TURN = ("role", "content", "name")
_TURNS_AS_TEXT = re.compile(r"""(?:array\()?\[?\s*\{\s*['"](?:role|content|from|value)['"]\s*:.*[\]})]""", re.DOTALL)
_ROLE_AS_TEXT = re.compile(r"""['"](?:role|from)['"]\s*:\s*['"](?:system|developer|user|human|assistant|gpt)['"]""")
"""A list of turns as JSON, Python and NumPy write it, which a round trip through CSV leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGrader:
    """One of a row's graders, with its share of the score.

    Example: ``RowGrader(name="math", question=question, weight=0.8)``
    """

    name: GraderName
    question: Question
    """As this grader takes it; the suite is the row's source."""
    weight: float = 1.0

    @property
    def label(self) -> str:
        """Name of its part in a judgement and in metrics, in which a colon could not be."""
        return self.name.replace(":", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRow:
    """One question to train on."""

    turns: tuple[Turn, ...]
    """The conversation that the model continues; a user's turn is its last."""
    graders: tuple[RowGrader, ...]
    traces: tuple[str, ...] = ()
    """Whole responses of another model."""
    tools: Sequence[Tool] | None = None
    """What the chat template writes of tools into its prompt; None if nothing replies to its answers."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """All fields, as an environment takes them; empty without one."""
    unread: frozenset[str] = frozenset()
    """Fields of the file that nothing reads."""

    @property
    def states_rewards(self) -> bool:
        """Whether each of its graders is a reward function of TRL's or verl's form, whose number is the reward."""
        return all(states_rewards(each.name) for each in self.graders)

    @property
    def question(self) -> Question:
        """The question as the row's first grader takes it."""
        return self.graders[0].question


def grader_names(rows: Iterable[DataRow]) -> set[GraderName]:
    """Return the graders of all rows."""
    return {grader.name for row in rows for grader in row.graders}


def read_rows(path: Path, data: DataConfig = BY_NAME) -> list[DataRow]:
    """The rows of a file, in their order. Raises UserError when it cannot be read, with the number of the first row
    that is none, and for an empty file."""
    if not path.name.endswith(FORMATS):
        raise UserError(f"{path} is none of {', '.join(FORMATS)}: docs/data.md describes rows.")
    if not path.is_file():
        raise UserError(f"There is no file {path}: docs/data.md says how published data sets become rows.")
    rows, seen = list[DataRow](), dict[str, int]()
    for number, (row, _) in enumerate(stored_rows(path, data), 1):
        id = row.question.id
        if id in seen:
            why = f"the id {id!r} is that of row {seen[id]} too: take others by --data.fields id=NAME"
            raise UserError(f"{path}, row {number}: {why}.")
        seen[id] = number
        rows.append(row)
    if not rows:
        raise UserError(f"{path} holds no rows.")
    return rows


def stored_rows(path: Path, data: DataConfig = BY_NAME) -> Iterator[tuple[DataRow, Row]]:
    """Yield the rows of a file with their fields. Raises UserError with the number of the first that is none."""
    _pairs("data.fields", data.fields), _graders_of(data.grader)
    for number, fields in enumerate(read_lines(path), 1):
        try:
            row = read_row(fields, number, data)
        except ROW_ERRORS as error:
            raise UserError(f"{path}, row {number}: {str(error)[:400]}; docs/data.md describes rows.") from error
        yield row, fields


def read_row(stored: Row, number: int, data: DataConfig = BY_NAME) -> DataRow:
    """Return the row of a file that has these fields; one that is null, as parquet says it, is not there but for a
    user's grader. Raises one of `ROW_ERRORS`."""
    present = {name: value for name, value in stored.items() if value is not None}
    names, verl = _pairs("data.fields", data.fields), _of_verl(present)
    if lacking := [ours for ours, theirs in names.items() if theirs not in present]:
        raise _no_field(names[lacking[0]], lacking[0], present)
    renamed = {ours: present[theirs] for ours, theirs in names.items()}
    fields = verl | present | renamed
    own = data.environment
    stated = (present | renamed).get("grader", _graders_of(data.grader) or verl.get("grader"))
    if own is not None and described(own)["rewards"]:
        stated = own
    if stated is None:
        raise ValueError("it has no field 'grader': name one for all rows by --data.grader math or module:function")
    weights = _weights(stated)
    needed = {"prompt": "", **{name: grader for grader in weights for name in FIELDS.get(grader, ())}}
    if lacking := [name for name in needed if name not in fields]:
        raise _no_field(lacking[0], lacking[0], present, needed[lacking[0]])
    if "math" in weights and fields["answer"] in ("", []):
        raise ValueError("its answer is empty")
    check_text(fields)
    asked, id, turns = fields.get("asked", "output"), fields.get("id", number), _turns(fields["prompt"])
    if asked not in ("output", "input"):
        raise ValueError(f"asked is output or input, not {asked!r}")
    if not isinstance(id, str | int) or isinstance(id, bool):
        raise TypeError(f"its id {id!r} is neither text nor a whole number")
    source = _source(fields)
    question = Question(id=str(id), suite=source, group=source, message=turns[-1]["content"], gold=None)
    given = {name: stored | renamed if is_own(name) else fields for name in weights}
    golds = {name: replace(question, gold=gold(name, given[name], asked=asked)) for name in weights}
    graders = [RowGrader(name=name, question=golds[name], weight=weight) for name, weight in weights.items()]
    read = {names.get(name, name) for name in (*needed, *_OPTIONAL)} | ({*_VERL} if verl else set())
    unread = frozenset() if own or any(map(is_own, weights)) else frozenset(present) - read
    told = gold(own, stored | renamed) if own else {}
    traces = _traces(fields.get("traces", []))
    return DataRow(turns=turns, graders=tuple(graders), traces=traces, given=told, unread=unread)


def _of_verl(fields: Row) -> Row:
    """Return what a row of verl's form says, in our fields; empty for another row."""
    model = fields.get("reward_model")
    if not isinstance(model, dict) or "data_source" not in fields:
        return {}
    said = {"source": fields["data_source"], "answer": model.get("ground_truth")}
    said["grader"] = "math" if fields.get("ability") == "math" else None
    return {name: value for name, value in said.items() if value is not None}


def _no_field(name: str, ours: str, present: Row, grader: str = "") -> ValueError:
    needs = f", which the grader {grader} needs" if grader else ""
    return ValueError(f"it has no field {name!r}{needs}: take one of {', '.join(present)} by --data.fields {ours}=NAME")


def _source(fields: Row) -> str:
    """Return the prefix of a row's metrics."""
    stated = fields.get("source", SOURCE)
    source = re.sub(r"[^\w.-]+", "-", stated) if isinstance(stated, str) else ""
    if not source or source in (*KINDS, "eval"):
        raise ValueError(
            f"the source {stated!r} is not text, or names a kind or eval: take another by --data.fields source=NAME"
        )
    return source


@cache
def _pairs(option: str, entries: tuple[str, ...], otherwise: str = "") -> dict[str, str]:
    """Return what entries ``name=value`` of an option say. Raises UserError for another entry, or a name twice."""
    pairs = [
        (name, value if equals else otherwise) for name, equals, value in (each.partition("=") for each in entries)
    ]
    if not all(map(all, pairs)) or len(dict(pairs)) < len(pairs):
        raise UserError(f"{option} is {','.join(entries)}: write NAME=VALUE, with commas between, and no name twice.")
    return dict(pairs)


@cache
def _graders_of(entries: tuple[str, ...]) -> dict[GraderName, float] | None:
    """Return the weights of the graders that `data.grader` names. Raises UserError for what names none."""
    try:
        weights = {name: float(weight) for name, weight in _pairs("data.grader", entries, "1").items()}
        return _weights(weights) if weights else None
    except ValueError as error:
        raise UserError(f"data.grader is {','.join(entries)}: {error}; write NAME or NAME=WEIGHT.") from error


def _weights(grader: Any) -> dict[GraderName, float]:
    """Return the weight of each grader of a row, which names one, or several with their weights."""
    if not isinstance(grader, dict):
        check_grader(grader)
        return {grader: 1.0}
    stated = {name: weight for name, weight in grader.items() if weight is not None}  # what parquet fills in
    for name, weight in stated.items():
        check_grader(name)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 1e-6 <= weight <= 1e6:
            raise ValueError(f"the weight {weight!r} of its grader {name} is not a number from 0.000001 to 1,000,000")
    if not stated:
        raise ValueError("its grader names none: write one, or several with their weights")
    return {name: float(weight) for name, weight in stated.items()}


def _turns(prompt: Any) -> tuple[Turn, ...]:
    if isinstance(prompt, str):
        if _TURNS_AS_TEXT.fullmatch(prompt.strip()) and _ROLE_AS_TEXT.search(prompt):
            raise TypeError("its prompt is the text of a list of turns, and no list: write the list itself")
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not prompt:
        raise TypeError("its prompt is neither text nor a list of turns")
    for turn in prompt:
        if not isinstance(turn, dict) or turn.get("role") not in _ROLES or not isinstance(turn.get("content"), str):
            raise TypeError(f"a turn of its prompt has no role of {', '.join(_ROLES)}, or no content that is text")
        if more := sorted(name for name, value in turn.items() if name not in _OF_TURN and _says_something(value)):
            raise TypeError(f"a turn of its prompt has {', '.join(more)}, and a prompt shows its content alone")
    if prompt[-1]["role"] != "user" or not prompt[-1]["content"].strip():
        raise ValueError("its prompt does not end with a user's turn that says something")
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in prompt)


def _says_something(value: Any) -> bool:
    """Whether a value is more than what parquet fills in: null, empty, or an object of such values."""
    return any(map(_says_something, value.values())) if isinstance(value, dict) else bool(value)


def _traces(traces: Any) -> tuple[str, ...]:
    if not isinstance(traces, list) or not all(isinstance(each, str) and each.strip() for each in traces):
        raise TypeError("its traces are not a list of texts that say something")
    return tuple(traces)


class RowOrder:
    """Deals out a run's rows, and remembers for each step which were left of its epoch.

    The order of an epoch follows from the seed, the epoch and the number of rows. After a resume, `RowsLeft` of the
    checkpoint decides the rest of its epoch, so options may change meanwhile: rows that no longer fit are passed over,
    and rows that now fit join in the next epoch. Rows of another file begin an epoch.

    Example: ``order = RowOrder(["a", "b", "c"], "e3b0…", seed=1)``; ``order.take(1, 2)`` gives two pairs such as
    ``(0, 2)``, epoch and index of a row, and ``order.left_after(1)`` names the third row.
    """

    def __init__(self, ids: Sequence[str], file: str, seed: int, left: RowsLeft = NO_ROWS_TAKEN) -> None:
        """Begin with the rows that a checkpoint has left, by default those of a new run.

        ``ids``: ids of the rows, all different. ``file``: digest of their file.
        """
        assert ids, "there is no row to take"
        self._ids, self._file, self._seed = ids, file, seed
        if left.file == file:
            index_of = {id: index for index, id in enumerate(ids)}
            self._epoch, self._next = left.epoch, 0
            self._rows = [index_of[id] for id in left.ids if id in index_of]
        else:
            self._epoch, self._next = (left.epoch + 1 if left.file else 0), 0
            self._rows = epoch_order(self._epoch, len(ids), seed)
        self._after = [(0, self._epoch, self._rows, self._next)]
        """Positions after each step that took rows: step, epoch, rows of the epoch, index of the next of them."""

    def take(self, step: int, count: int) -> list[tuple[int, int]]:
        """Epoch and index of the next rows, both from 0; steps take theirs in their order, each at once or in parts. A
        step may take the last rows of an epoch and the first of the next."""
        assert step >= self._after[-1][0], f"step {step} takes its rows after step {self._after[-1][0]}"
        taken: list[tuple[int, int]] = []
        while len(taken) < count:
            if self._next == len(self._rows):
                self._epoch, self._next = self._epoch + 1, 0
                self._rows = epoch_order(self._epoch, len(self._ids), self._seed)
            taken.append((self._epoch, self._rows[self._next]))
            self._next += 1
        if self._after[-1][0] == step:
            self._after.pop()
        self._after.append((step, self._epoch, self._rows, self._next))
        return taken

    def left_after(self, step: int) -> RowsLeft:
        """Rows of the epoch that a run has left after this step, whatever later steps have taken meanwhile."""
        _, epoch, rows, start = next(after for after in reversed(self._after) if after[0] <= step)
        return RowsLeft(epoch=epoch, ids=tuple(self._ids[row] for row in rows[start:]), file=self._file)


@lru_cache(maxsize=2)
def epoch_order(epoch: int, count: int, seed: int) -> list[int]:
    """Indices of the rows in the order of this epoch."""
    return random.Random(f"data/{seed}/{epoch}").sample(range(count), count)
