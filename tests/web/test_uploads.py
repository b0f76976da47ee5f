from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs import Recording, Store
from clocs.errors import ClocsError, SourceError
from clocs.web.body_reader import BodyReader
from clocs.web.uploads import Posted, read_posted, read_upload
from upload_files import bomb, form_of, wfdb_files, zipped

MB = 1 << 20


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "empty upload"),
        ({"letter.txt": b"hello"}, "letter.txt"),
        ({"letter.txt": b"hello"}, ".scp, .xml, .json, .mwf, .ecg, .dcm"),  # each suffix once
        ({"own.dat": b"\0" * 100}, "header"),
        ({"own.hea": b"own 1 500 1000\nown.dat 16 200 16 0 0 0 0 II\n"}, "own.dat"),
        ({"own.hea": b"\xff\xfe not a header"}, "own.hea"),
        ({"own.csv": b"I,II\n1,2\n3"}, "row"),
        ({"own.csv": b"# rate: 500\nI,II\n" + b"1,2\n" * 5000}, "flat"),
        ({"own.csv": b"I,II\n" + b"1,2\n3,1\n" * 2500}, "give it in Hz as `rate`"),
        ({"own.csv": b""}, "truncated: own is empty"),
        ({"own.ecg": b"hello"}, "no ISHNE file"),
        ({"a.csv": b"II\n1\n", "b.csv": b"II\n1\n"}, "2 recordings"),
        ({"own.zip": b"PK\x03\x04 cut short"}, "own.zip"),
        ({"own.zip": b"no zip"}, "own.zip"),
        (
            {
                "own.hea": b"own 1 1e9 1000\nown.dat 16 200 16 0 0 0 0 II\n",
                "own.dat": b"\0\1" * 1000,
            },
            "",
        ),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(files: dict[str, bytes], expected: str) -> None:
    with pytest.raises(ClocsError) as error:
        read_upload(files)
    assert expected in str(error.value)
    assert "Traceback" not in str(error.value)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["own.hea", "own.csv", "own.zip", "own.mat"]),
    st.binary(max_size=400) | st.text(alphabet="I,1.-\n x/()V", max_size=300).map(str.encode),
)
def test_random_bytes_are_read_or_refused_with_a_sentence(name: str, data: bytes) -> None:
    try:
        (read,) = read_upload({name: data, "own.dat": data}).recordings
    except ClocsError as error:
        assert str(error)
    else:
        assert isinstance(read, Recording) and read.samples


def lying_bomb(size: int) -> bytes:
    """The same, but its directory states that the member has ten bytes."""
    data = bytearray(bomb(size))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 10)
    return bytes(data)


def test_zip_bombs_are_refused_before_they_unpack() -> None:
    with pytest.raises(SourceError, match=r"own\.zip exceeds 64 MiB"):
        read_upload({"own.zip": bomb(200 * MB)})
    with pytest.raises(SourceError, match=r"own\.zip cannot be unpacked \(Bad CRC-32"):
        read_upload({"own.zip": lying_bomb(200 * MB)})
    many = zipped({f"{i}.dat": b"" for i in range(500)})
    with pytest.raises(SourceError, match="too many"):
        read_upload({"own.zip": many})


def test_member_names_are_never_used_as_paths(small_store: Store, tmp_path: Path) -> None:
    recording = small_store.recording(0)
    pair = wfdb_files(recording)
    evil = {f"../../../{tmp_path}/{name}": data for name, data in pair.items()}
    (read,) = read_upload({"..\\..\\own.zip": zipped(evil)}).recordings
    assert isinstance(read, Recording) and read.leads == recording.leads
    assert not list(tmp_path.iterdir())
    for file in ("../own.dat", "/etc/passwd", "..", ""):
        header = pair["own.hea"].replace(b"own.dat", file.encode() or b"~")
        with pytest.raises(ClocsError):
            read_upload({"own.hea": header, "own.dat": pair["own.dat"]})


def too_large(facts: Mapping[str, Any], body: bytes) -> Posted:
    return Posted([], names=[str(len(bytearray(8 << 30)))])


def test_reading_that_needs_too_much_memory_is_stopped(small_store: Store) -> None:
    reader = BodyReader(too_large, seconds=600.0)
    for _ in range(2):  # by another process, too
        with pytest.raises(SourceError, match="took more than 2 GiB of memory"):
            reader.read({}, [b"body"])
    reader.close()


def test_whatever_a_file_does_to_its_reader_is_a_sentence(small_store: Store) -> None:
    reader = BodyReader(read_posted, seconds=600.0)
    with pytest.raises(SourceError, match="KeyError"):
        reader.read({}, [b"without a type"])
    kind, body = form_of(wfdb_files(small_store.recording(0)))
    assert len(reader.read({"type": kind}, [body[:9], body[9:]]).recordings) == 1
    reader.close()
