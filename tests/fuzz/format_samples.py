"""Valid files of every format that clocs reads: small, and written by the formats' libraries."""

from __future__ import annotations

import io
import runpy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import clinical_files
import dicom_files
from fuzz.mutations import Files
from fuzz.samples import made, signals

TESTS = Path(__file__).resolve().parent.parent
LEADS = ("I", "II", "V1")


@cache
def borrowed(module: str) -> Any:
    """The names in a module of tests, whose writers of files are used here as well."""
    return runpy.run_path(str(TESTS / module))


def millivolts(samples: int = 400) -> np.ndarray:
    return signals(samples) / 1000


def dicom() -> list[Files]:
    """Two groups of several syntaxes, with the fields that the reader looks at."""
    from pydicom import uid

    steps = signals(300, 2).astype(np.int16)
    facts = {"PatientID": "7", "PatientAge": "042Y", "PatientSex": "F", "StudyDate": "20200102"}
    found = []
    for syntax in (
        uid.ExplicitVRLittleEndian,
        uid.ImplicitVRLittleEndian,
        uid.DeflatedExplicitVRLittleEndian,
    ):
        channels = [
            dicom_files.channel("I", ChannelBaseline="3"),
            dicom_files.channel("II", unit="mV", ChannelSensitivity="0.004"),
        ]
        groups = [dicom_files.group(steps), dicom_files.group(steps[:100], channels)]
        found.append({"r.dcm": dicom_files.file(*groups, syntax=syntax, **facts)})
    return found


def text_tables() -> list[Files]:
    values = millivolts(300)
    wide = "\n".join(",".join(f"{v:.3f}" for v in row) for row in values)
    steps = np.arange(300) / 500
    with_time = "\n".join(
        ";".join(f"{v:.3f}".replace(".", ",") for v in (t, *row))
        for t, row in zip(steps, values, strict=True)
    )
    rows = "\n".join(
        ",".join([lead, *(f"{v:.3f}" for v in row)])
        for lead, row in zip(LEADS, values.T, strict=True)
    )
    long = "\n".join(
        f"{i}\t{lead}\t{values[i, j]:.3f}" for i in range(150) for j, lead in enumerate(LEADS)
    )
    export = "\n".join(f"{v:.3f}".replace(".", ",") for v in values[:, 0] * 1000)
    dated = "\n".join(f"2024-01-01 12:00:00.{i:03},{v}" for i, v in enumerate(wide.split("\n")))
    return [
        {"r.csv": f"I,II,V1\n{wide}\n".encode()},
        {"r.csv": f"# patient: 7\n# fs: 500\ntime;I [mV];II [mV];V1 [mV]\n{with_time}\n".encode()},
        {"r.tsv": f"sample\tlead\tvalue\n{long}\n".encode()},
        {"r.csv": f"{rows}\n".encode()},
        {"r.csv": f"Name,A\nRate,512 hertz\n\nLead,Lead I\nUnit,µV\n\n{export}\n".encode()},
        {"r.csv": f"time,I,II,V1\n{dated}\n".encode("cp1252")},
    ]


def numpy_arrays() -> list[Files]:
    values, found = signals(300, 12) / 1000, []
    several = np.stack([values.T, values.T]).astype(np.float32)
    for array in (values, (values * 1000).astype(np.int16).T, several, values[:, 0]):
        held = io.BytesIO()
        np.save(held, array)
        found.append({"r.npy": held.getvalue()})
    return found


def numpy_archives() -> list[Files]:
    found = []
    for save in (np.savez, np.savez_compressed):
        held = io.BytesIO()
        facts: dict[str, Any] = {"fs": 250, "leads": np.array(LEADS), "patient": "7"}
        save(held, signal=millivolts().T, **facts)
        found.append({"r.npz": held.getvalue()})
    return found


def parquet() -> list[Files]:
    import polars as pl

    values, found = millivolts(), []
    wide = pl.DataFrame({lead: values[:, i] for i, lead in enumerate(LEADS)})
    rows = pl.DataFrame(
        {
            "id": ["a", "b"],
            "patient": ["p", "q"],
            "rate": [250, 250],
            **{lead: [values[:, i].tolist()] * 2 for i, lead in enumerate(LEADS)},
        }
    )
    for table in (wide, rows):
        held = io.BytesIO()
        table.write_parquet(held)
        found.append({"r.parquet": held.getvalue()})
    return found[:1]


def matlab() -> list[Files]:
    import scipy.io

    found = []
    facts: dict[str, Any] = {
        "val": millivolts().T,
        "fs": 250.0,
        "leads": np.array(LEADS, dtype=object),
    }
    every: list[dict[str, Any]] = [{}, {"do_compression": True}, {"format": "4"}]
    for options in every:
        held: Any = io.BytesIO()
        own = {"val": signals(300, 12).T} if "format" in options else facts
        scipy.io.savemat(held, own, **options)
        found.append({"r.mat": held.getvalue()})
    return found


def hdf5() -> list[Files]:
    import h5py

    found = []
    for layout in ({}, {"compression": "gzip", "chunks": (1, 200)}, {"fletcher32": True}):
        held = io.BytesIO()
        with h5py.File(held, "w") as file:
            data = file.create_dataset("ecg", data=millivolts().T, **layout)
            data.attrs["fs"] = 250.0
            data.attrs["leads"] = list(LEADS)
            file.attrs["patient"] = "7"
        found.append({"r.h5": held.getvalue()})
    return found


