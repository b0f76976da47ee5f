"""PhysioNet 2017: labels from the reference table, wherever it lies."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from clocs.datasets.base import open_dataset
from clocs.datasets.physionet import _reference_rows
from clocs.errors import SettingError, SourceError, UnusableError

RNG = np.random.default_rng(0)


def record(folder: Path, name: str, samples: int = 2700) -> None:
    """One record as published: a MATLAB v4 file and a header with odd times."""
    head = np.array([30, 1, samples, 0, 4], "<i4").tobytes() + b"val\0"
    body = RNG.integers(-500, 500, samples).astype("<i2").tobytes()
    (folder / f"{name}.mat").write_bytes(head + body)
    (folder / f"{name}.hea").write_text(
        f"{name} 1 300 {samples} 05:05:15 1/05/2000 \n{name}.mat 16+24 1000/mV 16 0 -127 0 0 ECG \n"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "training2017"
    inner.mkdir()
    for name in ("A00001", "A00002", "A00003"):
        record(inner, name)
    (inner / "REFERENCE.csv").write_text("A00001,N\r\nA00002,~\r\nA00009,O\r\n")
    (inner / "REFERENCE-v3.csv").write_text("A00001,A\nA00002,~\nA00003,B\n")
    return inner


def test_labels_come_from_the_reference_and_the_revision_is_an_option(folder: Path) -> None:
    dataset = open_dataset("physionet2017", folder.parent)
    listing = dataset.list()
    assert listing.rows_without_recording == ("A00009",)
    recording = dataset.read(listing.entries[0])
    assert (recording.id, recording.labels, recording.leads) == ("A00001", ("N",), ("ECG",))
    assert (recording.rate, recording.age) == (300.0, None)
    with pytest.raises(UnusableError, match=r"no label: A00003 has no row in REFERENCE\.csv"):
        dataset.read(listing.entries[2])
    revised = open_dataset("physionet2017", folder, reference="v3")
    assert revised.settings == {"reference": "v3"}
    assert revised.read(revised.list().entries[0]).labels == ("A",)
    assert revised.list().fingerprint != listing.fingerprint
    with pytest.raises(UnusableError, match="unknown label: the label of A00003 is 'B'"):
        revised.read(revised.list().entries[2])


def test_the_table_may_lie_beside_a_bare_zip(folder: Path) -> None:
    table = folder / "REFERENCE.csv"
    table.rename(folder.parent / "REFERENCE.csv")
    archive = shutil.make_archive(str(folder.parent / "records"), "zip", folder)
    dataset = open_dataset("physionet2017", archive)
    assert dataset.read(dataset.list().entries[1]).labels == ("~",)
    (folder.parent / "REFERENCE.csv").unlink()
    with pytest.raises(
        SourceError, match=r"has no REFERENCE\.csv.*put REFERENCE\.csv beside the zip"
    ):
        dataset.list()


def test_two_labels_of_one_record_fit_no_class(folder: Path) -> None:
    (folder / "REFERENCE.csv").write_text("A00001,N\nA00001,O\n")
    dataset = open_dataset("physionet2017", folder)
    with pytest.raises(UnusableError, match="unknown label: the label of A00001 is 'N or O'"):
        dataset.read(dataset.list().entries[0])


def test_nine_seconds_are_enough_for_one_frame_and_less_than_2500_samples_are_not(
    folder: Path,
) -> None:
    record(folder, "A00001", samples=2500)
    record(folder, "A00002", samples=2499)
    dataset = open_dataset("physionet2017", folder)
    first, second, _ = dataset.list().entries
    assert dataset.read(first).samples == 2500
    with pytest.raises(UnusableError, match="too short: A00002 has 2499 samples"):
        dataset.read(second)


def test_unknown_names_and_options_are_refused_with_the_known_ones(folder: Path) -> None:
    with pytest.raises(SettingError, match="`reference` must be original or v3, not 'v9'"):
        open_dataset("physionet2017", folder, reference="v9")
    with pytest.raises(SettingError, match="does not take `color`; it has `reference`"):
        open_dataset("physionet2017", folder, color="red")
    with pytest.raises(SettingError, match="no dataset 'ptb'; did you mean ptbxl"):
        open_dataset("ptb", folder)
    with pytest.raises(SettingError, match="chapman needs a source"):
        open_dataset("chapman")
    with pytest.raises(SettingError, match="synthetic has no source"):
        open_dataset("synthetic", folder)


def test_published_samples_are_all_usable(real_data: Path) -> None:
    dataset = open_dataset("physionet2017", real_data / "samples" / "physionet2017")
    recordings = [dataset.read(entry) for entry in dataset.list().entries]
    assert len(recordings) == 20
    assert {recording.labels[0] for recording in recordings} == set(dataset.labels)


def test_the_revision_differs_in_148_records(real_data: Path) -> None:
    tables = [real_data / "physionet2017" / name for name in ("REFERENCE.csv", "REFERENCE-v3.csv")]
    original, revised = (_reference_rows([path.read_bytes()]) for path in tables)
    assert len(original) == 8528 and original.keys() == revised.keys()
    assert sum(original[name] != revised[name] for name in original) == 148
