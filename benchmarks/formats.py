"""Reading files of each format against its library's own reading of the same files, in one run.

    python benchmarks/formats.py [--records 60] [--formats DICOM,CSV] [--json]

Recordings have 12 leads, 10 s at 500 Hz. The library gives numbers in mV; clocs gives a recording:
checked, with names and gaps, as 16-bit samples. Both sides read alternately, several times, from
the page cache and in one process; the median counts. Times are per recording.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from clocs.formats.base import ReadOptions
from clocs.formats.read import FORMATS, recordings_in
from clocs.formats.source import open_source
from clocs.recording import STANDARD_LEADS

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

RATE, SAMPLES, TARGET, REPEATS = 500, 5000, 1.5, 5
Signals = np.ndarray[tuple[int, int, int], np.dtype[np.int16]]  # µV


class Case(NamedTuple):
    """Files of a format, as written, and how its library reads all of them."""

    format: str
    write: Callable[[Path, Signals], None]
    load: Callable[[Path], Iterator[Any]]
    kind: str = ""  # of several within the format


def _each(folder: Path, load: Callable[[Path], Any]) -> Iterator[Any]:
    yield from (load(path) for path in sorted(folder.iterdir()))


def _write_dicom(folder: Path, ecgs: Signals) -> None:
    import dicom_files as dicom

    for number, ecg in enumerate(ecgs):
        channels = [dicom.channel(lead, ChannelSensitivity="1") for lead in STANDARD_LEADS]
        (folder / f"{number:04}.dcm").write_bytes(dicom.file(dicom.group(ecg.T, channels)))


def _load_dicom(folder: Path) -> Iterator[Any]:
    import pydicom

    return _each(folder, lambda path: pydicom.dcmread(path).waveform_array(0) / 1000)


def _write_csv(folder: Path, ecgs: Signals) -> None:
    for number, ecg in enumerate(ecgs):
        names = ";".join(STANDARD_LEADS)
        path = folder / f"{number:04}.csv"
        np.savetxt(path, ecg.T / 1000, "%.3f", delimiter=";", header=names, comments="")


def _load_csv(folder: Path) -> Iterator[Any]:
    import polars as pl

    return _each(folder, lambda path: pl.read_csv(path, separator=";").to_numpy())


def _write_npy(folder: Path, ecgs: Signals) -> None:
    for number, ecg in enumerate(ecgs):
        np.save(folder / f"{number:04}.npy", ecg / 1000)


def _load_npy(folder: Path) -> Iterator[Any]:
    return _each(folder, np.load)


def _write_npz(folder: Path, ecgs: Signals) -> None:
    for number, ecg in enumerate(ecgs):
        np.savez_compressed(folder / f"{number:04}.npz", signals=ecg / 1000, fs=RATE)


def _load_npz(folder: Path) -> Iterator[Any]:
    return _each(folder, lambda path: np.load(path)["signals"])


def _write_hdf5(folder: Path, ecgs: Signals) -> None:
    import h5py

    with h5py.File(folder / "all.h5", "w") as file:
        data = (ecgs / 1000).transpose(0, 2, 1).astype(np.float32)
        chunks = (1, SAMPLES, len(STANDARD_LEADS))
        file.create_dataset("tracings", data=data, chunks=chunks, compression="gzip")
        file["exam_id"] = np.arange(len(ecgs))


def _load_hdf5(folder: Path) -> Iterator[Any]:
    import h5py

    with h5py.File(folder / "all.h5") as file:
        yield from (file["tracings"][row] for row in range(len(file["tracings"])))


def _write_mat(folder: Path, ecgs: Signals) -> None:
    from scipy.io import savemat

    for number, ecg in enumerate(ecgs):
        savemat(folder / f"{number:04}.mat", {"val": ecg / 1000}, do_compression=True)


def _load_mat(folder: Path) -> Iterator[Any]:
    from scipy.io import loadmat

    return _each(folder, lambda path: loadmat(str(path))["val"])


def _write_parquet(folder: Path, ecgs: Signals) -> None:
    import polars as pl

    columns = {lead: list(ecgs[:, i] / 1000) for i, lead in enumerate(STANDARD_LEADS)}
    pl.DataFrame({"id": [str(i) for i in range(len(ecgs))]} | columns).write_parquet(
        folder / "all.parquet"
    )


def _load_parquet(folder: Path) -> Iterator[Any]:
    import polars as pl

    table = pl.read_parquet(folder / "all.parquet")
    for row in range(len(table)):
        yield np.stack([table[lead][row].to_numpy() for lead in STANDARD_LEADS])


def _clinical(kind: str) -> Callable[[Path, Signals], None]:
    def write(folder: Path, ecgs: Signals) -> None:
        import clinical_files as files

        four = ("I", "II", "V1", "V5")
        for number, ecg in enumerate(ecgs):
            steps, path = ecg[[0, 1, 6, 10]], folder / f"{number:04}.{kind}"
            if kind == "ecg":
                path.write_bytes(files.ishne(steps, four, nanovolts=1000, rate=RATE))
            elif kind == "scp":
                path.write_bytes(files.scp(steps, four, nanovolts=1000))
            else:
                path.write_text(
                    (files.muse if kind == "muse" else files.aecg)(steps, four, microvolts=1)
                )

    return write


def _load_clinical(folder: Path) -> Iterator[Any]:
    from ecgdatakit.parsing.parser import FileParser

    return _each(folder, lambda path: [lead.samples for lead in FileParser.parse(path).leads])


def _wfdb(form: str) -> Callable[[Path, Signals], None]:
    def write(folder: Path, ecgs: Signals) -> None:
        import wfdb

        count = len(STANDARD_LEADS)
        for number, ecg in enumerate(ecgs):
            wfdb.wrsamp(
                f"{number:04}",
                fs=RATE,
                d_signal=(ecg.T % 4000 - 2000).astype(np.int64),
                fmt=[form] * count,
                units=["mV"] * count,
                sig_name=list(STANDARD_LEADS),
                adc_gain=[1000.0] * count,
                baseline=[0] * count,
                write_dir=str(folder),
            )

    return write


def _load_wfdb(folder: Path) -> Iterator[Any]:
    import wfdb

    for path in sorted(folder.glob("*.hea")):
        yield wfdb.rdrecord(str(path.with_suffix(""))).p_signal


def _write_edf(folder: Path, ecgs: Signals) -> None:
    import edfio

    for number, ecg in enumerate(ecgs):
        signals = [
            edfio.EdfSignal(
                row.astype(np.float64),
                RATE,
                label=f"ECG {lead}",
                physical_dimension="uV",
                physical_range=(-32768, 32767),
            )
            for lead, row in zip(STANDARD_LEADS, ecg, strict=True)
        ]
        edfio.Edf(signals).write(folder / f"{number:04}.edf")


def _load_edf(folder: Path) -> Iterator[Any]:
    import edfio

    def load(path: Path) -> Any:
        return np.stack([one.data for one in edfio.read_edf(path).signals]) / 1000

    return _each(folder, load)


CASES = (
    Case("WFDB", _wfdb("16"), _load_wfdb, "16"),
    Case("WFDB", _wfdb("212"), _load_wfdb, "212"),
    Case("WFDB", _wfdb("516"), _load_wfdb, "516"),
    Case("EDF", _write_edf, _load_edf),
    Case("DICOM", _write_dicom, _load_dicom),
    Case("CSV", _write_csv, _load_csv),
    Case("NumPy", _write_npy, _load_npy),
    Case("NumPy archive", _write_npz, _load_npz),
    Case("HDF5", _write_hdf5, _load_hdf5),
    Case("MATLAB", _write_mat, _load_mat),
    Case("Parquet", _write_parquet, _load_parquet),
    Case("ISHNE", _clinical("ecg"), _load_clinical),
    Case("SCP-ECG", _clinical("scp"), _load_clinical),
    Case("HL7 aECG", _clinical("aecg"), _load_clinical),
    Case("GE MUSE", _clinical("muse"), _load_clinical),
)


def _seconds(run: Callable[[], Iterator[Any]], count: int) -> float:
    start = time.perf_counter()
    held = sum(1 for _ in run())
    assert held == count
    return (time.perf_counter() - start) / count


def measure(case: Case, ecgs: Signals) -> dict[str, Any]:
    own = FORMATS[case.format]
    options = ReadOptions(rate=float(RATE))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case.write(folder, ecgs)
        source = open_source(folder)

        wanted = [
            (path, ReadOptions(rate=float(RATE), part=part.name))
            for path, _ in recordings_in(source)
            for part in own.parts_of(source, path, options)
        ]

        def ours() -> Iterator[Any]:
            return (own.read(source, path, one) for path, one in wanted)

        pairs = []
        for _ in range(REPEATS + 1):
            theirs = _seconds(lambda: case.load(folder), len(ecgs))
            pairs.append((_seconds(ours, len(ecgs)), theirs))
        mine, theirs = (statistics.median(side) for side in zip(*pairs[1:], strict=True))
    return {
        "format": f"{case.format} {case.kind}".strip(),
        "ms": round(1e3 * mine, 3),
        "library_ms": round(1e3 * theirs, 3),
        "ratio": round(mine / theirs, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=60)
    parser.add_argument("--formats", default="")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    wanted = [one for one in chosen.formats.split(",") if one]
    shape = (chosen.records, len(STANDARD_LEADS), SAMPLES)
    rng = np.random.default_rng(0)
    ecgs = np.cumsum(rng.normal(0, 20, shape), axis=2).astype(np.int16)
    for case in CASES:
        if wanted and case.format not in wanted:
            continue
        result = measure(case, ecgs)
        if chosen.json:
            print(json.dumps(result))
            continue
        print(
            f"{result['format']:14} {result['ms']:8.2f} ms, library {result['library_ms']:8.2f} ms,"
            f" ratio {result['ratio']:5.2f} (target {TARGET})"
        )


if __name__ == "__main__":
    main()
