"""Pack recordings of six datasets for `encoder_trials.py`: leads I II V1–V6, 100 Hz, 5 µV a step.

One dataset a call. Recordings are read from a git directory at a commit, or PhysioNet 2017 from a
zip of WFDB records.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.signal
from numpy.typing import NDArray

from clocs.frames.splits import assign

Array = NDArray[Any]
RATE, STEP_MV = 100, 0.005
STORED = ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")
TWELVE = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
COLUMNS = [TWELVE.index(lead) for lead in STORED]
CODES = {  # SNOMED codes of PhysioNet 2020's classes
    "AF": "164889003", "I-AVB": "270492004", "LBBB": "164909002", "Normal": "426783006",
    "PAC": "284470004", "PVC": "164884008", "RBBB": "59118001", "STD": "429622005",
    "STE": "164931005",
}  # fmt: skip
RHYTHMS = {
    "AFIB": ("AFIB", "AF"),
    "GSVT": ("SVT", "AT", "SAAWR", "ST", "AVNRT", "AVRT"),
    "SB": ("SB",),
    "SR": ("SR", "SA", "SI"),
}
Recorded = tuple[str, str, Array, float, dict[str, int]]  # id, patient, mV (leads, n), Hz, labels


def blobs(git: str, commit: str, wanted: str) -> Iterator[tuple[str, bytes]]:
    """Path and contents of every file whose path matches, in the order of paths."""
    base = ["git", f"--git-dir={git}"]
    listed = subprocess.run([*base, "ls-tree", "-r", "-z", commit], capture_output=True, check=True)
    rows = [row.split("\t") for row in listed.stdout.decode().split("\0") if row]
    found = sorted((path, facts.split()[2]) for facts, path in rows if re.search(wanted, path))
    process = subprocess.Popen(
        [*base, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin and process.stdout
    names = "".join(f"{blob}\n" for _, blob in found).encode()
    threading.Thread(target=lambda pipe=process.stdin: (pipe.write(names), pipe.close())).start()
    for path, _ in found:
        size = int(process.stdout.readline().split()[2])
        yield path, process.stdout.read(size)
        process.stdout.read(1)
    process.wait()


def comment(header: str, name: str) -> str:
    found = re.search(rf"^#\s*{name}:\s*(.*)$", header, re.M)
    return found[1].strip() if found else ""


def scales(header: str) -> tuple[list[float], list[float], list[str]]:
    """Steps per mV, baselines and names of a WFDB header's signals."""
    gains, baselines, names = [], [], []
    for line in header.splitlines()[1:]:
        fields = line.split()
        if line.startswith("#") or len(fields) < 9:
            continue
        gain = re.match(r"([-\d.eE+]+)(?:\((-?\d+)\))?", fields[2])
        assert gain
        gains.append(float(gain[1]) or 200.0)
        baselines.append(float(gain[2] if gain[2] is not None else fields[4]))
        names.append(fields[-1])
    return gains, baselines, names


def from_format_16(header: str, data: bytes, most: int | None = None) -> Array:
    gains, baselines, names = scales(header)
    twelve = [names.index(lead.lower()) for lead in TWELVE]
    first = header.splitlines()
    count = sum(".dat" in line.split()[0] for line in first[1 : 1 + len(names)] if line.split())
    digital = np.frombuffer(data, "<i2").reshape(-1, count)[:most].T.astype(np.float64)
    mv: Array = (digital[twelve] - np.array(baselines)[twelve, None]) / np.array(gains)[
        twelve, None
    ]
    return mv


def physionet2020(git: str, commit: str) -> Iterator[Recorded]:
    header = ""
    for path, data in blobs(git, commit, r"^DATA/(TrainData_|ValidationData).*\.(hea|mat)$"):
        if path.endswith(".hea"):
            header = data.decode()
            continue
        name = Path(path).stem
        assert header.startswith(name)
        gains, baselines, leads = scales(header)
        assert tuple(leads) == TWELVE, leads
        loaded: Any = scipy.io.loadmat
        digital = loaded(io.BytesIO(data))["val"].astype(np.float64)
        codes = set(comment(header, "Dx").split(","))
        labels = {label: int(code in codes) for label, code in CODES.items()}
        mv = (digital - np.array(baselines)[:, None]) / np.array(gains)[:, None]
        yield name, name, mv, 500, labels


def chapman(git: str, commit: str, table: str) -> Iterator[Recorded]:
    import polars

    rows = polars.read_excel(table).select("FileName", "Rhythm", "Beat").rows()
    beats = sorted({beat for row in rows for beat in row[2].split()} - {"NONE"})
    facts = {name: (rhythm.strip().upper(), set(beat.split())) for name, rhythm, beat in rows}
    for path, data in blobs(git, commit, r"^ECGDataDenoised/.*\.csv$"):
        name = Path(path).stem
        if name not in facts:
            print("chapman: no row in the table:", name)
            continue
        text = data.decode().replace("\r", "").strip().replace("\n", ",")
        values = np.fromstring(text, sep=",")
        if values.size != 60000:
            print("chapman: not 5,000 rows of 12:", name, values.size)
            continue
        rhythm, beat = facts[name]
        labels = {f"rhythm {group}": int(rhythm in own) for group, own in RHYTHMS.items()}
        labels |= {f"beat {one}": int(one in beat) for one in beats}
        yield name, name, values.reshape(5000, 12).T / 1000, 500, labels


def ptb(git: str, commit: str) -> Iterator[Recorded]:
    data = b""
    for path, content in blobs(git, commit, r"^ptb-diagnostic.*/s\w+\.(hea|dat)$"):
        if path.endswith(".dat"):
            data = content
            continue
        header = content.decode()
        reason = comment(header, "Reason for admission").lower()
        known = {"myocardial infarction": 1, "healthy control": 0}
        labels = {"myocardial infarction": known.get(reason, -1)}
        patient = Path(path).parent.name
        yield Path(path).stem, patient, from_format_16(header, data, 60_000), 1000, labels


