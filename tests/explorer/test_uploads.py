"""Uploads over HTTP and through the worker process."""

from __future__ import annotations

import os
import tempfile
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import psutil
import pytest

import unhurried
from clocs import FrameSpec, Recording, Store
from clocs.errors import ClocsError, SourceError
from clocs.explorer.embed_stores import embed_stores
from clocs.explorer.uploads import embed_upload
from clocs.training.checkpoint import load_checkpoint
from clocs.web import uploads as web_uploads
from clocs.web.uploads import read_upload
from explorer.conftest import Served
from upload_files import bomb, csv_file, read_in_process, wfdb_files, zipped

MB = 1 << 20


@pytest.fixture(scope="session")
def recording(small_store: Store) -> Recording:
    return small_store.recording(0)


def post(served: Served, files: dict[str, bytes], **fields: str) -> httpx.Response:
    listed = [("files", (name, data)) for name, data in files.items()]
    return unhurried.post(f"{served.url}/api/uploads", files=listed, data=fields)


@pytest.mark.parametrize("kind", ["pair", "zip", "csv"])
def test_every_format_is_read(recording: Recording, kind: str) -> None:
    pair = wfdb_files(recording)
    files = {
        "pair": pair,
        "zip": {"own.zip": zipped({f"folder/{name}": data for name, data in pair.items()})},
        "csv": {"own.csv": csv_file(recording)},
    }[kind]
    read = read_in_process(files, {"rate": str(recording.rate)})
    assert read.id == "own"
    assert read.leads == recording.leads
    assert read.rate == recording.rate
    tolerance = 1e-4 if kind == "csv" else 1e-9
    np.testing.assert_allclose(read.signal, recording.signal, atol=tolerance)


def test_reading_leaves_no_files_behind(recording: Recording) -> None:
    temporary = Path(tempfile.gettempdir())
    read_in_process(wfdb_files(recording))
    with pytest.raises(ClocsError):
        read_in_process({"../../evil.hea": b"evil 1 500 10\n../../evil.dat 16 200 16 0 0 0 0 II\n"})
    for folder in (temporary, temporary.parent, Path()):
        assert not list(folder.glob("*evil*"))


