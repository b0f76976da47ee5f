"""Small stand-ins under the names that the documentation uses: files as published, stores, runs."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import edfio
import numpy as np
import wfdb
from numpy.typing import NDArray

import clocs
from clocs.datasets import cardiology, physionet
from clocs.datasets.synthetic import GAIN, Synthetic
from clocs.frames.splits import assign
from clocs.recording import STANDARD_LEADS
from own_files import record, several
from published_records import TWELVE, write_record, zipped
from spreadsheet import write_spreadsheet
from ward import write_ward

FOUR = ("II", "V2", "aVL", "aVR")  # the paper's
PER_PART = (8, 4, 4)  # patients for training, validation and test
CHAPMAN = ("MUSE_20180112_071353_51000", "MUSE_20180111_155115_19000")  # these are in the pages
RHYTHMS = ("SR", "SB", "SVT", "AFIB")
_ECGS = Synthetic(patients=sum(PER_PART), recordings=1, seconds=12.0, seed=5)


def write_stand_ins(folder: Path) -> None:
    """Everything that pages take from elsewhere, in a folder in which their snippets can run."""
    signals = [_ECGS.read(entry).digital for entry in _ECGS.list().entries]
    data = folder / "data"
    _chapman(data / "chapman", folder, signals)
    _physionet2020(data / "physionet2020", signals)
    _physionet2017(data / "physionet2017", signals)
    _cardiology(data / "cardiology", signals)
    _mitbih(data / "mitbih")
    _ptbxl(data / "ptbxl")
    for name in ("DATA", "DOWNLOADS"):
        (folder / name).symlink_to("data")
    for name in ("chapman", "physionet2020", "physionet2017", "cardiology"):
        clocs.prepare(name, data / name, out=folder / "stores" / name)
    (folder / "stores" / "chapman12").symlink_to("chapman")
    (folder / "stores12").symlink_to("stores")
    clocs.prepare("synthetic", out=folder / "store", patients=24, recordings=1)
    _own_files(folder, signals)


def write_runs(folder: Path) -> None:
    """Encoders, a classifier and what else pages take from commands of other pages."""
    store = clocs.open_store(folder / "stores" / "chapman")
    for method in ("cmsc", "simclr"):
        clocs.pretrain(store, method=method, out=folder / f"runs/chapman-{method}", epochs=1)
    (folder / "runs/cmsc").symlink_to("chapman-cmsc")
    clocs.pretrain(store, method="random", encoder="multilead", out=folder / "runs/multilead")
    encoder = folder / "runs/cmsc/seed-0.safetensors"
    clocs.finetune(encoder, store, out=folder / "rhythm.safetensors")
    clocs.index(encoder, store, out=folder / "indexes/chapman")
    clocs.embed(encoder, store, level="patient").save(folder / "patients.parquet")
    (folder / "index").symlink_to("indexes/chapman")
    cohort = folder / "stores/cohorts/Young AF.csv"
    cohort.parent.mkdir()
    cohort.write_text("dataset,patient\n" + "".join(f"chapman,{name}\n" for name in CHAPMAN))
    clocs.pretrain(folder / "store", out=folder / "demo/encoders-300/cmsc", epochs=1)
    (folder / "demo/store-300").symlink_to("../store")
    (folder / "runs/grid").symlink_to("chapman-cmsc")
    methods = ("cmsc", "simclr")
    scored = clocs.evaluate_many([folder / f"runs/chapman-{name}" for name in methods], store)
    (folder / "predictions").mkdir()
    for name, found in zip(methods, scored, strict=False):  # then the untrained encoders
        found.predictions.save(folder / f"predictions/{name}-chapman.safetensors")


def _names(dataset: str, template: str, fixed: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """Patients of all parts, as many as `PER_PART`, each with its number within its part."""
    wanted, seen = list(PER_PART), [0, 0, 0]
    for name in itertools.chain(fixed, (template.format(number) for number in itertools.count(1))):
        part = int(assign([name], dataset)[0])
        if wanted[part]:
            wanted[part] -= 1
            yield name, seen[part]
            seen[part] += 1
        if not any(wanted):
            return


def _record(
    folder: Path, name: str, signal: NDArray[np.int16], leads: Sequence[str], *comments: str
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    n = len(leads)
    rows = [STANDARD_LEADS.index(lead) for lead in leads]
    wfdb.wrsamp(
        name, fs=500, units=["mV"] * n, sig_name=list(leads), fmt=["16"] * n,
        d_signal=signal[rows].T.astype(np.int64), adc_gain=[GAIN] * n, baseline=[0] * n,
        comments=list(comments), write_dir=str(folder),
    )  # fmt: skip


def _chapman(folder: Path, root: Path, signals: list[NDArray[np.int16]]) -> None:
    """Records of the paper's leads; and, in the root, the zip and the table as published."""
    rhythms = {}
    tables = root / "ECGDataDenoised"
    tables.mkdir(parents=True)
    names = _names("chapman", "MUSE_2018{:04}_000000_00000", CHAPMAN)
    for (name, number), signal in zip(names, signals, strict=True):
        rhythms[name] = RHYTHMS[number % 4]
        _record(
            folder, name, signal[:, :5000], STANDARD_LEADS, f"Rhythm: {rhythms[name]}", "Age: 61"
        )
        rows = "\n".join(",".join(map(str, row)) for row in signal[:, :5000].T.tolist())
        (tables / f"{name}.csv").write_text(rows)  # in µV, as the simulation
    zipped(tables)
    shutil.rmtree(tables)
    write_spreadsheet(root, **rhythms)


