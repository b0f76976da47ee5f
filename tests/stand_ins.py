"""Small stand-ins under the names that pages use: files as published, a store, a model."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import edfio
import numpy as np
from numpy.typing import NDArray

import clocs
from clocs.datasets.synthetic import GAIN, Synthetic
from clocs.frames.splits import assign
from clocs.recording import STANDARD_LEADS
from own_files import record, several
from plain_wfdb import write_record
from published_records import TWELVE, zipped
from spreadsheet import write_spreadsheet
from ward import write_ward

FOUR = ("II", "V2", "aVL", "aVR")  # the paper's
PER_PART = (8, 4, 4)  # patients for training, validation and test
RHYTHMS = ("SR", "SB", "SVT", "AFIB")
_ECGS = Synthetic(patients=sum(PER_PART), recordings=1, seconds=12.0, seed=5)


def write_stand_ins(folder: Path) -> None:
    """Everything that pages take from elsewhere, in a folder in which their snippets can run."""
    signals = [_ECGS.read(entry).digital for entry in _ECGS.list().entries]
    _chapman(folder, signals)
    _own_files(folder, signals)
    store = clocs.prepare(
        "chapman", folder / "ECGDataDenoised.zip", out=folder / "stores" / "chapman"
    )
    (encoder,) = clocs.pretrain(store, out=folder / "runs/cmsc", epochs=1)
    clocs.finetune(encoder, store, out=folder / "rhythm.safetensors")
    demo = folder / "demo"
    simulated = clocs.prepare("synthetic", out=demo / "store-300", patients=24, recordings=1)
    clocs.pretrain(simulated, method="random", out=demo / "encoders-300/cmsc")


def _names(dataset: str, template: str) -> Iterator[tuple[str, int]]:
    """Patients of all parts, as many as `PER_PART`, each with its number within its part."""
    wanted, seen = list(PER_PART), [0, 0, 0]
    for name in (template.format(number) for number in itertools.count(1)):
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
    rows = [STANDARD_LEADS.index(lead) for lead in leads]
    gain = [GAIN] * len(leads)
    write_record(folder, name, signal[rows].T, leads, rate=500, gain=gain, comments=comments)


def _chapman(folder: Path, signals: list[NDArray[np.int16]]) -> None:
    """The zip and the table as published."""
    rhythms, tables = {}, folder / "ECGDataDenoised"
    tables.mkdir(parents=True)
    names = _names("chapman", "MUSE_2018{:04}_000000_00000")
    for (name, number), signal in zip(names, signals, strict=True):
        rhythms[name] = RHYTHMS[number % 4]
        rows = "\n".join(",".join(map(str, row)) for row in signal[:, :5000].T.tolist())
        (tables / f"{name}.csv").write_text(rows)  # in µV, as the simulation
    zipped(tables)
    shutil.rmtree(tables)
    write_spreadsheet(folder, **rhythms)


def _own_files(folder: Path, signals: list[NDArray[np.int16]]) -> None:
    """What a reader would have: single files, folders, zips and tables."""
    for name, signal in zip(("my", "recordings/c"), signals, strict=False):
        _record((folder / name).parent, Path(name).name, signal, STANDARD_LEADS)
    _edf(folder / "my.edf", signals[2], STANDARD_LEADS, seconds=12)
    _record(folder, "holter", np.tile(signals[4], 12), FOUR)
    record(folder / "more", "d", leads=TWELVE)
    zipped(folder / "more")
    for patient in range(10):
        several(folder / "clinic" / f"p{patient}", 2, rate=500)
    labels = "".join(f"p{n}/r{k},{'AF' if n % 2 else 'SR'}\n" for n in range(10) for k in range(2))
    (folder / "clinic" / "labels.csv").write_text(f"file,label\n{labels}")
    write_ward(folder / "my-ecgs", patients=sum(PER_PART))


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
