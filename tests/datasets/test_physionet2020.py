"""PhysioNet 2020: SNOMED codes become labels, in both layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clocs.datasets.base import Dataset, open_dataset
from clocs.datasets.physionet import PhysioNet2020
from clocs.errors import SourceError, UnusableError
from clocs.recording import STANDARD_LEADS, Recording
from plain_wfdb import write_record

RNG = np.random.default_rng(0)


def record(
    folder: Path,
    name: str,
    dx: str | None,
    *,
    samples: int = 3000,
    leads: tuple[str, ...] = ("II",),
) -> None:
    n = len(leads)
    comments = ["Age: -1", "Sex: Female", "Rx: Unknown"] + ([f"Dx: {dx}"] if dx is not None else [])
    digital = RNG.integers(-500, 500, (samples, n))
    write_record(folder, name, digital, leads, rate=500, gain=[1000.0] * n, comments=comments)


def read_one(dataset: Dataset, name: str) -> Recording:
    return dataset.read(next(entry for entry in dataset.list().entries if entry.id == name))


def reason(dataset: Dataset, name: str) -> str:
    with pytest.raises(UnusableError) as caught:
        read_one(dataset, name)
    return str(caught.value)


def test_codes_become_labels_in_the_paper_s_order_and_others_are_ignored(tmp_path: Path) -> None:
    record(tmp_path, "A0001", "164931005, 59118001,123456", leads=("II", "X1"))
    recording = read_one(open_dataset("physionet2020", tmp_path), "A0001")
    assert recording.labels == ("RBBB", "STE")
    assert recording.leads == ("II", "X1")
    assert (recording.age, recording.sex) == (None, "female")
    assert recording.extra == {"dx": "164931005, 59118001,123456", "rx": "Unknown"}


def test_each_unusable_recording_gets_its_reason(tmp_path: Path) -> None:
    record(tmp_path, "A0001", "426783006")
    record(tmp_path, "A0002", "123456")
    record(tmp_path, "A0003", None)
    record(tmp_path, "A0004", "")
    record(tmp_path, "A0005", "426783006", samples=2499)
    record(tmp_path, "A0006", "426783006", leads=("ABP",))
    record(tmp_path, "A0007", "426783006")
    record(tmp_path, "A0008", "426783006")
    (tmp_path / "A0007.dat").write_bytes((tmp_path / "A0007.dat").read_bytes()[:-2])
    (tmp_path / "A0008.dat").write_bytes(b"\7\0" * 3000)
    (tmp_path / "A0009.mat").write_bytes(b"")
    dataset = open_dataset("physionet2020", tmp_path)
    assert reason(dataset, "A0002").startswith("unknown label: none of the codes of A0002")
    assert reason(dataset, "A0003").startswith("no label: ")
    assert reason(dataset, "A0004").startswith("no label: ")
    assert reason(dataset, "A0005").startswith("too short: A0005 has 2499 samples (5.00 s)")
    assert reason(dataset, "A0006").startswith("no known lead: A0006 has ABP; one of I, II")
    assert reason(dataset, "A0007").startswith("truncated: A0007.hea has 2999 of 3000")
    assert reason(dataset, "A0008").startswith("flat: ")
    assert [(one.id, one.reason) for one in dataset.list().quarantined] == [("A0009", "unreadable")]


def test_a_source_without_headers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(
        SourceError, match=r"holds no physionet2020 recordings .*1 \.txt files found"
    ):
        open_dataset("physionet2020", tmp_path).list()


@pytest.mark.parametrize("place", ["samples/chapman", "samples/physionet2017", "cardiology"])
def test_other_datasets_are_refused_by_name(real_data: Path, place: str) -> None:
    other = place.removeprefix("samples/")
    with pytest.raises(SourceError, match=f"looks like {other}, not physionet2020"):
        open_dataset("physionet2020", real_data / place).list()


def test_published_samples_have_twelve_leads_and_agree_with_the_small_zip(real_data: Path) -> None:
    published = open_dataset("physionet2020", real_data / "samples" / "physionet2020")
    small = open_dataset("physionet2020", real_data / "physionet2020")
    ids = {entry.id: entry for entry in small.list().entries}
    assert len(ids) == 6877
    entries = published.list().entries
    assert len(entries) == 24
    for entry in entries:
        twelve, four = published.read(entry), small.read(ids[entry.id])
        assert twelve.leads == STANDARD_LEADS
        assert twelve.labels == four.labels
        np.testing.assert_allclose(twelve.select(four.leads).signal, four.signal, atol=0.0026)


def test_nine_labels_may_come_together() -> None:
    assert PhysioNet2020.multilabel
    assert PhysioNet2020.labels[:4] == ("AF", "I-AVB", "LBBB", "Normal")
    assert len(PhysioNet2020.labels) == 9
