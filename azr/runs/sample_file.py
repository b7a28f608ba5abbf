"""Files of a run: samples as `azr.records.Sample` declares them, and logs that only grow, whose every line is
whole on disk as soon as its call returns."""

from __future__ import annotations

import gzip
import json
import math
import mmap
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from blake3 import blake3

from azr.errors import UserError
from azr.files import atomic_write, open_regular
from azr.records import Completion, PromptIds, Sample, Task
from azr.text import map_texts

Decode = Callable[[PromptIds], str]
"""Token ids to text, special tokens included. Called from a thread."""
FIELDS = tuple(each.name for each in fields(Sample) if each.metadata.get("in_files", True))
"""Fields of a line."""
SCHEMA: int = next(each.default for each in fields(Sample) if each.name == "schema")  # type: ignore[assignment]
COMPRESSION = 3
"""gzip's level for samples. Of 4 KB with 2 KB of mathematics as people write it, level 1 makes 986 bytes in 0.025 ms
of CPU, 3 makes 923 in 0.032, 5 makes 804 in 0.052 and 6 makes 796 in 0.079."""
_PIECE = 1 << 16
"""Bytes that are decompressed at a time: zlib copies what comes after the end of a member."""
MAX_TOKENS = 2000
"""Most tokens of a response that are written one by one."""
MEMBER_BYTES = 1 << 18
"""Bytes of lines, before they are compressed, after which a new gzip member begins."""
_decoder = cache(msgspec.json.Decoder)
T = TypeVar("T")


def write_samples(path: Path, step: int, samples: Sequence[Sample], decode: Decode) -> None:
    """Fill in step and texts of a step's samples and write them as gzipped JSON lines. Blocks.

    The file appears under its name when it is complete. It consists of gzip members of some lines each, so that a
    reader gets at one sample without reading them all.
    """
    ids, prompt = None, ""
    lines, size = list[bytes](), 0
    with atomic_write(path) as staging, staging.open("wb") as file:
        for sample in samples:
            if sample.completion.prompt_ids is not ids:  # samples of one group share the array
                ids = sample.completion.prompt_ids
                prompt = decode(ids)
            sample.step, sample.prompt = step, prompt
            sample.response, sample.observed = text_and_spans(sample.completion, decode)
            if sample.tokens:
                written = sample.completion.response_ids[sample.completion.is_sampled]
                texts = token_texts(written[:MAX_TOKENS].tolist(), decode)
                sample.tokens = [(text, *each[1:]) for text, each in zip(texts, sample.tokens, strict=False)]
            lines.append(sample_line(sample))
            size += len(lines[-1])
            if size >= MEMBER_BYTES:
                file.write(gzip.compress(b"".join(lines), COMPRESSION, mtime=0))
                lines, size = [], 0
        if lines or not file.tell():
            file.write(gzip.compress(b"".join(lines), COMPRESSION, mtime=0))


def text_and_spans(completion: Completion, decode: Decode) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a response, and where in it an environment wrote: begins and ends, in characters."""
    if not completion.observed:
        return decode(completion.response_ids) if completion.text is None else completion.text, []
    text, spans, end = "", list[tuple[int, int]](), 0
    for start, stop in completion.observed:
        text += decode(completion.response_ids[end:start])
        observed = decode(completion.response_ids[start:stop])
        spans.append((len(text), len(text) + len(observed)))
        text, end = text + observed, stop
    return text + decode(completion.response_ids[end:]), spans


def token_texts(ids: Sequence[int], decode: Decode) -> Iterator[str]:
    """Yield the text of each token, which may depend on those before it; a character is its last token's."""
    for at in range(len(ids)):
        near = ids[max(0, at - 4) : at + 1]
        yield decode(near)[len(decode(near[:-1]).rstrip("\ufffd")) :]


def sample_line(sample: Sample) -> bytes:
    """Return the sample's line. Raises ValueError if a number of it is NaN or infinite."""
    return json_line({name: getattr(sample, name) for name in FIELDS})


def json_line(record: Mapping[str, object]) -> bytes:
    """Return a record, which may hold dataclasses, as a line of JSON. Raises ValueError for NaN and infinity."""
    text = json.dumps(
        record, allow_nan=False, ensure_ascii=False,
        # `dataclasses.asdict` would copy every text and number.
        default=lambda each: {field.name: getattr(each, field.name) for field in fields(each)},
    )  # fmt: skip
    # A lone surrogate, which a program's text may hold, becomes the JSON escape that reads back as itself.
    return f"{text}\n".encode("utf-8", "backslashreplace")


def read_record(line: bytes, kind: type[T]) -> T:
    """Return the record of a line; half a surrogate pair in a text becomes its escape. Raises ValueError, with a
    sentence, for a line that holds none."""
    try:
        record: T = _decoder(kind).decode(line)  # type: ignore[arg-type]
        return record
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            return msgspec.convert(map_texts(json.loads(line), clean), kind)  # msgspec refuses half a surrogate pair
        except (ValueError, RecursionError) as error:  # msgspec.ValidationError is a ValueError
            raise ValueError(f"it is not a {kind.__name__} ({error})") from error