def clinical(write: Callable[..., bytes | str], suffix: str, **how: Any) -> list[Files]:
    """A file of the kind that a function of `clinical_files` writes."""
    found = []
    for leads in (("II",), LEADS):
        made = write(signals(400, len(leads)).T.astype(np.int16), leads, **how)
        found.append({f"r{suffix}": made.encode() if isinstance(made, str) else made})
    return found


def ptbxl() -> list[Files]:
    tools = borrowed("datasets/test_ptbxl.py")
    return [made(lambda f: tools["published"](f, tools["ROWS"][:2], rates=(500,)))]


def mitbih() -> list[Files]:
    tools = borrowed("datasets/test_mitbih.py")
    return [made(partial(tools["record"], name="100", seconds=15.0))]


def physionet2021() -> list[Files]:
    tree = made(borrowed("datasets/test_physionet2021.py")["published"])
    wanted = ("training/georgia", "training/ningbo")
    return [{name: data for name, data in tree.items() if name.startswith(one)} for one in wanted]


def labeled_folders() -> list[Files]:
    """Tables of recordings with a table of labels in each format, and codes."""
    import polars as pl

    text = text_tables()[0]["r.csv"]
    labels = pl.DataFrame(
        {
            "file": ["a.csv", "b.csv", "c"],
            "patient": ["p", "p", "q"],
            "label": ["1", "2|1", None],
            "age": [61.0, 62.5, None],
            "sex": ["M", "F", ""],
            "fold": [1, 2, 2],
        }
    )
    wide = labels.select("file", AF=pl.lit(1), SR=pl.col("fold") - 1)
    recordings = {f"ecg/{name}.csv": text for name in "abc"}
    coded = {"codes.csv": b"code,name\n1,AF\n2,SR\n"}
    spread, packed = io.BytesIO(), io.BytesIO()
    _write_spreadsheet(labels, spread)
    wide.write_parquet(packed)
    tables = {
        "labels.csv": labels.write_csv().encode(),
        "labels.xlsx": spread.getvalue(),
        "wide.parquet": packed.getvalue(),
    }
    return [{name: table, **coded, **recordings} for name, table in tables.items()]


@cache
def unlabeled() -> Files:
    """Small recordings with names for their codes, and a table that options may name."""
    text = text_tables()[0]["r.csv"]
    recordings = {f"ward/P{i}/{name}.csv": text for i, name in enumerate("abc")}
    return recordings | {"codes.csv": b"code,name\n1,AF\n2,SR\n", "t.csv": _label_rows()}


def _label_rows() -> bytes:
    return (
        b"file;patient;label;LVEF;age;sex;date;fold\n"
        b"a.csv;p;1;51,8;61;M;2020-03-04;1\nb;p;2|1;1.234,5;62,5;F;05.03.2021 10:30;2\n"
        b"P2/c;q;\"['1', '2']\";n/k;;;03/14/2020;2\n"
    )


def csv_labels() -> list[Files]:
    """Tables with decimal commas, lists in cells and dates, in several encodings."""
    text = _label_rows().decode()
    wide = "id,AF,SR,note\na,1,0,x\nb,0,1.0,y\nc,yes,no,\n"
    return [
        {"labels.csv": text.encode()},
        {"labels.csv": "\ufeff".encode() + text.replace(";", "\t").encode()},
        {"labels.csv": wide.encode("cp1252")},
    ]


def xlsx_labels() -> list[Files]:
    """The same as spreadsheets."""
    import polars as pl

    found = []
    for kept in (["file", "label"], ["file", "patient", "label", "LVEF", "age", "date"]):
        held = io.BytesIO()
        table = pl.read_csv(_label_rows(), separator=";", infer_schema=False)
        _write_spreadsheet(table.select(kept), held)
        found.append({"labels.xlsx": held.getvalue()})
    return found


def _write_spreadsheet(table: Any, held: io.BytesIO) -> None:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(table.columns)
    for row in table.iter_rows():
        sheet.append(row)
    book.save(held)


def kardia_json() -> list[Files]:
    """Of one lead and of two."""
    steps = signals(400, 2).T.astype(np.int16)
    make = clinical_files.kardia_json
    return [{"x.json": make(steps[:n], ("I", "II")[:n]).encode()} for n in (1, 2)]


# The format that each of these targets reads, and its samples.
BY_TARGET: dict[str, tuple[str, Callable[[], list[Files]]]] = {
    "dicom": ("DICOM", dicom),
    "text-table": ("CSV", text_tables),
    "numpy": ("NumPy", numpy_arrays),
    "numpy-archive": ("NumPy archive", numpy_archives),
    "parquet": ("Parquet", parquet),
    "matlab": ("MATLAB", matlab),
    "hdf5": ("HDF5", hdf5),
    "ishne": ("ISHNE", partial(clinical, clinical_files.ishne, ".ecg", nanovolts=2500)),
    "aecg": ("HL7 aECG", partial(clinical, clinical_files.aecg, ".xml", microvolts=2.5)),
    "muse": ("GE MUSE", partial(clinical, clinical_files.muse, ".xml", microvolts=4.88)),
    "scp": ("SCP-ECG", partial(clinical, clinical_files.scp, ".scp", nanovolts=2500)),
    "mfer": ("MFER", partial(clinical, clinical_files.mfer, ".mwf", microvolts=2)),
    "atc": ("Kardia ATC", partial(clinical, clinical_files.atc, ".atc", nanovolts=500)),
    "kardia": ("Kardia JSON", kardia_json),
    "sierra": ("Philips Sierra", partial(clinical, clinical_files.sierra, ".xml", microvolts=5)),
}
