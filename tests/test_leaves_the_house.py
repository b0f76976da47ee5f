"""What clocs writes for others, and its servers' logs, name no patient and no folder of the user.

Files with a name, a birth date, a number and dates go through every command that writes files.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import polars as pl
import pytest

import dicom_files
import unhurried
import warm
from clocs.datasets.pseudonyms import KEY
from clocs.web.packing import unpack
from command_line import clocs
from compiled_code import with_compiled_code

pytest.importorskip("fastapi", reason="the servers need the extras `web` and `serve`")
pytest.importorskip("faiss", reason="the index needs the extra `search`")
pytest.importorskip("onnx", reason="exports need the extra `export`")

from clocs.explorer.open import open_session
from clocs.explorer.patient_map import MAP

NAME, NUMBER, HOME, RECORDING = "Hollerith", "MRN9900471", "zsuzsanna", "zyxrec"
BORN, TAKEN = datetime.date(1950, 3, 2), datetime.date(2017, 11, 23)
PERSON = [NAME, NUMBER, "1950-03-02", "19500302", "02-MAR-1950", "02.03.1950"]
WHEN = ["2017-11-23", "20171123", "23-NOV-2017"]
# Lists of recordings, for their owner alone: they keep names of files and IDs of patients.
LISTS = ("p.csv", "own.parquet", "stored.parquet", "index", "frames", "predictions", "store")
PATIENTS = 24


def edf(path: Path, waves: list[Any], number: int) -> None:
    signals = [
        edfio.EdfSignal(one, 250, label=lead, physical_dimension="mV", physical_range=(-3, 3))
        for one, lead in zip(waves, ("I", "II"), strict=True)
    ]
    who = edfio.Patient(code=f"{NUMBER}-{number}", sex="F", birthdate=BORN, name=NAME)
    edfio.Edf(signals, patient=who, recording=edfio.Recording(startdate=TAKEN)).write(path)


def dicom(path: Path, waves: list[Any], number: int) -> None:
    group = dicom_files.group((np.stack(waves, 1) * 400).astype(np.int16), SamplingFrequency="250")
    day = f"{TAKEN:%Y%m%d}"
    fields = {"PatientName": f"{NAME}^Jane", "PatientBirthDate": f"{BORN:%Y%m%d}", "StudyDate": day}
    fields |= {"AcquisitionDate": day, "StudyDescription": f"for {NAME}, room 7"}
    path.write_bytes(dicom_files.file(group, PatientID=f"{NUMBER}-{number}", **fields))


def plant(folder: Path) -> None:
    """Two recordings of each patient, and a table of labels with what hospitals put into it."""
    folder.mkdir()
    noise = np.random.default_rng(0)
    lines = ["file,label,name,birthdate"]
    for patient in range(PATIENTS):
        for number in range(2):
            time = np.arange(250 * 20) / 250
            beat = 2 * np.pi * (1 + 0.03 * patient) * time
            waves = [np.sin(beat + lead) + noise.normal(0, 0.1, time.size) for lead in range(2)]
            name = f"{RECORDING}{patient:02}{number}"
            if patient % 2:
                edf(folder / f"{name}.edf", waves, patient)
            else:
                dicom(folder / f"{name}.dcm", waves, patient)
            lines.append(f"{name},{'AF' if patient % 3 else 'SR'},{NAME},{BORN}")
    (folder / f"{RECORDING}-broken.edf").write_bytes(b"0       broken")
    (folder / "t.csv").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder after every command that writes files."""
    home = tmp_path_factory.mktemp("home") / HOME
    home.mkdir()
    plant(home / "archive")
    (home / "store.patients").mkdir(mode=0o700)  # so that the parts are the same every time
    (home / "store.patients" / KEY).write_bytes(b"7" * 32)
    run, store, archive = home / "run", home / "store", home / "archive"
    first, model = run / "seed-0.safetensors", home / "rhythm.safetensors"
    few = ("--epochs", 1, "--resamples", 20)
    for arguments in (
        ("prepare", "folder", archive, "--labels", "t.csv", "--out", store),
        ("pretrain", store, "--epochs", 1, "--embedding-dim", 8, "--out", run),
        ("evaluate", run, store, *few, "--no-baselines", "--predictions", home / "predictions",
         "--plots", home / "plots"),
        ("export", store, "--to", "frames", "--out", home / "frames"),
        ("finetune", run, store, "--out", model, "--epochs", 1),
        ("embed", first, store, "--out", home / "stored.parquet"),
        ("index", first, store, "--out", home / "index"),
        ("figure", "distances", store, "--checkpoint", run, "--out", home / "distances.svg"),
        ("predict", model, archive / f"{RECORDING}010.edf", "--explain", home / "explained.svg"),
        ("figure", "views", store, "--out", home / "views.svg"),
        ("figure", "perturbations", store, "--out", home / "perturbations.svg"),
        ("figure", "similarity", store, "--checkpoint", run,
         "--out", home / "similarity.svg"),
        ("export", first, "--to", "onnx", "--out", home / "exports" / "encoder.onnx"),
        ("export", model, "--to", "torch", "--out", home / "exports" / "rhythm.pt2"),
        ("export", model, "--to", "hub", "--out", home / "exports" / "hub"),
    ):  # fmt: skip
        clocs(*arguments, cwd=home)
    broken = archive / f"{RECORDING}-broken.edf"
    own = (archive / f"{RECORDING}010.edf", archive / f"{RECORDING}020.dcm", broken)
    clocs("predict", model, *own, "--out", home / "p.csv", cwd=home, code=1)
    clocs("embed", first, *own, "--out", home / "own.parquet", cwd=home, code=1)
    with_compiled_code(home / "cache")  # of the servers
    return home


