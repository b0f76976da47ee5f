"""Valid samples of everything that is read: made by the product itself, small, and real ones."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import edfio
import numpy as np
import wfdb

import clocs
from clocs import Frames, Store
from clocs.experiments.ledger import Ledger
from clocs.explorer.patient_map import MAP
from clocs.frames.make import make_frames
from clocs.patients.embeddings import Embeddings
from clocs.patients.index import PatientIndex
from clocs.patients.rows import Level
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import STATE, pretrain_frames
from clocs.store import chunks
from clocs.store.prepare import prepare
from clocs.training import Settings
from clocs.training.checkpoint import load_checkpoint
from clocs.training.embed import EncoderVectors
from clocs.training.loop import Epoch
from edf_files import discontinuous, signal
from edf_files import write as write_edf
from embedding_parts import random_embeddings
from evaluation_parts import predictions
from fake_dataset import FakeDataset
from fuzz.mutations import Files
from fuzz.worker import load_files
from spreadsheet import write_spreadsheet
from upload_files import csv_file, form_of, wfdb_files, zipped
from wfdb_files import write, write_mat, write_segments

PLAN = Plan("cmsc", embedding_dim=4, settings=Settings(epochs=3, batch_size=8, lr=1e-3))
WITH_WFDB = ("8", "61", "160", "310", "311")  # that wfdb reads but does not write


def real_data() -> Path:
    """Where the published datasets are, if anywhere."""
    root = Path(__file__).resolve().parents[2]
    return Path(os.environ.get("CLOCS_DATA", root.parent / "shared" / "data"))


def made(write_into: Callable[[Path], object]) -> Files:
    """The files that a function writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write_into(Path(folder))
        return load_files(Path(folder))


@cache
def store() -> Store:
    """Six simulated patients."""
    folder = Path(tempfile.mkdtemp())
    chunk, chunks.CHUNK_SAMPLES = chunks.CHUNK_SAMPLES, 50_000
    try:
        return clocs.prepare(
            "synthetic", out=folder / "store", patients=6, recordings=1, seconds=10.0, rate=250.0
        )
    finally:
        chunks.CHUNK_SAMPLES = chunk


@cache
def frames() -> Frames:
    return make_frames(store(), leads=["II", "V2"])


