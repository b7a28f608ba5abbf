"""Lines of rollout and evaluation files: samples as `azr.records.Sample` declares them, read back from any schema."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import msgspec

from azr.records import VALID, FinishReason, PromptIds, Role, Sample

Decode = Callable[[PromptIds], str]
"""Token ids to text, special tokens included. Called from a thread."""
FIELDS = tuple(each.name for each in fields(Sample) if each.metadata.get("in_files", True))
"""Fields of a line."""
SCHEMA: int = next(each.default for each in fields(Sample) if each.name == "schema")  # type: ignore[assignment]
COMPRESSION = 3
"""gzip's level for samples. Of 4 KB with 2 KB of mathematics as people write it, level 1 makes 986 bytes in 0.025 ms
of CPU, 3 makes 923 in 0.032, 5 makes 804 in 0.052 and 6 makes 796 in 0.079."""
MEMBER_BYTES = 1 << 18
"""Bytes of lines, before they are compressed, after which a new gzip member begins."""
_DECODER = msgspec.json.Decoder(Sample)
_ANSWER_FIELDS = {"suite", "question", "sample", "tokens", "truncated", "verdict", "answer", "parts"}
"""Fields of an answer of an evaluation, before it was a sample, that a sample does not have."""


def write_samples(path: Path, step: int, samples: Sequence[Sample], decode: Decode) -> None:
    """Fill in step and texts of a step's samples and write them as gzipped JSON lines. Blocks.

    The file appears under its name when it is complete. It consists of gzip members of some lines each, so that a
    reader gets at one sample without reading them all.
    """
    staging = path.with_name(f".{path.name}")
    ids, prompt = None, ""
    lines, size = list[bytes](), 0
    with staging.open("wb") as file:
        for sample in samples:
            if sample.completion.prompt_ids is not ids:  # samples of one group share the array
                ids = sample.completion.prompt_ids
                prompt = decode(ids)
            sample.step, sample.prompt, sample.response = step, prompt, decode(sample.completion.response_ids)
            lines.append(sample_line(sample))
            size += len(lines[-1])
            if size >= MEMBER_BYTES:
                file.write(gzip.compress(b"".join(lines), COMPRESSION, mtime=0))
                lines, size = [], 0
        if lines or not file.tell():
            file.write(gzip.compress(b"".join(lines), COMPRESSION, mtime=0))
    os.replace(staging, path)


def sample_line(sample: Sample) -> bytes:
    """Return the sample's line. Raises ValueError if a number of it is NaN or infinite."""
    return json_line({name: getattr(sample, name) for name in FIELDS})


def json_line(record: Mapping[str, object]) -> bytes:
    """Return a record, which may hold dataclasses, as a line of JSON. Raises ValueError for NaN and infinity."""
    text = json.dumps(record, allow_nan=False, ensure_ascii=False, default=asdict)
    # A lone surrogate, which a program's text may hold, becomes the JSON escape that reads back as itself.
    return f"{text}\n".encode("utf-8", "backslashreplace")


def read_sample(line: bytes) -> Sample:
    """Return the sample of a line; half a surrogate pair in a text becomes its escape.

    Raises ValueError, with a sentence, for a line that holds no sample or one of a newer schema.
    """
    try:
        sample = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            sample = msgspec.convert(_upgraded(_tree(line)), Sample)
        except (ValueError, RecursionError) as error:  # msgspec.ValidationError is a ValueError
            raise ValueError(f"it is no Sample ({error})") from error
    if sample.schema > SCHEMA:
        raise ValueError(f"schema {sample.schema} is newer than {SCHEMA}: update azr")
    return sample


def _tree(line: bytes) -> Any:
    """JSON's tree of a line."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return cleaned(json.loads(line))  # msgspec refuses JSON's escape of half a surrogate pair


def _upgraded(record: Any) -> Any:
    """Return a record of schema 1 to 3, or an answer of an evaluation at that time, with the fields of `Sample`; any
    other as it is."""
    if isinstance(record, dict) and record.keys() >= _ANSWER_FIELDS:
        return _upgraded_answer(record)
    if not isinstance(record, dict) or "task_id" not in record:
        return record
    verdict = record.get("outcome") or _verdict_by_reward(record)
    judgement = {"verdict": verdict, "detail": record.get("detail", ""), "answer": record.get("answer")}
    return record | {
        "schema": record.get("schema", 1),
        "problem_id": record["task_id"],
        "judgement": judgement if verdict else None,
        "used": "trained" if record.get("trained", True) else "recorded",
    }


def _upgraded_answer(record: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of an evaluation before it was a sample, with the fields of `Sample`."""
    verdict, answer = record["verdict"], record["answer"]
    is_graded = verdict != "ungraded"
    unfinished = FinishReason.LENGTH if record["tokens"] else FinishReason.GIVEN_UP
    return record | {
        "role": Role.SOLVER,
        "kind": record["suite"],
        "problem_id": record["question"],
        "index": record["sample"],
        "response_tokens": record["tokens"],
        "finish_reason": unfinished if record["truncated"] else FinishReason.STOP,
        "judgement": {
            "verdict": verdict,
            "answer": None if answer is None else [("answer", answer)],
            "parts": record["parts"],
        },
        "accuracy": float(verdict == "right") if is_graded else None,
        "used": "recorded" if is_graded else "ungraded",
    }


def _verdict_by_reward(record: dict[str, Any]) -> str:
    """Return the verdict that the parts of the reward imply; schema 1 has no other."""
    parts = record.get("reward_parts") or {}
    names = [name for name in parts if name != "overlong"]
    if record.get("role") == Role.SOLVER:
        return names[0] if names else ""
    return names[0] if len(names) == 1 and parts[names[0]] < 0 else VALID


def clean(text: str) -> str:
    """Return a text that UTF-8 can hold: half a surrogate pair becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode() if not text.isascii() else text


def cleaned(tree: Any) -> Any:
    """Return JSON's tree with texts that UTF-8 can hold."""
    if isinstance(tree, str):
        return clean(tree)
    if isinstance(tree, list):
        return [cleaned(each) for each in tree]
    if isinstance(tree, dict):
        return {clean(key): cleaned(value) for key, value in tree.items()}
    return tree
