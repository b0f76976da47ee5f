"""MIT-BIH: half-hours in format 212, rhythms and beats from annotations, de Chazal's parts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import wfdb

import clocs
from clocs.datasets.base import open_dataset
from clocs.datasets.mitbih import BEATS, RECORDS, RHYTHMS
from clocs.errors import SourceError, UnusableError
from clocs.formats.wfdb import BEATS as SYMBOLS
from clocs.frames.make import make_frames
from clocs.frames.splits import PARTS
from clocs.recording import Episode
from published_records import read_all, write_record, zipped

pytestmark = pytest.mark.usefixtures("reads_in_threads")

STEP = 2500  # samples of a frame
Notes = list[tuple[int, str, str]]
NOTES: Notes = [
    (10, "+", "(N"), (300, "N", ""), (2600, "A", ""), (2900, "V", ""), (3000, "N", ""),
    (5050, "/", ""), (5060, "f", ""), (7000, "+", "(AFIB"), (7600, "e", ""), (7700, "F", ""),
    (9000, '"', "MISSB"), (9999, "+", "(VFL"), (10_050, "!", ""),
]  # fmt: skip
PERSON = ("69 M 1085 1629 x1", "Aldomet, Inderal")


def record(
    folder: Path,
    name: str,
    *,
    leads: tuple[str, str] = ("MLII", "V5"),
    comments: tuple[str, ...] = PERSON,
    notes: Notes = NOTES,
    seconds: float = 12_000 / 360,
) -> None:
    write_record(
        folder, name, leads=leads, rate=360, seconds=seconds, form="212", comments=comments
    )
    samples, symbols, texts = (list(values) for values in zip(*notes, strict=True))
    wfdb.wrann(name, "atr", np.array(samples), symbols, aux_note=texts, write_dir=str(folder))


def published(folder: Path) -> Path:
    """Four of the records, and what else the published folder holds."""
    record(folder, "100")
    record(folder, "102", leads=("V5", "V2"), comments=("84 F 1410 1629 x1", "Digoxin", "Paced."))
    record(folder, "114", leads=("V5", "MLII"), comments=("-1 F 1 2 x1", "Digoxin"))
    record(folder, "201", leads=("MLII", "V1"))
    record(folder, "202", leads=("MLII", "V1"))
    record(folder / "x_mitdb", "x_108")
    (folder / "102-0.atr").write_bytes((folder / "102.atr").read_bytes())
    (folder / "RECORDS").write_text("100\n102\n114\n201\n202\n")
    return folder


def test_the_published_layout_gives_leads_age_sex_and_medication(tmp_path: Path) -> None:
    found = read_all(open_dataset("mitbih", published(tmp_path / "mitdb")))
    assert list(found) == ["100", "102", "114", "201", "202"]
    first = found["100"]
    assert (first.leads, first.rate, first.age, first.sex) == (("II", "V5"), 360, 69.0, "male")
    assert first.extra["medication"] == "Aldomet, Inderal"
    assert first.extra["de chazal"] == "DS2"
    assert (found["102"].leads, found["102"].extra["notes"]) == (("V5", "V2"), "Paced.")
    assert (found["114"].leads, found["114"].age) == (("V5", "II"), None)
    assert found["201"].patient == found["202"].patient == "201"


def test_signals_of_format_212_are_as_wfdb_reads_them(tmp_path: Path) -> None:
    folder = published(tmp_path / "mitdb")
    ours = read_all(open_dataset("mitbih", folder))["100"]
    theirs = wfdb.rdrecord(str(folder / "100"))
    assert ours.signal.tobytes() == np.ascontiguousarray(theirs.p_signal.T).tobytes()


def test_rhythms_last_until_the_next_change(tmp_path: Path) -> None:
    dataset = open_dataset("mitbih", published(tmp_path / "mitdb"))
    assert dataset.labels == RHYTHMS
    assert len(RHYTHMS) == 15
    assert read_all(dataset)["100"].episodes == (
        Episode(10, 7000, "N"), Episode(7000, 9999, "AFIB"), Episode(9999, 12_000, "VFL"),
    )  # fmt: skip


def test_a_frame_has_the_most_severe_class_of_its_beats(tmp_path: Path) -> None:
    dataset = open_dataset("mitbih", published(tmp_path / "mitdb"), label_set="beats")
    assert dataset.labels == ("N", "S", "V", "F", "Q")
    assert read_all(dataset)["100"].episodes == (
        Episode(0, STEP, "N"), Episode(STEP, 2 * STEP, "V"), Episode(2 * STEP, 3 * STEP, "Q"),
        Episode(3 * STEP, 4 * STEP, "F"),
    )  # fmt: skip


def test_frames_of_a_store_have_the_labels_of_their_beats(tmp_path: Path) -> None:
    folder = published(tmp_path / "mitdb")
    store = clocs.prepare("mitbih", folder, out=tmp_path / "store", label_set="beats")
    frames = make_frames(store, leads=["V5"])
    one = frames.target[frames.recording == frames.recording_ids.index("100")]
    assert ["NSVFQ"[row.argmax()] for row in one] == ["N", "V", "Q", "F"]


def test_the_parts_are_de_chazal_s_and_no_patient_is_in_two(tmp_path: Path) -> None:
    sets = Counter(row["de_chazal"] for row in RECORDS.values())
    assert sets == {"DS1": 22, "DS2": 22, "paced": 4}
    validation = [row["de_chazal"] for row in RECORDS.values() if row["fold"] == "validation"]
    assert validation == ["DS1"] * 5
    found = read_all(open_dataset("mitbih", published(tmp_path / "mitdb")))
    assert {name: one.fold for name, one in found.items()} == {
        "100": "test", "102": "train", "114": "train", "201": "train", "202": "train",
    }  # fmt: skip
    assert found["202"].extra["de chazal"] == "DS2"


def test_every_symbol_of_a_beat_is_in_one_class() -> None:
    symbols = "".join(BEATS.values())
    assert len(symbols) == len(set(symbols))
    assert set(symbols) == SYMBOLS - {"!"}  # waves of flutter are no beats of AAMI


def test_the_zip_gives_the_same_as_its_folder(tmp_path: Path) -> None:
    folder = published(tmp_path / "mit-bih-arrhythmia-database-1-0-0")
    one, other = (open_dataset("mitbih", path) for path in (folder, zipped(folder)))
    for name, recording in read_all(one).items():
        same = read_all(other)[name]
        assert same.digital.tobytes() == recording.digital.tobytes()
        assert same.episodes == recording.episodes


def test_missing_and_damaged_files_go_to_quarantine_with_a_reason(tmp_path: Path) -> None:
    folder = published(tmp_path / "mitdb")
    (folder / "100.atr").unlink()
    (folder / "102.dat").unlink()
    (folder / "114.dat").write_bytes((folder / "114.dat").read_bytes()[:500])
    dataset = open_dataset("mitbih", folder)
    reasons = {}
    for entry in dataset.list().entries:
        try:
            dataset.read(entry)
        except UnusableError as error:
            reasons[entry.id] = error.reason
    assert reasons == {"100": "no label", "102": "unreadable", "114": "truncated"}


@pytest.mark.parametrize("name", ["chapman", "physionet2017", "physionet2021", "ptbxl"])
def test_under_another_name_it_is_recognized(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=f"looks like mitbih, not {name}"):
        open_dataset(name, published(tmp_path / "mitdb")).list()


def test_the_parts_of_a_store_are_the_published_ones(tmp_path: Path) -> None:
    folder = published(tmp_path / "mitdb")
    record(folder, "124")
    store = clocs.prepare("mitbih", folder, out=tmp_path / "store")
    frames = make_frames(store, leads=["II", "V5"])
    parts = {
        frames.recording_ids[r]: PARTS[p]
        for r, p in zip(frames.recording, frames.split, strict=True)
    }
    assert parts == {
        "100": "test", "102": "train", "114": "train", "124": "validation", "201": "train",
        "202": "train",
    }  # fmt: skip