def read_sample(line: bytes) -> Sample:
    """Return the sample of a line. Raises ValueError as `read_record`, and for a sample of another schema."""
    sample = read_record(line, Sample)
    if sample.schema != SCHEMA:
        raise ValueError(f"it has schema {sample.schema}, and this version of azr reads schema {SCHEMA}")
    return sample


CUT_SHORT = "it is cut short"


class Member(NamedTuple):
    """A part of a file of lines that was compressed by itself."""

    begin: int
    end: int
    """Bytes of the file."""
    text: bytes
    damage: str
    """What is wrong with it; empty if it is whole."""


def read_members(path: Path, at: int = 0, most: float = math.inf) -> Iterator[Member]:
    """Yield the gzip members of a file from a byte on, the last of them as far as it can be read.

    ``most``: longest text of a member, bytes. Raises OSError.
    """
    end, damage = at, ""
    with open_regular(path) as file:
        while not damage:
            begin, text, reader = file.seek(end), bytearray(), zlib.decompressobj(wbits=31)
            try:
                while not reader.eof and (piece := file.read(_PIECE)):
                    text += reader.decompress(piece)
                    if len(text) > most:
                        raise zlib.error(f"a part of it unpacks to over {int(most) >> 20} MiB")
                    end += len(piece) - len(reader.unused_data)
                if end == begin:
                    return
                damage = "" if reader.eof else CUT_SHORT
            except zlib.error as error:
                damage = f"it is damaged ({error})"
            yield Member(begin, end, bytes(text), damage)


def clean(text: str) -> str:
    """Return a text that UTF-8 can hold: half a surrogate pair becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode() if not text.isascii() else text


_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class FileOffset:
    """A place in a file that only grows: its first bytes, which have this BLAKE3 digest. The default is the start."""

    size: int = 0
    digest: str = blake3().hexdigest()

    def check(self, path: Path) -> blake3:
        """Return a hasher that has read up to here, for what comes next; the file may have grown. Raises UserError when
        the file no longer begins as it did."""
        hasher, left = blake3(), self.size
        try:
            # A run that was killed before its first line may have no file at all.
            if left:
                with open_regular(path) as file:
                    while left and (chunk := file.read(min(left, _CHUNK))):
                        hasher.update(chunk)
                        left -= len(chunk)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}), so the run cannot continue.") from error
        if left or hasher.hexdigest() != self.digest:
            raise UserError(f"{path} was altered since the checkpoint was saved, so the run cannot continue from it.")
        return hasher

    def truncate(self, path: Path, aside: Path) -> None:
        """Move what came later into the file ``aside``, which is made if there is anything."""
        if not path.exists() or path.stat().st_size <= self.size:
            return
        with path.open("rb") as file, aside.open("wb") as kept:
            file.seek(self.size)
            shutil.copyfileobj(file, kept)
            kept.flush()
            os.fsync(kept.fileno())
        os.truncate(path, self.size)


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """How far the logs had come that grow with every step; the default is the start of a run."""

    metrics: FileOffset = FileOffset()
    tasks: FileOffset = FileOffset()


class JsonLines:
    """An append-only file of JSON objects, hashed as it grows."""

    def __init__(self, path: Path, offset: FileOffset = FileOffset()) -> None:
        """Append to a file that ends at ``offset``, or to a new one. Raises as `FileOffset.check`."""
        self._hasher, self._size = offset.check(path), offset.size
        assert not path.exists() or path.stat().st_size == offset.size, f"{path} continues after its offset"
        self._file = path.open("ab", buffering=0)

    def write(self, records: Iterable[Mapping[str, object]]) -> None:
        """One write per line, so that a killed process leaves no half of one behind. Raises ValueError for a number
        that is NaN or infinite, of whose record nothing is written, and OSError when a line could not be written."""
        for record in records:
            line = json_line(record)
            if self._file.write(line) != len(line):
                raise OSError(f"{self._file.name} could not be written: the disk is full")
            self._hasher.update(line)
            self._size += len(line)

    def offset(self) -> FileOffset:
        """How far the file has come."""
        return FileOffset(self._size, self._hasher.hexdigest())

    def sync(self) -> None:
        """Returns when everything written is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Steps of ``metrics.jsonl`` with their numbers."""
    return [(record.pop("step"), record) for record in _records(path)]


def read_tasks(path: Path) -> list[Task]:
    """Tasks of ``tasks.jsonl``: every one that entered the buffer, in order."""
    return [msgspec.convert(record, Task) for record in _records(path)]


def newest_tasks(path: Path, kinds: Collection[str]) -> Iterator[Task]:
    """Tasks of ``tasks.jsonl``, the newest first, of these `kinds`, from which the caller may take some meanwhile."""
    with path.open("rb") as file:
        text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
        end = text.rfind(b"\n")
        while end > 0 and kinds:
            start = text.rfind(b"\n", 0, end) + 1
            record, end = json.loads(text[start:end]), start - 1
            if record["kind"] in kinds:
                yield msgspec.convert(record, Task)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_bytes().split(b"\n")[:-1])
