"""Choose the rows of a run's file that it can answer: their prompts fit and their graders exist."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from azr.config import Config
from azr.datasets.hub import rows_file
from azr.datasets.play import MARKS, graded_part
from azr.datasets.rows import DataRow, read_rows
from azr.environments.own import described, try_environment
from azr.environments.tool_calls import told
from azr.errors import UserError
from azr.evaluation.asking import may_run_python
from azr.evaluation.suites import hash_of
from azr.files import atomic_write
from azr.graders import check_graders
from azr.prompts.codec import PromptCodec
from azr.tasks.prompts import THINK, THOUGHT

FORMS_CHECKED = 200
"""Rows of a file whose traces are looked at: what is wrong with their form is wrong with nearly all of them."""


def load_rows(config: Config, codec: PromptCodec) -> tuple[list[DataRow], list[str]]:
    """Read the rows of `data.path` and choose among them. Raises UserError as both do."""
    return choose_rows(read_rows(rows_file(str(config.data.path)), config.data), config, codec)


def choose_rows(stored: Sequence[DataRow], config: Config, codec: PromptCodec) -> tuple[list[DataRow], list[str]]:
    """Return the rows of a file to train on, in their order, and lines on what is left out.

    Raises UserError when no row is left, none has traces that are to be trained on, a row cannot be written in the
    model's template or tokens, or a package that a grader needs is missing.
    """
    path, limit = config.data.path, config.rollout.max_prompt_tokens
    rows, own = [_told(row, config, codec) for row in stored], config.data.environment
    check_graders({each.name: each.question for row in reversed(rows) for each in row.graders if each.name != own})
    fitting = []
    for number, row in enumerate(rows, 1):
        try:
            if codec.turns_fit(row.turns, limit, row.tools or ()):
                fitting.append(row)
                for trace in row.traces if config.data.traces else ():
                    codec.check_trace(trace)
        except UserError as error:
            raise UserError(f"{path}, row {number}: {error}") from error
    if not fitting:
        raise UserError(f"Every prompt of {path} has over rollout.max_prompt_tokens={limit} tokens: raise it.")
    if own is not None:
        try_environment(own, fitting[0].given)
    for tools in [row.tools for row in fitting if row.tools is not None][:1]:
        codec.check_replies("tool" if tools else "user")
    traced = [row for row in fitting if row.traces]
    if config.data.traces and not traced:
        raise UserError(f"No row of {path} has traces, and data.traces is {config.data.traces}: set it to 0.")
    kept = fitting if config.data.samples else traced
    longest = config.rollout.max_response_tokens
    if not config.data.samples and not any(
        len(codec.trace_ids(trace, codec.converse(row.turns)[1])) <= longest for row in kept for trace in row.traces
    ):
        raise UserError(
            f"Every trace of {path} has over rollout.max_response_tokens={longest} tokens: raise it, or data.samples."
        )
    unread = sorted(frozenset().union(*(row.unread for row in rows)))
    left_out = f"of {len(rows):,} rows of {path} are left out"
    untraced = len(fitting) - len(traced)
    never_close = bool(config.data.traces) and bool(codec.converse(traced[0].turns)[1])
    never_close = never_close and not any(THOUGHT in trace for row in traced for trace in row.traces)
    answered = f"of {len(kept):,} rows of {path} have no traces: the policy answers once more for each that is lacking"
    notes = {
        f"{len(rows) - len(fitting):,} {left_out}: their prompts have over {limit} tokens": len(rows) - len(fitting),
        f"{untraced:,} {left_out}: they have no traces": untraced if not config.data.samples else 0,
        f"{untraced:,} {answered}": untraced if config.data.samples and config.data.traces else 0,
        f"no trace of {path} has {THOUGHT}, and prompts end with {THINK}: traces are learned as thoughts that "
        "never end; a model.template that opens no thinking would not do so": never_close,
        f"nothing reads these fields of {path}: {', '.join(unread)}": bool(unread),
    }
    notes |= _unasked(kept, config, codec) if config.data.samples else {}
    notes |= _misfits(traced, config, codec) if config.data.samples and config.data.traces else {}
    return kept, [note for note, count in notes.items() if count]


def _told(row: DataRow, config: Config, codec: PromptCodec) -> DataRow:
    """Return a row with what its prompt says of the tools that its answers have."""
    if (own := config.data.environment) is not None:
        return replace(row, tools=described(own)["tools"])
    if config.rollout.tools == "none" or not all(may_run_python(codec, each.question) for each in row.graders):
        return row
    turns, tools = told(row.turns, config.rollout.tools)
    return replace(row, turns=turns, tools=tools)


def _unasked(rows: Sequence[DataRow], config: Config, codec: PromptCodec) -> dict[str, int]:
    """Return a note on prompts that do not ask for the form that `math` reads, with their number among the first."""
    looked_at = [row for row in rows if any(each.name == "math" for each in row.graders)][:FORMS_CHECKED]
    prompts = [codec.decode(codec.converse(row.turns)[0]) for row in looked_at if config.reward.format != "thought"]
    count = sum(not any(mark in prompt for mark in ("\\boxed", *MARKS)) for prompt in prompts)
    note = (
        f"{count:,} of the first {len(looked_at):,} prompts for the grader math do not say where the answer is to be, "
        f"and one without a box is malformed: ask for \\boxed{{}}, or for {' or '.join(MARKS)} before it"
    )
    return {note: count}


def _misfits(traced: Sequence[DataRow], config: Config, codec: PromptCodec) -> dict[str, int]:
    """Return a note on traces that `reward.format` calls malformed, with their number among the first rows."""
    looked_at, form, reasons = traced[:FORMS_CHECKED], config.reward.format, Counter[str]()
    for row in looked_at:
        prompt = codec.decode(codec.converse(row.turns)[0])
        for trace in row.traces:
            parts = (graded_part(each.name, prompt, trace, form) for each in row.graders)
            if reason := next((reason for _, reason in parts if reason), None):
                reasons[reason.replace("_", " ")] += 1
    count = sum(reasons.values())
    why = ", ".join(f"{of_one} {reason}" for reason, of_one in reasons.most_common())
    note = (
        f"{count:,} traces of the first {len(looked_at):,} rows that have some are malformed by reward.format={form} "
        f"({why}) and will be paid so: thought asks for no answer tags, answer for no closed thinking"
    )
    return {note: count}


def keep_identity(record: Path, named: str) -> str:
    """Write which file a run answers, after `check_identity`. Return the file's SHA-256."""
    identity = check_identity(record, named)
    with atomic_write(record) as staging:
        staging.write_text(json.dumps(identity) + "\n", encoding="utf-8")
    return identity["sha256"]


def check_identity(record: Path, named: str) -> dict[str, str]:
    """Return `data.path` and the SHA-256 of its rows. Raises UserError if the run of this record began with other rows
    of this path. Another path is another choice."""
    identity = {"path": named, "sha256": hash_of(rows_file(named))}
    before = json.loads(record.read_text()) if record.is_file() else {}
    if before.get("path") == identity["path"] and before["sha256"] != identity["sha256"]:
        raise UserError(
            f"{named} has changed since the run began (SHA-256 {before['sha256'][:16]}…, now "
            f"{identity['sha256'][:16]}…): restore it, or give the new file another name."
        )
    return identity
