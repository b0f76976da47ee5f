"""Thousands of records to prepare: copies of real ones under new names, or made ones."""

from __future__ import annotations

import itertools
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import polars as pl
import wfdb
from numpy.typing import NDArray

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
_SPREADSHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"


@dataclass(frozen=True)
class Case:
    kind: str
    dataset: str
    folder: Path
    records: list[Path]  # the file that the plain loop opens
    made: bool


def find_data(given: Path | None) -> Path | None:
    repository = Path(__file__).resolve().parent.parent
    data = given or Path(os.environ.get("CLOCS_DATA", repository.parent / "shared" / "data"))
    return data if (data / "samples").is_dir() else None


def mat(folder: Path, data: Path | None, count: int) -> Case:
    """12 leads as PhysioNet 2020 publishes them: MATLAB v4 files with headers."""
    inside = folder / "Training_WFDB"
    inside.mkdir(parents=True)
    if data is None:
        originals = [_make_mat(inside.parent / "made", i) for i in range(24)]
    else:
        originals = sorted((data / "samples" / "physionet2020" / "Training_WFDB").glob("*.mat"))
    records = []
    for number, original in zip(range(count), itertools.cycle(originals), strict=False):
        record = inside / f"A{number:05d}.mat"
        shutil.copyfile(original, record)
        header = original.with_suffix(".hea").read_text().replace(original.stem, record.stem)
        record.with_suffix(".hea").write_text(header)
        records.append(record)
    shutil.rmtree(inside.parent / "made", ignore_errors=True)
    return Case("mat", "physionet2020", folder, records, data is None)


def flac(folder: Path, data: Path | None, count: int) -> Case:
    """Four leads of Chapman as WFDB records in FLAC."""
    folder.mkdir(parents=True)
    if data is None:
        for number in range(count):
            _make_flac(folder, number)
        return Case("flac", "chapman", folder, sorted(folder.glob("*.dat")), made=True)
    with zipfile.ZipFile(data / "chapman" / "chapman-4lead.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".hea"))
        for name in names:
            if len(list(folder.glob("*.dat"))) == count:
                break
            for member in (name, name.replace(".hea", ".dat")):
                archive.extract(member, folder)
            record = folder / name.removesuffix(".hea")
            digital = wfdb.rdrecord(str(record), physical=False).d_signal
            if (digital == digital[0]).all():  # would be in quarantine
                record.with_suffix(".hea").unlink()
                record.with_suffix(".dat").unlink()
    return Case("flac", "chapman", folder, sorted(folder.glob("*.dat")), made=False)


def csv(folder: Path, data: Path | None, count: int) -> Case:
    """12 leads of Chapman as published: text tables and a spreadsheet of labels."""
    inside = folder / "ECGDataDenoised"
    inside.mkdir(parents=True)
    if data is None:
        names = [f"MUSE_{number:06d}" for number in range(count)]
        _write_spreadsheet(folder / "Diagnostics.xlsx", names)
        texts = [_text(_signal(number) * 1000) for number in range(24)]
    else:
        samples = data / "samples" / "chapman"
        shutil.copyfile(samples / "Diagnostics.xlsx", folder / "Diagnostics.xlsx")
        names = sorted(pl.read_excel(samples / "Diagnostics.xlsx")["FileName"].to_list())[:count]
        with zipfile.ZipFile(samples / "ECGDataDenoised.zip") as archive:
            tables = [archive.read(name) for name in archive.namelist() if name.endswith(".csv")]
        texts = [text for text in tables if b"NaN" not in text and text.count(b"\n") == 5000]
    for name, text in zip(names, itertools.cycle(texts), strict=False):
        (inside / f"{name}.csv").write_bytes(text)
    return Case("csv", "chapman", folder, sorted(inside.glob("*.csv")), data is None)


def _signal(number: int, seconds: int = 10) -> NDArray[np.float64]:
    """(samples, 12) in mV: something like beats, with noise."""
    random = np.random.default_rng(number)
    time = np.arange(500 * seconds) / 500
    beat = np.exp(-(((time * random.uniform(0.8, 1.6)) % 1 - 0.3) ** 2) / 0.0005)
    slow = 0.1 * np.sin(2 * np.pi * 0.3 * time)
    shapes = random.normal(size=(12, 2))
    clean: NDArray[np.float64] = (shapes @ np.stack([beat, slow])).T
    return clean + random.normal(0, 0.005, clean.shape)


def _make_mat(folder: Path, number: int) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"made{number}.mat"
    digital = np.rint(_signal(number, seconds=15) * 1000).astype("<i2")
    header = np.array([30, 12, len(digital), 0, 4], "<i4").tobytes() + b"val\0"
    path.write_bytes(header + digital.tobytes())
    lines = [f"{path.stem} 12 500 {len(digital)}"]
    for lead, column in zip(LEADS, digital.T, strict=True):
        checksum = int(column.astype(np.int64).sum().astype(np.int16))
        lines.append(f"{path.name} 16+24 1000/mV 16 0 {column[0]} {checksum} 0 {lead}")
    lines += ["#Age: 60", "#Sex: Female", "#Dx: 426783006", ""]
    path.with_suffix(".hea").write_text("\n".join(lines))
    return path


def _make_flac(folder: Path, number: int) -> None:
    digital = np.rint(_signal(number % 24)[:, :4] * 200).astype(np.int64)
    wfdb.wrsamp(
        f"MUSE_{number:06d}",
        fs=500,
        units=["mV"] * 4,
        sig_name=["II", "V2", "aVL", "aVR"],
        d_signal=digital,
        fmt=["516"] * 4,
        adc_gain=[200.0] * 4,
        baseline=[0] * 4,
        comments=["Rhythm: SB"],
        write_dir=str(folder),
    )


def _text(signal: NDArray[np.float64]) -> bytes:
    return "\n".join(",".join(f"{value:.3f}" for value in row) for row in signal).encode() + b"\n"


def _write_spreadsheet(path: Path, names: list[str]) -> None:
    """The least that is a spreadsheet: a header and one row a name, all as text."""
    rows = [("FileName", "Rhythm", "Beat", "PatientAge", "Gender")]
    rows += [(name, "SB", "NONE", "60", "FEMALE") for name in names]
    cells = "".join(
        "<row>"
        + "".join(f'<c t="inlineStr"><is><t>{escape(v)}</t></is></c>' for v in row)
        + "</row>"
        for row in rows
    )
    office = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        f'<Override PartName="/xl/workbook.xml" ContentType="{office}.sheet.main+xml"/>'
        f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{office}.worksheet+xml"/>'
        "</Types>",
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="rId1" '
        f'Type="{_RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{_SPREADSHEET}" xmlns:r="{_RELATIONS}"><sheets>'
        '<sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
        f'<Relationship Id="rId1" Type="{_RELATIONS}/worksheet" '
        'Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{_SPREADSHEET}"><sheetData>{cells}'
        "</sheetData></worksheet>",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, f'<?xml version="1.0" encoding="UTF-8"?>{content}')