def signals(samples: int = 600, leads: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(-900, 900, (samples, leads))


def real_records(dataset: str, count: int = 3) -> list[Files]:
    """Published WFDB records: a header and its signals each."""
    folder = real_data() / "samples" / dataset
    headers = sorted(folder.rglob("*.hea"))[:count]
    return [{p.name: p.read_bytes() for p in (h, h.with_suffix(".mat"))} for h in headers]


def wfdb_plain() -> list[Files]:
    plain = [made(lambda f: write(f, signals())), made(lambda f: write_mat(f, signals()))]
    return [*plain, *real_records("physionet2017"), *real_records("physionet2020", 1)]


def wfdb_flac() -> list[Files]:
    return [made(partial(write, digital=signals(leads=n), fmt="516")) for n in (1, 3)]


def wfdb_rare() -> list[Files]:
    """Rarer formats, and a record of two segments."""
    written = ("80", "212", "24", "32")
    found = [made(partial(write, digital=signals() % 100, fmt=fmt)) for fmt in written]
    for fmt in WITH_WFDB:
        head = f"r 2 500 90\nr.dat {fmt} 200 12 0 0 0 0 I\nr.dat {fmt} 200 12 0 0 0 0 II\n"
        data = np.random.default_rng(2).integers(17, 20, 400, np.uint8).tobytes()
        found.append({"r.hea": head.encode(), "r.dat": data})
    parts = made(lambda f: write(f, signals()))
    second = {name.replace("r.", "s."): data.replace(b"r", b"s", 1) for name, data in parts.items()}
    second["s.hea"] = parts["r.hea"].replace(b"r.dat", b"s.dat").replace(b"r 3", b"s 3")
    second["s.dat"] = parts["r.dat"]
    found.append({"m.hea": b"m/2 3 500 1200\nr 600\ns 600\n", **parts, **second})
    return found


def wfdb_segments() -> list[Files]:
    """Segments with gaps, of which not all have every signal; of equal gains and not."""
    return [made(partial(write_segments, gain=gain)) for gain in (500.0, 250.0)]


def wfdb_annotations() -> list[Files]:
    """Rhythms, beats, leaps in time, texts, channels and subtypes; and an empty file."""

    def annotate(folder: Path) -> None:
        write(folder, signals())
        wfdb.wrann(
            "r",
            "atr",
            np.array([1, 20, 150, 390, 500, 100_000]),
            ["+", "N", "V", "+", '"', "A"],
            aux_note=["(N\0", "", "", "(AFIB\0", "odd", ""],
            subtype=np.array([0, 1, -2, 0, 0, 0]),
            chan=np.array([0, 1, 1, 0, 0, 0]),
            num=np.array([0, 3, 3, 0, 0, 1]),
            fs=250,
            write_dir=str(folder),
        )

    whole = made(annotate)
    return [whole, whole | {"r.atr": b"\0\0"}]


def edf() -> list[Files]:
    """EDF+ with annotations, with time between its records, several rates, and BDF."""
    notes = [edfio.EdfAnnotation(0.5, None, "(AFIB"), edfio.EdfAnnotation(1.0, 0.5, "cough")]
    short = partial(signal, seconds=2)
    plus = [short("ECG II"), short("V1"), short("Resp", 25.0)]

    def bdf(folder: Path) -> None:
        one = edfio.BdfSignal(signals(500, 1)[:, 0], 250.0, label="II", physical_dimension="uV")
        edfio.Bdf([one]).write(folder / "r.bdf")

    return [
        made(lambda f: write_edf(f, plus, annotations=notes, patient=edfio.Patient(code="7"))),
        made(discontinuous),
        made(lambda f: write_edf(f, [short("II", unit="mV")])),
        made(bdf),
    ]


def unnamed() -> list[Files]:
    """Recordings whose names do not tell their format."""
    found = [*edf()[:2], *wfdb_segments()[:1], made(lambda f: write(f, signals()))]
    return [
        {name.replace("r.hea", "r").replace("r.edf", "r.xyz"): data for name, data in one.items()}
        for one in found
    ]


def csv() -> list[Files]:
    recording = store().recording(0)
    short = "\n".join(csv_file(recording).decode().splitlines()[:200]).encode()
    plain = b"\n".join(short.split(b"\n")[1:]) + b"\n"
    return [{"own.csv": short}, {"own.csv": plain}, *real_csv()]


def real_csv() -> list[Files]:
    source = real_data() / "samples" / "chapman" / "ECGDataDenoised.zip"
    if not source.is_file():
        return []
    with zipfile.ZipFile(source) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".csv"))
        rows = archive.read(name).splitlines(keepends=True)
    return [{"own.csv": b"".join(rows[:300])}]


def ecg(samples: int = 1500) -> Files:
    episodes = [
        {"onset": 1, "offset": 700, "rhythm_name": "NSR"},
        {"onset": 701, "offset": samples, "rhythm_name": "AFL"},
    ]
    return {
        "abc_0001.ecg": signals(samples, 1).astype("<i2").tobytes(),
        "abc_0001_grp0.episodes.json": json.dumps({"episodes": episodes}).encode(),
    }


def irhythm() -> list[Files]:
    source = real_data() / "cardiology" / "CARDIOL_MAY_2017.zip"
    if not source.is_file():
        return [ecg()]
    with zipfile.ZipFile(source) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".ecg"))
        wanted = [n for n in archive.namelist() if n.startswith(name[:-4]) and "_rev" not in n]
        return [ecg(), {Path(one).name: archive.read(one) for one in wanted}]


def archives() -> list[Files]:
    """Zips of every kind of compression, and a zip inside a folder."""
    inside = {"a/r.hea": b"r 1 500 600\n", "a/r.dat": signals(leads=1).astype("<i2").tobytes()}
    found = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", method) as archive:
            for name, data in inside.items():
                archive.writestr(name, data)
        found.append({"source.zip": held.getvalue()})
    return [*found, {"beside.csv": b"r,N\n", **found[1]}]


def chapman() -> list[Files]:
    """Published tables, and WFDB records with their rhythm in the header."""
    sheet = made(lambda f: write_spreadsheet(f, MUSE_20180111_155115_19000="SB"))
    rows = np.random.default_rng(0).normal(0, 99, (5000, 2))
    text = "II,V2\n" + "\n".join(f"{a:.4g},{b:.4g}" for a, b in rows) + "\n"
    found = [sheet | {"ECGDataDenoised/MUSE_20180111_155115_19000.csv": text.encode()}]
    head = b"MUSE_1 1 500 5000\nMUSE_1.dat 16 200(0)/mV 16 0 0 0 0 II\n"
    head += b"#Rhythm: SB\n#Age: 59\n#Sex: F\n"
    found.append(
        {"MUSE_1.hea": head, "MUSE_1.dat": signals(5000, 1).astype("<i2").tobytes(), **sheet}
    )
    book = real_data() / "samples" / "chapman" / "Diagnostics.xlsx"
    if book.is_file():
        found.append(
            {
                "Diagnostics.xlsx": _first_rows(book, 40),
                "MUSE_20180111_155115_19000.csv": real_csv()[0]["own.csv"],
            }
        )
    return found


