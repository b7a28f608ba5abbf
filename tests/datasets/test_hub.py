"""A data set of the hub, or a folder of one, becomes rows by the package `datasets`."""

import io
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from azr.datasets import hub
from azr.datasets.hub import is_on_hub, rows_file
from azr.datasets.rows import read_rows
from azr.errors import UserError
from tests.graders.grading import needs
from tests.hub_server import azr, open_hub

ROWS = [{"id": str(a), "prompt": f"{a} + 1?", "grader": "math", "answer": str(a + 1)} for a in range(5)]
NAME = st.text("abcXYZ019_-.", min_size=1, max_size=8).map(lambda text: f"zz{text}zz")


@pytest.fixture
def datasets() -> None:
    needs("datasets", "hub")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows_file.cache_clear()


def parquet(rows: list[dict[str, str]]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


@given(NAME, NAME, st.none() | NAME, st.none() | NAME)
def test_an_id_has_an_owner_and_perhaps_a_configuration_and_a_split(owner, name, subset, split) -> None:
    id = f"{owner}/{name}" + (f"/{subset}" if subset else "") + (f":{split}" if split else "")
    assert is_on_hub(id)
    assert not any(map(is_on_hub, (f"{id}.jsonl", f"./{id}", f"/{id}", owner)))


def test_a_folder_that_is_there_is_no_id_and_a_missing_package_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_on_hub("own/rows")
    (tmp_path / "own").mkdir()
    assert not is_on_hub("own/rows") and rows_file("own/rows.jsonl") == Path("own/rows.jsonl")
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^https://hub/me/rows is an address: get the file, or name"):
        rows_file("https://hub/me/rows")
    with pytest.raises(UserError, match=r"takes the package datasets: run pip install -e '\.\[hub\]' in the clone"):
        rows_file("me/rows")


@pytest.mark.usefixtures("datasets")
def test_a_folder_holds_splits(tmp_path: Path) -> None:
    (tmp_path / "set" / "data").mkdir(parents=True)
    for split, rows in (("train", ROWS), ("test", ROWS[:2])):
        (tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet").write_bytes(parquet(rows))
    assert [row.question.id for row in read_rows(rows_file(str(tmp_path / "set")))] == [row["id"] for row in ROWS]
    assert len(read_rows(rows_file(f"{tmp_path / 'set'}:test"))) == 2
    written = rows_file(str(tmp_path / "set")).stat().st_mtime_ns
    rows_file.cache_clear()
    assert rows_file(str(tmp_path / "set")).stat().st_mtime_ns == written, "the next start writes no row again"
    (tmp_path / "set" / "data" / "train-00000-of-00001.parquet").write_bytes(parquet(ROWS[:3]))
    rows_file.cache_clear()
    assert len(read_rows(rows_file(str(tmp_path / "set")))) == 3
    with pytest.raises(UserError, match=r'set:nosuch is not a file, and no data set .*: Unknown split "nosuch"'):
        rows_file(f"{tmp_path / 'set'}:nosuch")


@pytest.mark.usefixtures("datasets")
def test_a_data_set_of_the_hub_is_read(tmp_path: Path) -> None:
    out, against = tmp_path / "rows.jsonl", ("--against", tmp_path)
    (tmp_path / "gsm8k.jsonl").write_text('{"question": "4 + 1?", "answer": "#### 5"}\n')
    with open_hub({"data/train-00000-of-00001.parquet": parquet(ROWS)}) as hub:
        done = azr(hub, tmp_path, "data", "me/rows", out, *against)
        assert done.returncode == 0, done.stderr
        missing = azr(hub, tmp_path, "data", "me/nosuch", tmp_path / "no.jsonl", *against)
    assert [json.loads(line)["answer"] for line in out.read_text().splitlines()] == ["1", "2", "3", "4"]
    assert missing.returncode == 2 and missing.stderr.startswith("error: me/nosuch is not a file, and no data set")
    gone = azr(hub, tmp_path, "data", "me/rows:test", tmp_path / "no.jsonl", *against)
    assert gone.returncode == 2 and "Connection refused" in gone.stderr and gone.stderr.count("\n") == 1
