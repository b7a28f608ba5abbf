"""Files of rows by the names that `data.path` takes: files, folders and data sets of the Hugging Face hub."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from azr.errors import UserError
from azr.evaluation.suites.files import Row
from azr.files import atomic_write
from azr.hardware import cache_folder
from azr.runs.model_folder import HUB_S, hub_errors, must_be_local

_FILES = (".parquet", ".jsonl", ".json", ".gz")
_DATA_SET = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?::(?P<split>[\w.-]+))?")


def is_on_hub(named: str) -> bool:
    """Whether a path can only be a data set of the hub: OWNER/NAME or OWNER/NAME/CONFIG, with or without :SPLIT."""
    match = _DATA_SET.fullmatch(named)
    return match is not None and not named.endswith(_FILES) and not must_be_local(match["name"])


@cache
def rows_file(named: str) -> Path:
    """Return the file that is named, or the rows of a folder or a data set of the hub as JSON lines in the cache.
    Raises UserError if the package `datasets` or the data set is missing, or the hub does not answer."""
    place, _, split = named.partition(":")
    if is_on_hub(named):
        owner, name, *subset = place.split("/")
        source = [f"{owner}/{name}", *subset]
    elif Path(place).is_dir():
        source = [str(Path(place).resolve())]
    elif "://" in named:
        raise UserError(f"{named} is an address: get the file, or name a data set of the hub as OWNER/NAME.")
    else:
        return Path(named)
    if find_spec("datasets") is None:
        raise UserError(f"{named} takes the package datasets: run pip install -e '.[hub]' in the clone.")
    from huggingface_hub import HfApi, constants

    with hub_errors(f"{named} is not a file, and no data set that can be read (HF_HUB_OFFLINE=1 uses the cache alone)"):
        if is_on_hub(named) and not constants.HF_HUB_OFFLINE:
            HfApi().dataset_info(source[0], timeout=HUB_S)  # `datasets` would try for half a minute
        rows = importlib.import_module("datasets").load_dataset(*source, split=split or "train")
    name = "--".join([*source, split or "train", rows._fingerprint]).replace("/", "--")
    out = cache_folder() / "rows" / f"{name}.jsonl"
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        write_rows(out, rows)
    return out


def write_rows(out: Path, rows: Iterable[Row]) -> None:
    """Write JSON lines, with gzip for a name in ``.gz``; the file appears under its name when all rows are in it.
    Raises UserError when there is no room."""
    try:
        with atomic_write(out) as staging, staging.open("wb") as plain:
            # Without name and time the same rows are the same bytes.
            is_packed = out.name.endswith(".gz")
            with gzip.GzipFile("", "wb", 6, plain, 0) if is_packed else contextlib.nullcontext(plain) as file:
                file.writelines(f"{json.dumps(row, ensure_ascii=False, default=str)}\n".encode() for row in rows)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): name another file.") from error