def _physionet2020(folder: Path, signals: list[NDArray[np.int16]]) -> None:
    codes = list(physionet.CODES.values())
    names = _names("physionet2020", "A{:04}", ("A0003",))
    for (name, number), signal in zip(names, signals, strict=True):
        own = ",".join(codes[number % 4 :: 4])
        _record(
            folder, name, signal[:, ::-1], STANDARD_LEADS, "Age: 64", "Sex: Female", f"Dx: {own}"
        )


def _physionet2017(folder: Path, signals: list[NDArray[np.int16]]) -> None:
    folder.mkdir(parents=True)
    rows = []
    for (name, number), signal in zip(_names("physionet2017", "A{:05}"), signals, strict=True):
        values = signal[1, :5400].astype("<i2")
        head = np.array([30, 1, len(values), 0, 4], "<i4").tobytes() + b"val\0"
        (folder / f"{name}.mat").write_bytes(head + values.tobytes())
        (folder / f"{name}.hea").write_text(
            f"{name} 1 300 {len(values)}\n{name}.mat 16+24 1000/mV 16 0 0 0 0 ECG\n"
        )
        rows.append(f"{name},{'NAO~'[number % 4]}")
    (folder / "REFERENCE.csv").write_text("\n".join(rows) + "\n")


def _cardiology(folder: Path, signals: list[NDArray[np.int16]]) -> None:
    """Every recording has all rhythms, one after the other."""
    folder.mkdir(parents=True)
    rhythms = cardiology.Cardiology.labels
    step = 512  # samples, two frames
    for (name, _), signal in zip(_names("cardiology", "p{:03}"), signals, strict=True):
        values = np.resize(signal[1], step * len(rhythms)).astype("<i2")
        (folder / f"{name}_0001.ecg").write_bytes(values.tobytes())
        episodes = [
            {"onset": 1 + k * step, "offset": (k + 1) * step, "rhythm_name": rhythm}
            for k, rhythm in enumerate(rhythms)
        ]
        file = folder / f"{name}_0001_grp0.episodes.json"
        file.write_text(json.dumps({"episodes": episodes}))


def _mitbih(folder: Path) -> None:
    for name in ("100", "101", "106", "200"):
        write_record(folder, name, leads=("MLII", "V5"), rate=360, seconds=30, form="212",
                     comments=("69 M 1085 1629 x1", "Aldomet"))  # fmt: skip
        wfdb.wrann(
            name, "atr", np.array([10, 300, 2600]), ["+", "N", "V"], aux_note=["(N", "", ""],
            write_dir=str(folder),
        )  # fmt: skip


def _ptbxl(folder: Path) -> None:
    rows = [
        "ecg_id,patient_id,age,sex,recording_date,report,scp_codes,strat_fold,filename_lr,filename_hr"
    ]
    for number in range(1, 11):
        for rate, suffix in ((500, "hr"), (100, "lr")):
            place = folder / f"records{rate}/00000"
            write_record(place, f"{number:05}_{suffix}", rate=rate)
        codes = "\"{'NORM': 100.0, 'SR': 0.0}\""
        files = f"records100/00000/{number:05}_lr,records500/00000/{number:05}_hr"
        rows.append(f"{number},{number},60,1,1984-11-09 09:17:34,,{codes},{number},{files}")
    (folder / "ptbxl_database.csv").write_text("\n".join(rows) + "\n")
    (folder / "scp_statements.csv").write_text(",description,diagnostic,form,rhythm\n")


def _own_files(folder: Path, signals: list[NDArray[np.int16]]) -> None:
    """What a reader would have: single files, folders, zips and tables."""
    names = ("my", "mine", "ward/a", "ward/b", "recordings/c")
    for name, signal in zip(names, signals[: len(names)], strict=True):
        _record((folder / name).parent, Path(name).name, signal, STANDARD_LEADS)
    (folder / "patients.csv").write_text("file,patient\na,7\nb,7\nholter,8\nd,9\n")
    rows = "\n".join(f"{value}" for value in signals[0][1, :5000].tolist())
    (folder / "holter.csv").write_text(f"# rate: 500\nII\n{rows}\n")
    _edf(folder / "my.edf", signals[2], STANDARD_LEADS, seconds=12)
    _edf(folder / "holter.edf", signals[3], ("II",), seconds=3630)
    _record(folder, "holter", np.tile(signals[4], 12), FOUR)
    for name in ("export", "more"):
        record(folder / name, "d", leads=TWELVE)
        zipped(folder / name)
    for patient in range(10):
        several(folder / "archive" / f"p{patient}", 2, rate=500)
        several(folder / "clinic" / f"p{patient}", 2, rate=500)
    labels = "".join(f"p{n}/r{k},{'AF' if n % 2 else 'SR'}\n" for n in range(10) for k in range(2))
    (folder / "clinic" / "labels.csv").write_text(f"file,label\n{labels}")
    write_ward(folder / "my-ecgs", patients=sum(PER_PART))
    shutil.copytree(folder / "data/mitbih", folder / "mitdb")
    for file in (folder / "data/physionet2017").glob("A00001.*"):
        shutil.copy(file, folder)


def _edf(path: Path, signal: NDArray[np.int16], leads: Sequence[str], *, seconds: int) -> None:
    values = {
        lead: np.resize(signal[STANDARD_LEADS.index(lead)] / GAIN, 500 * seconds) for lead in leads
    }
    edfio.Edf(
        [
            edfio.EdfSignal(
                own, 500, label=f"ECG {lead}", physical_dimension="mV", physical_range=(-8, 8)
            )
            for lead, own in values.items()
        ]
    ).write(path)