def _first_rows(book: Path, rows: int) -> bytes:
    """A spreadsheet with fewer rows: reading 10,000 takes a second."""
    with zipfile.ZipFile(book) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    start = parts[sheet].index(f'<row r="{rows + 1}"'.encode())
    parts[sheet] = parts[sheet][:start] + parts[sheet][parts[sheet].index(b"</sheetData>") :]
    return zipped(parts)


def physionet2017() -> list[Files]:
    records = real_records("physionet2017", 2)
    head = b"A00001 1 300 9000\nA00001.mat 16+24 1000/mV 16 0 0 0 0 ECG\n"
    data = b"\0" * 24 + signals(9000, 1).astype("<i2").tobytes()
    found = [{"A00001.hea": head, "A00001.mat": data}, *records]
    table = b"A00001,N\nA00002,A\nA00003,O\nA00004,~\n"
    return [{"REFERENCE.csv": table, **one} for one in found]


def physionet2020() -> list[Files]:
    head = b"A0001 1 500 5000\nA0001.mat 16+24 1000/mV 16 0 0 0 0 II\n"
    head += b"#Age: 74\n#Sex: Male\n#Dx: 59118001\n"
    data = b"\0" * 24 + signals(5000, 1).astype("<i2").tobytes()
    return [{"A0001.hea": head, "A0001.mat": data}, *real_records("physionet2020", 1)]


def uploads() -> list[Files]:
    """What a visitor sends: a pair, a zip of it, a CSV."""
    pair = made(lambda f: write(f, signals()))
    packed = [
        {"own.zip": zipped(one)}
        for one in (pair, csv()[0], made(lambda f: write_mat(f, signals())))
    ]
    ours = wfdb_files(store().recording(0).select(["II"]))
    return [pair, ours, *packed, csv()[0], *wfdb_flac()[1:]]


def service_bodies() -> list[Files]:
    """What `clocs serve` gets: the type of a body, what is in the address, and the body."""
    one = {"signal": signals().T[:2].round(3).tolist(), "rate": 100, "leads": ["II", "V2"]}
    several = {"recordings": [one, {"signal": [[0.5, None, 0.25] * 60], "rate": 100.0}]}
    array, arrays = io.BytesIO(), io.BytesIO()
    np.save(array, np.array(one["signal"]))
    np.savez(arrays, signal=np.array([one["signal"]] * 2), rate=100.0, leads=one["leads"])
    address = b"rate=100&leads=II,V2&unit=mV"
    forms = [
        form_of(uploads()[0] | wfdb_files(store().recording(0).select(["II"]), "second")),
        form_of(csv()[0], {"rate": "100", "unit": "µV"}),
    ]
    bodies = [
        (b"application/json", b"", json.dumps(one).encode()),
        (b"application/json", b"", json.dumps(several).encode()),
        (b"application/x-npy", address, array.getvalue()),
        (b"application/x-npz", b"", arrays.getvalue()),
        *((kind.encode(), b"", body) for kind, body in forms),
    ]
    return [{"type": kind, "query": query, "body": body} for kind, query, body in bodies]


def stores() -> list[Files]:
    return [load_files(store().path), load_files(_fake_store())]


@cache
def _fake_store() -> Path:
    """Episodes, missing values, and recordings in quarantine."""
    folder = Path(tempfile.mkdtemp()) / "store"
    chunk, chunks.CHUNK_SAMPLES = chunks.CHUNK_SAMPLES, 3000
    try:
        return prepare(FakeDataset(count=9, samples=300), out=folder, workers=1).path
    finally:
        chunks.CHUNK_SAMPLES = chunk


JOURNAL = FakeDataset(count=24, samples=300)
JOURNAL_CHUNK, JOURNAL_PARTS = 2000, 2


