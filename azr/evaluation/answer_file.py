"""Answers of an evaluation on disk: gzipped JSON lines that grow with it and can be resumed after a kill."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from azr.errors import UserError
from azr.records import Sample
from azr.runs.sample_file import CUT_SHORT, json_line, read_members, read_sample, sample_line
from azr.text import brief

ANSWERS = "answers.jsonl.gz"
"""File name in a folder of `azr eval`."""
_LONGEST_PROTOCOL = 1 << 16
"""Bytes; a longer file that begins with no whole protocol is not an evaluation's."""


def without_texts(answer: Sample) -> Sample:
    """Return a sample without the texts, of which memory could not hold hundreds of thousands."""
    judgement = None if answer.judgement is None else replace(answer.judgement, answer=None)
    return replace(answer, prompt="", response="", judgement=judgement)


class AnswerFile(AbstractContextManager["AnswerFile"]):
    """File of answers in the order of their grading. All answers to a question are written at once or not at all."""

    def __init__(self, path: Path, protocol: Mapping[str, Any]) -> None:
        """Create the file, or open that of an unfinished evaluation and cut off its last line if it is incomplete.

        ``protocol``: settings that decide the answers; the file's first line.

        Raises UserError when the file has another protocol, is damaged, or another process writes into it.
        """
        self.path = path
        self.answers: list[Sample] = []
        """Without their texts, see `without_texts`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: after a failed write no bytes wait for the next one.
        self._file = path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end, earlier, self.answers = _read(path, texts=False)
            stated = json.loads(json.dumps(protocol))  # JSON turns tuples into lists.
            before = stated if earlier is None else earlier
            for name in before | stated:
                was, now = before.get(name), stated.get(name)
                if was != now:
                    raise UserError(
                        f"{path.parent} holds an evaluation with another {name.replace('_', ' ')} ({brief(was)}, "
                        f"now {brief(now)}): use the same options, or another --out."
                    )
            self._file.truncate(end)
            if earlier is None:
                self._write([json_line({"protocol": protocol})])
        except BaseException as error:
            self._file.close()
            if isinstance(error, BlockingIOError):
                raise UserError(
                    f"Another azr eval writes into {path.parent}: wait, or choose another --out."
                ) from error
            raise

    @property
    def questions(self) -> set[tuple[str, str]]:
        """Suite and id of every answered question."""
        return {(answer.kind, answer.problem_id) for answer in self.answers}

    def add(self, answers: Sequence[Sample]) -> None:
        """Write all answers to one question. Raises UserError when the disk is full."""
        self._write(map(sample_line, answers))
        self.answers += map(without_texts, answers)

    def _write(self, lines: Iterable[bytes]) -> None:
        data = memoryview(gzip.compress(b"".join(lines), 6, mtime=0))
        end = self._file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self._file.truncate(end)
            raise UserError(f"{self.path} cannot be written ({error.strerror}): make room, then --resume.") from error

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_answers(path: Path, *, texts: bool = True) -> tuple[dict[str, Any], list[Sample]]:
    """Return protocol and answers of a finished or unfinished evaluation, without changing the file.

    ``texts``: keep prompts and responses, which take most of the memory.
    Raises UserError when the file does not exist or is not one of answers.
    """
    if not path.is_file():
        raise UserError(f"There is no evaluation in {path.parent}: give a folder that azr eval has written.")
    _, protocol, answers = _read(path, texts=texts)
    if protocol is None:
        raise UserError(f"{path} holds no answers of an evaluation.")
    return protocol, answers


def _read(path: Path, *, texts: bool) -> tuple[int, dict[str, Any] | None, list[Sample]]:
    """Return the number of complete bytes, the protocol (None in an empty file) and the answers."""
    whole, protocol, damage = 0, None, ""
    answers: list[Sample] = []
    try:
        for _, end, text, damage in read_members(path):
            if damage:
                break
            whole, lines = end, [line for line in text.split(b"\n") if line]
            if protocol is None:
                protocol = json.loads(lines[0])["protocol"]
            else:
                found = map(read_sample, lines)
                answers += found if texts else map(without_texts, found)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(f"{path} holds no answers of an evaluation ({error!r}).") from error
    # A kill leaves a truncated file, not a damaged one. Answers may follow the damage, so keep them.
    is_damaged = damage not in ("", CUT_SHORT)
    if whole == 0 and (is_damaged or path.stat().st_size > _LONGEST_PROTOCOL):
        raise UserError(f"{path} holds no answers of an evaluation: choose another --out.")
    if is_damaged:
        raise UserError(
            f"{path} is damaged after byte {whole}: restore a copy, or use truncate -s {whole}, then --resume."
        )
    return whole, protocol, answers