def ludb(git: str, commit: str) -> Iterator[Recorded]:
    data = b""
    for path, content in blobs(git, commit, r"^lobachevsky.*/data/\d+\.(hea|dat)$"):
        if path.endswith(".dat"):
            data = content
        else:
            # III = II - I holds in the file's steps, not with the header's gain per lead, so all
            # leads share one gain; 1 µV a step gives the spread of the other datasets
            name, header = Path(path).stem, content.decode()
            same = re.sub(r" [\d.]+\(-?\d+\)/mV ", " 1000(0)/mV ", header)
            yield name, name, from_format_16(same, data), 500, {}


def cinc2011(git: str, commit: str) -> Iterator[Recorded]:
    for path, data in blobs(git, commit, r"^set-a/\d+\.txt$"):
        text = data.decode().replace("\r", "").strip().replace("\n", ",")
        values = np.fromstring(text, sep=",")
        if values.size % 13:
            print("cinc2011: not rows of 13:", path, values.size)
            continue
        # taken as 5 µV a step: the text has no unit, and at 1 µV a lead would vary by 0.04 mV only
        yield Path(path).stem, Path(path).stem, values.reshape(-1, 13).T[1:] / 200, 500, {}


def physionet2017(archive: str, table: str) -> Iterator[Recorded]:
    import soundfile

    classes = ("N", "A", "O", "~")
    known = dict(line.split(",")[:2] for line in Path(table).read_text().split())
    with zipfile.ZipFile(archive) as files:
        for path in sorted(name for name in files.namelist() if name.endswith(".hea")):
            name = Path(path).stem
            gains, baselines, _ = scales(files.read(path).decode())
            with files.open(path[:-3] + "dat") as stream:
                digital = soundfile.read(io.BytesIO(stream.read()), dtype="int16")[0]
            labels = {one: int(known[name] == one) for one in classes}
            mv = (digital.astype(np.float64)[None] - baselines[0]) / gains[0]
            yield name, name, mv, 300, labels


def pack(dataset: str, recorded: Iterator[Recorded], out: Path) -> None:
    """Write `dataset`.npz; print what was left out."""
    names: list[str] = []
    patients: list[str] = []
    lengths: list[int] = []
    rows: list[Array] = []
    labels: list[list[int]] = []
    owners: dict[bytes, str] = {}  # content -> patient
    copies_of: dict[str, str] = {}  # union of patients
    columns: list[str] = []
    left: dict[str, int] = {}

    def root(patient: str) -> str:
        while copies_of.get(patient, patient) != patient:
            patient = copies_of[patient]
        return patient

    for name, patient, given, rate, own in recorded:
        mv = given
        if not np.isfinite(mv).all():
            left["not finite"] = left.get("not finite", 0) + 1
            continue
        if not (np.ptp(mv, axis=1) > 0).any():
            left["flat in all leads"] = left.get("flat in all leads", 0) + 1
            continue
        if len(mv) == 12:
            mv = mv[COLUMNS]
        samples = round(mv.shape[1] / rate * RATE)
        if samples < 500:
            left["shorter than 5 s"] = left.get("shorter than 5 s", 0) + 1
            continue
        columns = columns or list(own)
        # the whole, and the first 5 s: a copy may be cut short
        head = mv[:, : int(5 * rate)]
        prints = [mv.tobytes()] + ([head.tobytes()] if (np.ptp(head, axis=1) > 0).all() else [])
        for content in prints:
            digest = hashlib.sha256(content).digest()
            other = root(owners.setdefault(digest, patient))
            first, second = sorted((other, root(patient)))
            copies_of[second] = copies_of[first] = first
        steps = np.rint(scipy.signal.resample(mv, samples, axis=1) / STEP_MV)
        steps = np.clip(steps, -32767, 32767).astype(np.int16)
        names.append(name)
        patients.append(patient)
        lengths.append(samples)
        labels.append([own[column] for column in columns])
        rows.append(steps)
    groups = {patient: root(patient) for patient in patients}
    members: dict[str, list[str]] = {}
    for patient in sorted(groups):
        members.setdefault(groups[patient], []).append(patient)
    parts = {}
    for first, own_patients in members.items():  # `first` is the smallest: unions keep it so
        own_parts = assign(own_patients, dataset)
        # 3: not learned from, since the patient of a copy is a test patient by the hash
        parts[first] = 3 if own_parts[0] < 2 and own_parts.max() == 2 else own_parts[0]
    part = np.array([parts[groups[patient]] for patient in patients], np.int8)
    numbers = {patient: i for i, patient in enumerate(sorted(set(groups.values())))}
    np.savez_compressed(
        out / f"{dataset}.npz",
        names=np.array(names),
        length=np.array(lengths, np.int32),
        patient=np.array([numbers[groups[patient]] for patient in patients], np.int32),
        part=part,
        labels=np.array(labels, np.int8).reshape(len(names), -1),
        label_names=np.array(columns, dtype=str),
        leads=np.array(STORED if len(rows[0]) == 8 else ("I",)),
        signal=np.concatenate([steps.ravel() for steps in rows]),
    )
    print(dataset, len(names), "recordings by part (3: kept aside)", np.bincount(part, minlength=4))
    print(len(groups), "patients; left out:", left, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--from", nargs="*", dest="source", help="git directory and commit, table")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    recorded = getattr(sys.modules[__name__], given.dataset)(*given.source)
    pack(given.dataset, recorded, given.out)


if __name__ == "__main__":
    main()
