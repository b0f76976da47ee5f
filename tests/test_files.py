"""Files are written whole or not at all, whoever else writes them and whatever the disk says."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors import SafetensorError

from clocs.errors import ClocsError, FileError, StoreError
from clocs.files import (
    csv_cell,
    csv_text,
    csv_value,
    kept,
    leftovers,
    replacing,
    write_atomic,
    writing,
)
from clocs.sealed import ArrayFile


def test_two_writers_of_one_file_share_no_unfinished_file(tmp_path: Path) -> None:
    path = tmp_path / "made.parquet"
    with replacing(path) as slow:
        slow.write_bytes(b"slow: begin")
        with replacing(path) as quick:
            assert quick != slow
            quick.write_bytes(b"quick")
        assert path.read_bytes() == b"quick"
        with slow.open("ab") as file:  # the other writer did not take it for a leftover
            file.write(b", end")
    assert path.read_bytes() == b"slow: begin, end"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed_by_the_next_and_only_that(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    code = (
        "import os, signal, sys; from pathlib import Path; from clocs.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n"
        "    file.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(leftovers(path)) == 1
    (tmp_path / ".a.json.partial").write_text("of an earlier version")
    (tmp_path / ".ab.json.partial").write_text("of another file")
    write_atomic(path, b"{}")
    assert sorted(one.name for one in tmp_path.iterdir()) == [".ab.json.partial", "a.json"]


def test_an_interrupted_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as temporary:
        temporary.write_bytes(b"new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        pl.exceptions.ComputeError("parquet: No space left on device (os error 28)"),
        SafetensorError("Error while serializing: I/O error: (os error 28)"),
        RuntimeError("Error in write: No space left on device"),
        sqlite3.OperationalError("database or disk is full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_disk_is_named_with_its_remedy_whichever_library_met_it(error: Exception) -> None:
    words = "here cannot be written: the disk is full; free some"
    with pytest.raises(FileError, match=words), writing("here"):
        raise error


def test_other_errors_while_writing_stay_what_they_are() -> None:
    with pytest.raises(ClocsError, match=r"^disk is full of wonders$"), writing("here"):
        raise ClocsError("disk is full of wonders")
    with pytest.raises(ZeroDivisionError), writing("here"):
        raise ZeroDivisionError


def test_a_folder_that_is_missing_is_reported_under_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        write_atomic(tmp_path / "nowhere" / "a.json", b"")
    assert f"{os.sep}a.json cannot be written: it does not exist" in str(caught.value)


def test_an_array_under_another_name_is_damage(tmp_path: Path) -> None:
    path, kind = tmp_path / "file", ArrayFile("a file", "facts", 1, "make it again")
    kind.write(path, {}, {"one": np.zeros(3), "two": np.ones(3)})
    path.write_bytes(path.read_bytes().replace(b'"one":', b'"six":'))
    with pytest.raises(StoreError, match="its arrays differ from their checksum"):
        kind.read(path)


@pytest.mark.parametrize(
    "text",
    ["=cmd|'/C calc'!A0", "+1+2", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "-", "-x"],
)
def test_no_spreadsheet_runs_a_cell_and_the_cell_is_read_back(text: str) -> None:
    assert csv_cell(text) == f"'{text}"
    assert csv_value(f"'{text}") == text


@pytest.mark.parametrize("text", ["-0.5", "+1e-3", "-5", ".5", "'tis", "AF", "x=1", ""])
def test_numbers_and_plain_words_stay_as_they_are_in_csv(text: str) -> None:
    assert csv_cell(text) == csv_value(text) == text


def test_csv_has_numbers_lists_and_nothing() -> None:
    made = csv_text(("a", "=b"), [[-0.5, ["=x", "y"]], [None, "1,2"]])
    assert made == "a,'=b\n-0.5,'=x;y\n,\"1,2\"\n"


def test_every_csv_file_is_written_through_one_function() -> None:
    source = Path(__file__).resolve().parent.parent / "src"
    texts = {path.name: path.read_text("utf-8") for path in source.rglob("*.py")}
    words = ("csv.writer(", "DictWriter", ".write_csv(")
    writers = {name for name, text in texts.items() if any(word in text for word in words)}
    assert writers == {"files.py", "rows.py"}
    assert "csv_cell" in texts["rows.py"]


def test_what_was_read_is_kept_until_the_file_or_its_card_changes(tmp_path: Path) -> None:
    file, card = tmp_path / "one.safetensors", tmp_path / "one.json"
    calls: list[Path] = []
    write_atomic(file, b"1")

    def read(path: Path) -> tuple[bytes, bool]:
        calls.append(path)
        return path.read_bytes(), card.exists()

    assert [kept(read, file) for _ in range(3)] == [(b"1", False)] * 3
    write_atomic(card, b"{}")
    assert [kept(read, file) for _ in range(3)] == [(b"1", True)] * 3
    write_atomic(file, b"2")
    assert [kept(read, file) for _ in range(3)] == [(b"2", True)] * 3
    assert len(calls) == 3
    file.unlink()
    with pytest.raises(FileNotFoundError):
        kept(read, file)
