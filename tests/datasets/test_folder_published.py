"""Published layouts as if nobody had prepared for them: MIT-BIH and PTB-XL as plain folders."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb

import clocs
from clocs import Store
from clocs.errors import ClocsWarning
from own_files import record, walk

pytestmark = pytest.mark.usefixtures("reads_in_threads")


def prepared(source: Path, **options: Any) -> Store:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClocsWarning)
        return clocs.prepare("folder", source, out=source.parent / "store", **options)


def half_hour(folder: Path, name: str, *, seconds: int = 25) -> None:
    """A record of MIT-BIH: two leads in format 212 at 360 Hz, with beats and rhythms."""
    folder.mkdir(exist_ok=True)
    samples = seconds * 360
    wfdb.wrsamp(
        name, fs=360, units=["mV"] * 2, sig_name=["MLII", "V1"], fmt=["212"] * 2,
        d_signal=walk(samples, 2, 1), adc_gain=[200.0] * 2, baseline=[1024] * 2,
        comments=["69 M 1085 1629 x1", "Aldomet, Inderal"], write_dir=str(folder),
    )  # fmt: skip
    wfdb.wrann(
        name, "atr", sample=np.array([18, 100, 12 * 360, samples - 50]),
        symbol=["+", "N", "+", "V"], aux_note=["(N", "", "(AFIB", ""], write_dir=str(folder),
    )  # fmt: skip


@pytest.fixture
def short_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of ten seconds, so that small files are long."""
    monkeypatch.setattr("clocs.datasets.folder._SMALL", 0)
    monkeypatch.setattr("clocs.datasets.folder.HOUR", 10.0)


def test_mit_bih_as_a_folder_has_rhythms_over_time(tmp_path: Path) -> None:
    half_hour(tmp_path / "mitdb", "100")
    half_hour(tmp_path / "mitdb", "101")
    (tmp_path / "mitdb" / "RECORDS").write_text("100\n101\n")
    (tmp_path / "mitdb" / "101.atr").unlink()
    store = prepared(tmp_path / "mitdb", labels="annotations")
    assert store.quarantine.is_empty()
    assert store.leads == ("II", "V1")
    assert store.manifest.labels == ("AFIB", "N")
    first, second = (store.recording(name) for name in ("100", "101"))
    rhythms = [(one.start, one.stop, one.label) for one in first.episodes]
    assert rhythms == [(18, 4320, "N"), (4320, 9000, "AFIB")]
    assert second.episodes == ()
    whole = wfdb.rdrecord(str(tmp_path / "mitdb" / "100")).p_signal.T
    np.testing.assert_array_equal(first.signal, whole)


@pytest.mark.usefixtures("short_hours")
def test_a_long_record_is_cut_into_hours_with_their_episodes(tmp_path: Path) -> None:
    half_hour(tmp_path / "mitdb", "100")
    store = prepared(tmp_path / "mitdb", labels="annotations")
    assert store.table["id"].to_list() == ["100@00:00:00", "100@00:00:10", "100@00:00:20"]
    assert store.table["patient"].unique().to_list() == ["100"]
    parts = list(store.iter_recordings())
    whole = wfdb.rdrecord(str(tmp_path / "mitdb" / "100")).p_signal.T
    np.testing.assert_array_equal(np.concatenate([one.signal for one in parts], axis=1), whole)
    assert [(one.start, one.stop, one.label) for one in parts[1].episodes] == [
        (0, 720, "N"),
        (720, 3600, "AFIB"),
    ]
    assert (parts[1].extra["part_of"], parts[1].extra["from_second"]) == ("100", "10.0")


def test_ptb_xl_as_a_folder_has_its_table_s_labels_and_folds(tmp_path: Path) -> None:
    data = tmp_path / "ptb-xl"
    rows = [
        "ecg_id,patient_id,age,sex,report,scp_codes,strat_fold,recording_date,filename_lr,"
        "filename_hr"
    ]
    for number in (1, 2, 3):
        name = f"00000/{number:05d}"
        record(data / "records100" / "00000", f"{number:05d}_lr", seconds=10)
        record(data / "records500" / "00000", f"{number:05d}_hr", seconds=10, rate=500)
        codes = "{'NORM': 100.0, 'SR': 0.0}" if number < 3 else "{'IMI': 50.0}"
        rows.append(
            f'{number}.0,{number % 2}.0,{50 + number},1,"sinus, rhythm","{codes}",{number},'
            f"2000-01-0{number} 10:00:00,records100/{name}_lr,records500/{name}_hr"
        )
    (data / "ptbxl_database.csv").write_text("\n".join(rows))
    (data / "scp_statements.csv").write_text(
        ",description,diagnostic_class\nNORM,normal,NORM\nSR,sinus,\nIMI,inferior,MI\n"
    )
    store = prepared(
        data,
        labels="ptbxl_database.csv",
        codes="scp_statements.csv",
        code_names="diagnostic_class",
        columns="fold=strat_fold",
    )
    assert len(store) == 6 and store.quarantine.is_empty()
    assert store.manifest.labels == ("NORM", "MI")
    assert store.table["fold"].to_list() == ["1", "1", "2", "2", "3", "3"]
    assert store.table["patient"].to_list() == ["1", "1", "0", "0", "1", "1"]
    assert store.table["taken"][0] == "2000-01-01T10:00:00"


def test_a_published_dataset_read_as_a_folder_has_the_same_recordings(
    real_data: Path, tmp_path: Path
) -> None:
    source = real_data / "samples" / "physionet2020"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClocsWarning)
        plain = clocs.prepare("folder", source, out=tmp_path / "a", labels="header")
    named = clocs.prepare("physionet2020", source, out=tmp_path / "b")
    columns = ["id", "patient", "samples", "leads", "gain", "age", "sex", "taken", "digest"]
    assert plain.table.select(columns).equals(named.table.select(columns))
    assert set(plain.manifest.labels) >= {"AF", "RBBB", "NSR"}
