"""PhysioNet 2021: databases in folders, SNOMED codes of classes, mixed rates."""

from __future__ import annotations

from pathlib import Path

import pytest

import clocs
from clocs.datasets.base import open_dataset
from clocs.datasets.label_names import CLASSES, LABELS, SCORED
from clocs.datasets.physionet import DATABASES, database_of
from clocs.errors import SettingError, SourceError
from published_records import read_all, write_record, zipped

pytestmark = pytest.mark.usefixtures("reads_in_threads")

RECORDS = {  # one of each database: folder, name, rate, codes
    "cpsc_2018": ("g1", "A0001", 500, "59118001"),
    "cpsc_2018_extra": ("g1", "Q0001", 500, "713427006,63593006"),
    "st_petersburg_incart": ("g1", "I0001", 257, "164884008"),
    "ptb": ("g1", "S0001", 1000, "164865005"),
    "ptb-xl": ("g1", "HR00001", 500, "251146004,426783006"),
    "georgia": ("g2", "E00001", 500, "426177001"),
    "chapman_shaoxing": ("g1", "JS00001", 500, "164889003,59118001,164934002"),
    "ningbo": ("g1", "JS10647", 500, "17338001, 733534002"),
}


def published(folder: Path, *, groups: bool = True) -> Path:
    for database, (group, name, rate, codes) in RECORDS.items():
        inside = folder / "training" / database / (group if groups else "")
        comments = ["Age: NaN" if database == "ptb" else "Age: 74", "Sex: Male", f"Dx: {codes}"]
        comments += ["Rx: Unknown", "Hx: Unknown", "Sx: Unknown"]
        write_record(inside, name, rate=rate, comments=comments)
        (inside / "RECORDS").write_text(f"{name}\n")
    return folder


@pytest.mark.parametrize("groups", [True, False])
def test_both_layouts_give_all_databases_with_their_rates(tmp_path: Path, groups: bool) -> None:
    found = read_all(open_dataset("physionet2021", published(tmp_path / "2021", groups=groups)))
    assert {name: one.extra["database"] for name, one in found.items()} == {
        name: database for database, (_, name, _, _) in RECORDS.items()
    }
    assert sorted({one.rate for one in found.values()}) == [257.0, 500.0, 1000.0]
    assert all(one.patient == name for name, one in found.items())
    assert (found["A0001"].age, found["A0001"].sex, found["S0001"].age) == (74.0, "male", None)


def test_the_26_scored_classes_merge_codes_that_are_scored_as_one(tmp_path: Path) -> None:
    dataset = open_dataset("physionet2021", published(tmp_path / "2021"))
    assert len(dataset.labels) == 26
    labels = {name: one.labels for name, one in read_all(dataset).items()}
    assert labels["A0001"] == ("RBBB",)
    assert labels["Q0001"] == ("RBBB", "PAC")
    assert labels["JS00001"] == ("AF", "RBBB", "TAb")
    assert labels["JS10647"] == ("LBBB", "PVC")
    assert labels["I0001"] == labels["S0001"] == ()  # of none of the classes, and not quarantined


def test_all_codes_are_labels_on_request(tmp_path: Path) -> None:
    dataset = open_dataset("physionet2021", published(tmp_path / "2021"), label_set="all")
    labels = {name: one.labels for name, one in read_all(dataset).items()}
    assert (labels["I0001"], labels["S0001"]) == (("VEB",), ("MI",))
    assert labels["Q0001"] == ("RBBB", "PAC")


def test_the_tables_of_codes_have_the_published_sizes() -> None:
    assert (len(SCORED), len(CLASSES), len(LABELS)) == (26, 129, 133)
    assert set(LABELS.values()) == set(CLASSES)
    assert all(code.isdecimal() for code in LABELS)


def test_databases_can_be_chosen(tmp_path: Path) -> None:
    folder = published(tmp_path / "2021")
    dataset = open_dataset("physionet2021", folder, databases="georgia,ptb")
    assert [entry.id for entry in dataset.list().entries] == ["E00001", "S0001"]
    assert dataset.settings["databases"] == "ptb,georgia"
    with pytest.raises(SettingError, match="`databases` has 'umich'; it can have cpsc_2018"):
        open_dataset("physionet2021", folder, databases="umich")
    with pytest.raises(SourceError, match="holds no recording of ningbo"):
        one = folder / "training" / "ptb"
        open_dataset("physionet2021", one, databases="ningbo").list()


def test_cpsc_2018_alone_is_physionet2020_unless_it_is_asked_for(tmp_path: Path) -> None:
    folder = published(tmp_path / "2021") / "training" / "cpsc_2018"
    with pytest.raises(SourceError, match="looks like physionet2020, not physionet2021"):
        open_dataset("physionet2021", folder).list()
    assert len(open_dataset("physionet2020", folder).list().entries) == 1
    chosen = open_dataset("physionet2021", folder, databases="cpsc_2018")
    assert list(read_all(chosen)) == ["A0001"]


@pytest.mark.parametrize("name", ["chapman", "physionet2017", "physionet2020", "ptbxl"])
def test_under_another_name_it_is_recognized(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=f"looks like physionet2021, not {name}"):
        open_dataset(name, zipped(published(tmp_path / "2021"))).list()


def test_chapman_s_part_of_the_challenge_is_not_taken_for_chapman(tmp_path: Path) -> None:
    folder = published(tmp_path / "2021") / "training" / "chapman_shaoxing"
    with pytest.raises(SourceError, match="looks like physionet2021, not chapman"):
        open_dataset("chapman", folder).list()
    assert list(read_all(open_dataset("physionet2021", folder))) == ["JS00001"]


def test_the_real_recordings_of_cpsc_2018_keep_their_name(real_data: Path) -> None:
    folder = real_data / "samples" / "physionet2020"
    with pytest.raises(SourceError, match="looks like physionet2020, not physionet2021"):
        open_dataset("physionet2021", folder).list()
    chosen = read_all(open_dataset("physionet2021", folder, databases="cpsc_2018"))
    assert len(chosen) == 24
    assert {one.extra["database"] for one in chosen.values()} == {"cpsc_2018"}


def test_a_folder_s_name_counts_and_else_that_of_the_recording() -> None:
    assert database_of("training/ningbo/g1/X1.hea") == "ningbo"
    names = {"JS10646": "chapman_shaoxing", "JS10647": "ningbo", "E00001": "georgia", "r1": ""}
    assert {name: database_of(f"flat/{name}.hea") for name in names} == names
    assert set(DATABASES) == set(RECORDS)


def test_a_recording_without_its_samples_or_header_goes_to_quarantine(tmp_path: Path) -> None:
    folder = published(tmp_path / "2021")
    (folder / "training" / "georgia" / "g2" / "E00001.dat").unlink()
    (folder / "training" / "ptb" / "g1" / "S0001.hea").unlink()
    store = clocs.prepare("physionet2021", folder, out=tmp_path / "store")
    assert sorted(store.quarantine["id"]) == ["E00001", "S0001"]
    assert store.manifest.recordings == 6