def contents(path: Path) -> bytes:
    """All that a file holds, unpacked."""
    data = path.read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            data += b"".join(archive.read(name) for name in archive.namelist())
    if path.suffix == ".parquet":
        data += repr((pl.read_parquet(path).rows(), pl.read_parquet_metadata(path))).encode()
    return data


def told(data: bytes, words: list[str]) -> list[str]:
    return [word for word in words if word.encode() in data]


def test_no_file_but_the_map_names_a_person_or_the_users_folder(house: Path) -> None:
    checked = 0
    for path in house.rglob("*"):
        inside = path.relative_to(house)
        if path.is_file() and inside.parts[0] not in ("archive", "store.patients"):
            assert not told(contents(path), [*PERSON, HOME, "room 7"]), inside
            checked += 1
    assert checked > 30
    assert told((house / "store.patients" / "store.json").read_bytes(), [NUMBER])


def test_what_is_passed_on_has_no_id_no_date_and_no_path_of_this_machine(house: Path) -> None:
    patients = pl.read_parquet(house / "store" / "table.parquet")["patient"].unique().to_list()
    installed = [str(Path(one).resolve()) for one in (sys.prefix, edf.__code__.co_filename, "src")]
    places = [*installed, str(Path.home()) + "/", "site-packages"]
    passed_on = [
        path
        for path in house.rglob("*")
        if path.is_file()
        and path.relative_to(house).parts[0] not in ("archive", "store.patients", "cache", *LISTS)
    ]
    for path in passed_on:
        found = told(contents(path), [RECORDING, *patients, *WHEN, *places])
        assert not found, (path.relative_to(house), found[:3])
    kinds = {path.suffix for path in passed_on}
    assert kinds >= {".json", ".safetensors", ".jsonl", ".svg", ".onnx", ".pt2", ".md"}


def test_lists_of_ones_own_recordings_name_files_and_no_folders(house: Path) -> None:
    rows = pl.read_csv(house / "p.csv").sort("file").to_dicts()
    names = [f"{RECORDING}-broken.edf", f"{RECORDING}010.edf", f"{RECORDING}020.dcm"]
    assert [row["file"] for row in rows] == names
    assert [row["patient"] for row in rows[1:]] == [f"{RECORDING}010", f"{RECORDING}020"]
    assert f"{RECORDING}-broken" in rows[0]["problem"]