def test_the_worker_imports_nothing_from_the_current_folder(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("zipfile.py", "struct.py", "clocs.py"):
        (tmp_path / name).write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    assert read_in_process(wfdb_files(recording)).leads == recording.leads


def test_a_broken_worker_gives_a_sentence(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("true", "kill -9 $$"):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\nhead -c 16 > /dev/null\n{command}\n")
        script.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(script))
        with pytest.raises(SourceError, match="the process that reads the files was ended"):
            read_in_process(wfdb_files(recording))


def test_duplicate_names_and_too_many_bytes_are_refused(
    recording: Recording, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = wfdb_files(recording)
    with pytest.raises(SourceError, match=r"two files are called own\.dat"):
        read_upload({"a.zip": zipped(pair), "own.dat": pair["own.dat"]})
    listed = [("files", ("own.csv", b"1,2\n")) for _ in range(2)]
    answer = unhurried.post(f"{served.url}/api/uploads", files=listed)
    assert answer.status_code == 422 and "two files are called own.csv" in answer.json()["message"]
    monkeypatch.setattr(web_uploads, "MAX_BYTES", len(pair["own.dat"]) + 10)
    with pytest.raises(SourceError, match="uncompressed; upload one recording"):
        read_upload({"a.zip": zipped({"own.dat": pair["own.dat"]}), "own.hea": pair["own.hea"]})


def test_reading_that_takes_too_long_is_stopped(recording: Recording) -> None:
    with pytest.raises(SourceError, match="more than"):
        read_in_process(wfdb_files(recording), seconds=1e-9)


def test_an_upload_finds_its_own_patient(served: Served, recording: Recording) -> None:
    answer = post(served, wfdb_files(recording))
    assert answer.status_code == 201
    made = answer.json()
    assert made["name"] == "own"
    assert len(made["neighbors"]) == 10
    assert np.isfinite(made["position"]).all()
    patients = served.session.embeddings.rows["patient"]
    nearest = [patients[n["row"]] for n in made["neighbors"][:3]]
    assert recording.patient in nearest  # one of its patient's two recordings
    again = unhurried.get(f"{served.url}/api/uploads/{made['code']}").json()
    assert again == made
    signal = unhurried.get(f"{served.url}/api/uploads/{made['code']}/signal?lead=II&seconds=1")
    assert signal.status_code == 200
    assert served.session.codes[0] not in made["name"]


def test_an_upload_without_the_encoders_leads_gets_a_note(
    served: Served, recording: Recording
) -> None:
    made = post(served, wfdb_files(replace(recording.select(["II"]), leads=("ECG",)))).json()
    assert any("none of the leads" in note for note in made["notes"])


def test_a_recording_too_short_for_the_encoder_is_still_shown(
    served: Served, recording: Recording
) -> None:
    short = replace(recording, digital=recording.digital[:, : round(2 * recording.rate)])
    made = post(served, wfdb_files(short)).json()
    assert made["position"] is None
    assert any("not on the map" in note for note in made["notes"])


def test_bad_uploads_are_refused_with_a_message(served: Served) -> None:
    for files, fields in (
        ({"letter.txt": b"hello"}, {}),
        ({"own.csv": b"1,2\n"}, {"rate": "fast"}),
        ({"own.csv": b"1,2\n"}, {"rate": "1e99"}),
        ({"own.csv": b"1,2\n"}, {"unit": "kg"}),
        ({f"{i}.csv": b"" for i in range(20)}, {}),
        ({"own.zip": bomb(100 * MB)}, {}),
        ({"own.zip": zlib.compress(os.urandom(1000))}, {}),
    ):
        answer = post(served, files, **fields)
        assert 400 <= answer.status_code < 500
        assert len(answer.json()["message"]) > 10


@pytest.mark.parametrize("chunked", [False, True])
def test_a_gigabyte_is_refused_without_using_memory(served: Served, chunked: bool) -> None:
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
        answer = unhurried.post(f"{served.url}/api/uploads", content=body(), headers=headers)
        status = answer.status_code
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        status = 413  # the server closed the connection before the whole body was sent
    finally:
        done.set()
        watcher.join()
    assert status == 413
    assert peak - before < 120 * MB
    assert unhurried.get(f"{served.url}/api/projection").status_code == 200


def test_an_upload_is_cut_into_the_frame_of_the_map(
    small_store: Store, encoder: Path, tmp_path: Path
) -> None:
    loaded = load_checkpoint(encoder)
    whole = replace(loaded, card=replace(loaded.card, frame=FrameSpec(10.0)))
    weights = tmp_path / "seed-0.safetensors"
    whole.save(weights)
    patients, _ = embed_stores(weights, [small_store])
    assert patients.frame == 10.0 != small_store.manifest.frame.seconds
    own = small_store.table.filter(pl.col("patient") == patients.rows["patient"][0])["id"]
    vector = embed_upload(whole, small_store.recording(own[0]), patients.frame).vector
    assert vector is not None
    cosines = patients.vectors @ vector
    assert cosines.argmax() == 0 and cosines[0] > 0.9
    short = replace(small_store.recording(0), digital=small_store.recording(0).digital[:, :2000])
    with pytest.raises(ClocsError, match="too short"):  # rather than: it is zero
        embed_upload(whole, short, patients.frame)


def test_an_upload_uses_the_leads_of_the_map(small_store: Store, encoder: Path) -> None:
    loaded, recording = load_checkpoint(encoder), small_store.recording(0)
    assert loaded.card.leads == ("II", "V2", "aVL", "aVR")
    whole = embed_upload(loaded, recording, leads=["II"])
    alone = embed_upload(loaded, recording.select(["II"]), leads=["II"])
    assert whole.notes == ()
    np.testing.assert_array_equal(whole.vector, alone.vector)
    notes = embed_upload(loaded, recording.select(["II"])).notes
    assert notes == ("Embedded with II only; the patients were embedded with II, V2, aVL, aVR.",)


def test_a_csv_in_millivolts_is_read_as_such_which_is_said(
    served: Served, recording: Recording
) -> None:
    rows = "\n".join(",".join(f"{v:.4f}" for v in row) for row in recording.signal.T)
    files = {"own.csv": f"{','.join(recording.leads)}\n{rows}\n".encode()}
    made = post(served, files, rate=f"{recording.rate:g}").json()
    assert "Values are assumed to be in mV, judging by their size." in made["notes"]
    told = post(served, files, rate=f"{recording.rate:g}", unit="mV").json()
    assert told["notes"] == made["notes"][1:] and told["neighbors"] == made["neighbors"]
    patients = served.session.embeddings.rows["patient"]
    assert recording.patient in [patients[one["row"]] for one in made["neighbors"][:3]]
