from __future__ import annotations

import io
import os
import struct
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs import Recording, Store
from clocs.errors import ClocsError, SourceError
from clocs.explorer import upload_worker
from clocs.explorer.upload_worker import read_upload
from clocs.explorer.uploads import read_bounded
from explorer.conftest import Served
from explorer.files import csv_file, wfdb_files, zipped

MB = 1 << 20


@pytest.fixture(scope="session")
def recording(small_store: Store) -> Recording:
    return small_store.recording(0)


def post(served: Served, files: dict[str, bytes], **fields: str) -> httpx.Response:
    listed = [("files", (name, data)) for name, data in files.items()]
    return httpx.post(f"{served.url}/api/uploads", files=listed, data=fields, timeout=60)


@pytest.mark.parametrize("kind", ["pair", "zip", "csv", "ecg"])
def test_a_recording_is_read_whatever_it_comes_as(recording: Recording, kind: str) -> None:
    pair = wfdb_files(recording)
    files = {
        "pair": pair,
        "zip": {"own.zip": zipped({f"folder/{name}": data for name, data in pair.items()})},
        "csv": {"own.csv": csv_file(recording)},
        "ecg": {"own.ecg": recording.digital[1].astype("<i2").tobytes()},
    }[kind]
    read = read_bounded(files, rate=recording.rate)
    assert read.id == "own"
    if kind == "ecg":
        assert read.unit == "adu"  # never called mV
        np.testing.assert_array_equal(read.digital[0], recording.digital[1])
        return
    assert read.leads == recording.leads
    assert read.rate == recording.rate
    tolerance = 1e-4 if kind == "csv" else 1e-9
    np.testing.assert_allclose(read.signal, recording.signal, atol=tolerance)


def test_the_processes_that_read_leave_nothing_behind(recording: Recording) -> None:
    temporary = Path(tempfile.gettempdir())
    read_bounded(wfdb_files(recording))
    with pytest.raises(SourceError):
        read_bounded({"../../evil.hea": b"evil 1 500 10\n../../evil.dat 16 200 16 0 0 0 0 II\n"})
    for folder in (temporary, temporary.parent, Path()):
        assert not list(folder.glob("*evil*"))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "nothing"),
        ({"letter.txt": b"hello"}, "letter.txt"),
        ({"own.dat": b"\0" * 100}, "header"),
        ({"own.hea": b"own 1 500 1000\nown.dat 16 200 16 0 0 0 0 II\n"}, "own.dat"),
        ({"own.hea": b"\xff\xfe not a header"}, "own.hea"),
        ({"own.csv": b"I,II\n1,2\n3"}, "row"),
        ({"own.csv": b"I,II\n" + b"1,2\n" * 2000}, "flat"),
        ({"own.csv": b"I,II\n" + b"1,2\n3,1\n" * 20}, "0.08 s"),
        ({"own.ecg": b"abc"}, "3 bytes"),
        ({"a.csv": b"1", "b.csv": b"1"}, "2 recordings"),
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
def test_a_bad_file_gets_a_sentence(files: dict[str, bytes], words: str) -> None:
    with pytest.raises(ClocsError) as error:
        read_upload(files)
    assert words in str(error.value)
    assert "Traceback" not in str(error.value)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["own.hea", "own.csv", "own.zip", "own.mat"]),
    st.binary(max_size=400) | st.text(alphabet="I,1.-\n x/()V", max_size=300).map(str.encode),
)
def test_random_bytes_are_read_or_refused_with_a_sentence(name: str, data: bytes) -> None:
    try:
        read = read_upload({name: data, "own.dat": data})
    except ClocsError as error:
        assert str(error)
    else:
        assert read.samples