def journals() -> list[Files]:
    """Stores that were interrupted half-way."""

    def interrupted(folder: Path) -> None:
        def stop(done: int, total: int) -> None:
            if done > 12:
                raise InterruptedError

        try:
            prepare(JOURNAL, out=folder / "store", workers=1, progress=stop)
        except Exception as error:  # raised as it is, or as a file error
            if not (folder / "store" / "parts").is_dir():
                raise RuntimeError("nothing was committed") from error

    held = chunks.CHUNK_SAMPLES, chunks.CHUNKS_PER_PART
    chunks.CHUNK_SAMPLES, chunks.CHUNKS_PER_PART = JOURNAL_CHUNK, JOURNAL_PARTS
    try:
        return [made(interrupted)]
    finally:
        chunks.CHUNK_SAMPLES, chunks.CHUNKS_PER_PART = held


@cache
def _checkpoint() -> Path:
    folder = Path(tempfile.mkdtemp())
    pretrain_frames(frames(), PLAN, folder)
    return folder


def checkpoints() -> list[Files]:
    """A trained encoder, and an untrained one of the other kind."""
    trained = {
        name: data for name, data in load_files(_checkpoint()).items() if name.startswith("seed-")
    }
    resnet = Plan("random", encoder="resnet", embedding_dim=2)
    other = made(lambda f: pretrain_frames(frames(), resnet, f))
    return [trained, {name: data for name, data in other.items() if name.startswith("seed-")}]


def states() -> list[Files]:
    """A training that was interrupted after two of its three epochs."""

    def stop(epoch: Epoch) -> None:
        if epoch.number == 3:
            raise InterruptedError

    def interrupted(folder: Path) -> None:
        try:
            pretrain_frames(frames(), PLAN, folder, save_every=0, on_epoch=stop)
        except InterruptedError:
            return
        raise RuntimeError("the training was not interrupted")

    return [{name: data for name, data in made(interrupted).items() if not name.startswith(".")}]


def single_states() -> list[Files]:
    """The state alone: the one before it would do, too, and give the same training."""
    return [{STATE: one[STATE]} for one in states()]


def indexes() -> list[Files]:
    """Index folders of each kind."""
    encoder = {f"checkpoint/{name}": data for name, data in checkpoints()[0].items()}
    fingerprint = load_checkpoint(_checkpoint()).fingerprint
    found = []
    for kind in ("exact", "hnsw", "ivf"):

        def build(folder: Path, kind: str = kind) -> None:
            level: Level
            for level in ("patient", "recording"):
                some = _replaced(random_embeddings(80, dim=4, seed=80), fingerprint, level)
                PatientIndex.build(some, kind).save(folder / level)  # type: ignore[arg-type]

        found.append(encoder | made(build))
    return found


def _replaced(embeddings: Embeddings, encoder: str, level: Level) -> Embeddings:
    from dataclasses import replace

    import polars as pl

    rows = embeddings.rows
    if level == "recording":
        rows = rows.with_columns(pl.col("patient").alias("recording"))
    return replace(
        embeddings, encoder=encoder, level=level, rows=rows, frame=10.0, leads=("II", "V2")
    )


def embeddings() -> list[Files]:
    made_up = random_embeddings(30, dim=4)
    real = clocs.embed(load_checkpoint(_checkpoint()), store(), level="frame")
    return [
        made(lambda f: made_up.save(f / "e.parquet")),
        made(lambda f: real.save(f / "e.parquet")),
    ]


def prediction_files() -> list[Files]:
    return [made(lambda f: predictions(people=20).save(f / "p.safetensors"))]


def frame_files() -> list[Files]:
    return [made(lambda f: frames().save(f / "synthetic-frame.safetensors"))]


MAPPED = 30  # patients on a cached map


def explorer_caches() -> list[Files]:
    def fill(folder: Path) -> None:
        draw = np.random.default_rng(5)
        kept = EncoderVectors([folder], "vectors", MAPPED, 4)
        kept.add(np.arange(5, 15), draw.normal(size=(10, 4)).astype(np.float32))
        kept.flush()
        positions = draw.normal(size=(MAPPED, 2)).astype(np.float32)
        MAP.write(folder / "map.safetensors", {}, {"positions": positions})

    return [made(fill)]


def ledgers() -> list[Files]:
    def fill(folder: Path) -> None:
        ledger = Ledger(folder)
        ledger.require_fact("data", {"chapman": "abc"})
        for number in range(12):
            ledger.add(f"run-{number}", "linear", {"fraction": 0.5, "seed": number}, 5)
        with ledger.claim("run-0", "run-1", "run-2"):
            ledger.finish("run-0", {"auc": [0.7, 0.8]}, seconds=2.0, versions={"clocs": "1"})
            ledger.fail("run-1", "SettingError: no labels", seconds=1.0)
        ledger.close()

    return [{name: data for name, data in made(fill).items() if not name.startswith("locks")}]
