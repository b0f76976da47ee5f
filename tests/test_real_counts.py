"""The real datasets, whole: counts equal the paper's own totals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clocs.datasets.base import open_dataset
from clocs.models.describe import store_facts
from clocs.store.prepare import prepare


def counted(name: str, source: Path, out: Path) -> dict[str, Any]:
    store = prepare(open_dataset(name, source), out=out)
    store.verify()
    return store_facts(store)


def instances(info: dict[str, Any]) -> tuple[int, ...]:
    return tuple(info["instances"][m]["total"] for m in ("cmsc", "cmlc", "cmsmlc", "simclr"))


def test_chapman_without_its_flat_recordings(real_data: Path, tmp_path: Path) -> None:
    info = counted("chapman", real_data / "chapman", tmp_path / "store")
    assert info["frames"] == 42_352
    assert instances(info) == (42_352, 10_588, 10_588, 42_352)
    assert info["recordings"] == info["patients"] == 10_588
    assert info["quarantine"] == {"flat": 40}
    assert info["rows_without_recording"] == 18
    assert info["copies"] == 7
    assert info["leads"] == ["II", "V2", "aVL", "aVR"]


def test_physionet_2020_as_in_appendix_a2(real_data: Path, tmp_path: Path) -> None:
    info = counted("physionet2020", real_data / "physionet2020", tmp_path / "store")
    assert info["frames"] == 80_648
    assert instances(info) == (37_456, 20_162, 9_364, 80_648)
    assert info["recordings"] == 6_877
    assert info["quarantined"] == 0
    assert info["multilabel"]
    assert sum(info["labels"].values()) > info["recordings"]


@pytest.mark.usefixtures("reads_in_threads")
def test_physionet_2017_as_in_appendix_a2(real_data: Path, tmp_path: Path) -> None:
    info = counted("physionet2017", real_data / "physionet2017", tmp_path / "store")
    assert info["frames"] == 28_661
    assert info["recordings"] == 8_528
    assert sum(info["label_frames"].values()) == info["frames"]


@pytest.mark.usefixtures("reads_in_threads")
def test_cardiology_as_in_appendix_a2(real_data: Path, tmp_path: Path) -> None:
    info = counted("cardiology", real_data / "cardiology", tmp_path / "store")
    assert info["frames"] == 7_079
    assert info["patients"] == 313
    assert info["quarantine"] == {"unknown label": 15}
    # With the 15 × 23 frames of the quarantined recordings, 465 of sudden bradycardia in all.
    assert info["left_out_frames"] == {"SUDDEN_BRADY": 120}
    assert sum(info["label_frames"].values()) == info["frames"]
    assert info["unit"] == "adu"


@pytest.mark.usefixtures("reads_in_threads")
@pytest.mark.parametrize("layout", ["chapman", "physionet2020", "physionet2017"])
def test_samples_in_their_published_layout(real_data: Path, tmp_path: Path, layout: str) -> None:
    info = counted(layout, real_data / "samples" / layout, tmp_path / "store")
    bad = {"chapman": {"nan": 3, "truncated": 1}}
    assert info["quarantine"] == bad.get(layout, {})
    assert len(info["all_leads"]) == (1 if layout == "physionet2017" else 12)
    assert info["recordings"] >= 20