def bomb(size: int) -> bytes:
    """A zip whose one member unpacks to `size` zeros."""
    held = io.BytesIO()
    archive = zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED)
    with archive, archive.open("own.csv", "w") as member:
        for _ in range(size // MB):
            member.write(b"\0" * MB)
    return held.getvalue()


def lying_bomb(size: int) -> bytes:
    """The same, but its directory says that the member has ten bytes."""
    data = bytearray(bomb(size))
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", 10)
    return bytes(data)


def test_zip_bombs_are_refused_before_they_unpack() -> None:
    with pytest.raises(SourceError, match="MiB"):
        read_upload({"own.zip": bomb(200 * MB)})
    with pytest.raises(SourceError, match=r"own\.zip"):
        read_upload({"own.zip": lying_bomb(200 * MB)})
    many = zipped({f"{i}.dat": b"" for i in range(500)})
    with pytest.raises(SourceError, match="too many"):
        read_upload({"own.zip": many})


def test_names_of_members_are_never_paths(recording: Recording, tmp_path: Path) -> None:
    pair = wfdb_files(recording)
    evil = {f"../../../{tmp_path}/{name}": data for name, data in pair.items()}
    read = read_upload({"..\\..\\own.zip": zipped(evil)})
    assert read.leads == recording.leads
    assert not list(tmp_path.iterdir())
    for file in ("../own.dat", "/etc/passwd", "..", ""):
        header = pair["own.hea"].replace(b"own.dat", file.encode() or b"~")
        with pytest.raises(ClocsError):
            read_upload({"own.hea": header, "own.dat": pair["own.dat"]})


def test_the_reader_takes_no_module_from_the_folder_it_was_started_in(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("zipfile.py", "struct.py", "clocs.py"):
        (tmp_path / name).write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert read_bounded(wfdb_files(recording)).leads == recording.leads


def test_an_answer_that_is_none_is_a_sentence(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in ("echo nonsense", "true", "kill -9 $$"):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\ncat > /dev/null\n{words}\n")
        script.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(script))
        with pytest.raises(SourceError, match="could not be read within the limits"):
            read_bounded(wfdb_files(recording))


def test_files_of_one_name_and_too_many_bytes_in_all_are_refused(
    recording: Recording, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = wfdb_files(recording)
    with pytest.raises(SourceError, match=r"two files are called own\.dat"):
        read_upload({"a.zip": zipped(pair), "own.dat": pair["own.dat"]})
    listed = [("files", ("own.csv", b"1,2\n")) for _ in range(2)]
    answer = httpx.post(f"{served.url}/api/uploads", files=listed)
    assert answer.status_code == 422 and "two files are called own.csv" in answer.json()["message"]
    monkeypatch.setattr(upload_worker, "MOST_BYTES", len(pair["own.dat"]) + 10)
    with pytest.raises(SourceError, match="unpacked; drop one recording"):
        read_upload({"a.zip": zipped({"own.dat": pair["own.dat"]}), "own.hea": pair["own.hea"]})


def test_what_takes_too_long_is_ended(recording: Recording) -> None:
    with pytest.raises(SourceError, match="more than"):
        read_bounded(wfdb_files(recording), seconds=0.01)


def test_what_takes_too_much_memory_is_ended(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import resource, sys; from clocs.explorer import upload_worker;"
        "upload_worker.MOST_MEMORY = 600 << 20\n"
        "upload_worker.read_upload = lambda files, rate: bytearray(2 << 30)\nupload_worker.main()"
    )
    import subprocess

    from clocs.explorer.packing import pack, unpack

    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pack({"names": {}, "rate": None}, {}),
        capture_output=True,
        env=environment,
        check=False,
    )
    assert "memory" in unpack(done.stdout)[0]["error"]


def test_an_upload_is_placed_and_finds_itself(served: Served, recording: Recording) -> None:
    answer = post(served, wfdb_files(recording))
    assert answer.status_code == 201
    made = answer.json()
    assert made["name"] == "own"
    assert len(made["neighbours"]) == 10
    assert np.isfinite(made["position"]).all()
    patients = served.session.embeddings.rows["patient"]
    nearest = [patients[n["row"]] for n in made["neighbours"][:3]]
    assert recording.patient in nearest  # one of its patient's two recordings
    again = httpx.get(f"{served.url}/api/uploads/{made['code']}").json()
    assert again == made
    signal = httpx.get(f"{served.url}/api/uploads/{made['code']}/signal?lead=II&seconds=1")
    assert signal.status_code == 200
    assert served.session.codes[0] not in made["name"]


def test_an_upload_without_the_encoders_leads_says_so(served: Served, recording: Recording) -> None:
    made = post(served, {"own.ecg": recording.digital[1].astype("<i2").tobytes()}).json()
    assert any("none of the leads" in note for note in made["notes"])
    assert any("not mV" in note for note in made["notes"])


def test_too_short_for_the_encoder_can_still_be_looked_at(
    served: Served, recording: Recording
) -> None:
    from dataclasses import replace

    short = replace(recording, digital=recording.digital[:, : round(2 * recording.rate)])
    made = post(served, wfdb_files(short)).json()
    assert made["position"] is None
    assert any("not placed" in note for note in made["notes"])


def test_bad_uploads_are_refused_in_words(served: Served) -> None:
    for files, fields in (
        ({"letter.txt": b"hello"}, {}),
        ({"own.csv": b"1,2\n"}, {"rate": "fast"}),
        ({"own.csv": b"1,2\n"}, {"rate": "1e99"}),
        ({f"{i}.csv": b"" for i in range(20)}, {}),
        ({"own.zip": bomb(100 * MB)}, {}),
        ({"own.zip": zlib.compress(os.urandom(1000))}, {}),
    ):
        answer = post(served, files, **fields)
        assert 400 <= answer.status_code < 500
        assert len(answer.json()["message"]) > 10


@pytest.mark.parametrize("chunked", [False, True])
def test_a_gigabyte_is_refused_and_costs_no_memory(served: Served, chunked: bool) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    peak = before
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, process.memory_info().rss)

    def body() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="files"; filename="own.csv"\r\n\r\n'
        block = bytes(MB)
        for _ in range(1024):
            yield block

    headers = {"content-type": "multipart/form-data; boundary=x"}
    if not chunked:
        headers["content-length"] = str(sum(map(len, body())))
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answer = httpx.post(
            f"{served.url}/api/uploads", content=body(), headers=headers, timeout=60
        )
        status = answer.status_code
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        status = 413  # it hung up on us in the middle of the body, having said so
    finally:
        done.set()
        watcher.join()
    assert status == 413
    assert peak - before < 120 * MB
    assert httpx.get(f"{served.url}/api/projection").status_code == 200


def test_limits_are_those_the_page_promises() -> None:
    page = (Path(upload_worker.__file__).parent / "static" / "index.html").read_text(
        encoding="utf-8"
    )
    script = (Path(upload_worker.__file__).parent / "static" / "upload.js").read_text(
        encoding="utf-8"
    )
    from clocs.explorer.shield import BODY_LIMIT

    assert f"up to {BODY_LIMIT // MB} MiB" in " ".join(page.split())
    assert f"{BODY_LIMIT // MB} * 2 ** 20" in script