@contextmanager
def serving(house: Path, *arguments: object) -> Iterator[tuple[str, list[str]]]:
    """The address of a server of its own process, and what it has logged, once it has ended."""
    logged: list[str] = []
    running = warm.Process(
        *("-m", "clocs", *arguments, "--token", "none", "--json"),
        cwd=house,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"CLOCS_CACHE": str(house / "cache")},
    )
    assert running.stdout is not None
    try:
        first = running.stdout.readline()
        assert first, running.communicate()[1]
        yield json.loads(first)["url"].rstrip("/"), logged
    finally:
        running.send_signal(signal.SIGINT)
        logged += running.communicate(timeout=600)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_service_logs_and_answers_without_names_ids_and_paths(house: Path) -> None:
    table = pl.read_parquet(house / "store" / "table.parquet")
    secret = [*PERSON, *WHEN, HOME, *table["patient"].unique().to_list()]
    own = house / "archive" / f"{RECORDING}010.edf"
    with serving(house, "serve", "rhythm.safetensors", "--index", "index") as (url, logged):
        answers = []
        for content in (own.read_bytes(), own.read_bytes()[:300]):
            files = [("files", (f"{NAME} {BORN}.edf", content))]
            for path in ("models/rhythm/prediction", "neighbors"):
                answers.append(unhurried.post(f"{url}/{path}", files=files))
        answers += [
            unhurried.get(f"{url}/{path}") for path in ("models", "metrics", "openapi.json")
        ]
    assert {answer.status_code for answer in answers} >= {200}
    for answer in answers[4:]:
        assert not told(answer.content, secret)
    for answer in answers[:4]:  # a client gets back the name of the file that it has sent
        assert not told(answer.content, [NUMBER, HOME, RECORDING, *WHEN])
    assert not told("".join(logged).encode(), [*secret, RECORDING])


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_explorer_logs_and_shows_no_names_ids_dates_and_paths(house: Path) -> None:
    table = pl.read_parquet(house / "store" / "table.parquet")
    secret = [*PERSON, *WHEN, HOME, RECORDING, *table["patient"].unique().to_list()]
    options = ("store", "--checkpoint", "run", "--runs", "run", "--no-browse")
    places = open_session(
        stores=[house / "store"], checkpoint=house / "run", cache=house / "cache"
    ).projection
    MAP.write(places.file, {}, {"positions": places.now[0]})  # UMAP would compile for seconds
    with serving(house, "explore", *options) as (url, logged):
        _, arrays = unpack(unhurried.get(f"{url}/api/map").content)
        codes = [bytes(one).hex() for one in arrays["codes"]]
        pages = ["session", "map", "names", "distances", "projection", "columns", "quality"]
        pages += [f"patients/{codes[0]}{end}" for end in ("", "/neighbors", "/neighbors.csv")]
        pages += [f"patients/{codes[0]}/recordings/0{end}" for end in ("/signal", "/predictions")]
        pages += ["runs", "cohorts"]
        shown = [unhurried.get(f"{url}/api/{page}") for page in pages]
        shown.append(unhurried.get(url))
        group = {"codes": codes[:3]}
        shown.append(unhurried.post(f"{url}/api/groups/table", json=group))
        shown.append(unhurried.post(f"{url}/api/groups/comparison", json=group | {"others": []}))
        broken = sorted((house / "store" / "signals" / "c").iterdir())[0]
        whole = broken.read_bytes()
        broken.write_bytes(whole[: len(whole) // 2])  # from here on recordings cannot be read
        shown.append(unhurried.get(f"{url}/api/patients/{codes[1]}/recordings/1/signal"))
        broken.write_bytes(whole)
    for answer in shown:
        assert not told(answer.content, secret), (answer.url, told(answer.content, secret)[:3])
    said = "".join(logged)
    assert "a recording cannot be read (StoreError at" in said
    assert not told(said.encode(), secret) and str(Path.home()) + "/" not in said
