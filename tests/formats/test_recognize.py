"""Files are recognized by what they hold; their names help."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocs.errors import SettingError, SourceError, UnusableError
from clocs.formats import read as formats
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.read import Found, find_recordings, format_of, read, read_several
from clocs.formats.source import Source, open_source
from clocs.formats.wfdb_header import is_header
from clocs.recording import Recording
from wfdb_files import signals, write, write_mat


def _named(source: Source, path: str, options: ReadOptions) -> Recording:
    """A made-up format: 'FAKE', then the number of recordings in the file."""
    count = int(source.read(path)[4:])
    if int(options.part or 0) >= count:
        raise UnusableError("unreadable", f"{path} has no part {options.part}")
    digital = np.arange(100, dtype=np.int16).reshape(1, -1) + int(options.part or 0)
    zero = np.zeros(1, np.int32)
    return Recording(f"r{options.part}", "r", ("II",), 500.0, digital, np.full(1, 100.0), zero)


def _parts(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    try:
        return [Part(str(i)) for i in range(int(source.read(path)[4:]))]
    except ValueError:
        raise UnusableError("unreadable", f"{path} counts nothing") from None


FAKE = FileFormat(
    "Fake",
    ".fake",
    _named,
    other_suffixes=(".fk",),
    recognize=lambda head: head[:4] == b"FAKE",
    parts=_parts,
)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(formats.FORMATS, "Fake", FAKE)


def test_a_header_is_recognized_under_any_name(tmp_path: Path) -> None:
    header = write(tmp_path, signals())
    whole = read(header)
    for name in ("r.txt", "r.csv", "header", "r.ecg"):
        shutil.copy(header, tmp_path / name)
        assert np.array_equal(read(tmp_path / name).digital, whole.digital)


def test_text_that_is_no_ecg_is_none(tmp_path: Path) -> None:
    for name, text in {
        "README": "PTB-XL 1 is a dataset\nread more.at 16 places",
        "RECORDS": "a/1\na/2\n",
        "notes.txt": "patient 7 was well\n",
        "SHA256SUMS.txt": f"{'0' * 64} 100.dat\n{'1' * 64} 100.hea\n",
        "x.py": "import os\n",
    }.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match="holds no recording"):
        raise find_recordings([tmp_path])[0][1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("r 1 500\nr.dat 16\n", True),
        ("# a comment\n\nr 1 500\nr.dat 212\n", True),
        ("r/2 2 500 600\np1 300\n~ 300\n", True),
        ("r 2 500 600\n~ 0 200 16 0\nr.dat 16\n", False),
        ("100 2 360 650000 0:0:0 0/0/0\n100.dat 212 200 11 1024 995 -22131 0 MLII\n", True),
        ("r 1 500\n", False),
        ("1 2 3\n4 5 6\n", False),
        ("1 2 3\n1.5 16 6\n", True),  # nearly
        ("I,II\n1,2\n", False),
        ("", False),
    ],
)
def test_headers_are_told_from_other_text(text: str, known: bool) -> None:
    assert is_header(text.encode()) is known


@given(st.binary(max_size=300))
def test_recognizing_any_bytes_raises_nothing(head: bytes) -> None:
    for name in ("a.hea", "a.csv", "a", "a.edf"):
        format_of(name, head)


def test_content_counts_more_than_a_suffix(fake: None) -> None:
    assert format_of("x.ecg", b"FAKE3") is FAKE
    assert format_of("x", b"FAKE3") is FAKE
    assert format_of("x.FK", b"damaged") is FAKE  # reading will say so
    assert format_of("x", b"other") is None


def test_a_generic_suffix_alone_is_no_format() -> None:
    one = FileFormat("Any", ".any", _named, recognize=lambda head: head == b"1", generic=True)
    assert format_of("a.any", b"2", [one]) is None
    assert format_of("a.any", b"1", [one]) is one
    other = FileFormat("Other", ".oth", _named, recognize=lambda head: head == b"1")
    assert format_of("a", b"1", [one, other]) is other  # the one that is sure of itself


def test_every_recording_of_a_file_is_found_and_read(fake: None, tmp_path: Path) -> None:
    (tmp_path / "three.x").write_bytes(b"FAKE3")
    (tmp_path / "one.fake").write_bytes(b"FAKE1")
    (tmp_path / "bad.fake").write_bytes(b"FAKE?")
    found = find_recordings([tmp_path])
    names = [one.name if isinstance(one, Found) else one[0] for one in found]
    wanted = ["bad.fake", "one.fake", "three.x/0", "three.x/1", "three.x/2"]
    assert names == [f"{tmp_path}/{name}" for name in wanted]
    first, *read = read_several(found)
    assert isinstance(first, tuple) and "counts nothing" in str(first[1])
    assert [one.digital[0, 0] for one in read if isinstance(one, Recording)] == [0, 0, 1, 2]


def test_one_recording_of_several_is_chosen_by_name(fake: None, tmp_path: Path) -> None:
    (tmp_path / "three").write_bytes(b"FAKE3")
    assert read(tmp_path / "three", part="2").digital[0, 0] == 2
    for part in (None, "7"):
        with pytest.raises(SettingError, match=r"holds 3 recordings \('0', '1', '2'\); choose one"):
            read(tmp_path / "three", part=part)


def test_signal_files_and_segments_are_no_recordings(tmp_path: Path) -> None:
    for name in ("p1", "p2", "own"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, signals(300, 2))
        for file in ("r.hea", "r.dat"):
            text = (tmp_path / name / file).read_bytes().replace(b"r.dat", f"{name}.dat".encode())
            (tmp_path / f"{name}{file[1:]}").write_bytes(text)
        shutil.rmtree(tmp_path / name)
    (tmp_path / "all.hea").write_text("all/3 2 500 900\np1 300\n~ 300\np2 300\n")
    (tmp_path / "mat").mkdir()
    write_mat(tmp_path / "mat", signals())
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.write(tmp_path / "own.hea", "a/own.hea")
        archive.write(tmp_path / "own.dat", "a/own.dat")
    found = [one.path for one in find_recordings([tmp_path]) if isinstance(one, Found)]
    assert found == ["all.hea", "mat/r.hea", "own.hea", "z.zip/a/own.hea"]


def test_a_damaged_member_of_a_zip_is_found_and_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.hea", b"r 1 500\nr.dat 16\n" * 50)
    data = bytearray((tmp_path / "z.zip").read_bytes())
    data[40:60] = Random(0).randbytes(20)
    (tmp_path / "z.zip").write_bytes(bytes(data))
    ((_, error),) = read_several(find_recordings([tmp_path]))  # type: ignore[misc]
    assert isinstance(error, UnusableError)
    open_source(tmp_path).close()
