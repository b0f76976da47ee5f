from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clocs.datasets.base import Entry, Listing
from clocs.errors import SettingError, StoreError
from clocs.formats.source import open_source
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.recording import Recording
from clocs.store import chunks
from clocs.store.manifest import shard_of
from clocs.store.prepare import prepare
from clocs.store.shards import files_of_shards
from clocs.store.store import Store, expect_different_stores, open_store
from fake_dataset import FakeDataset


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_SAMPLES", 30_000)
    monkeypatch.setattr(chunks, "CHUNKS_PER_PART", 2)


def mixed(number: int, recording: Recording) -> Recording:
    """Leads differ from recording to recording, so that their order shows."""
    return recording if number % 3 else recording.select(["aVR", "II"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return prepare(FakeDataset(change=mixed), out=tmp_path / "store", shards=3)


def test_a_store_in_shards_opens_as_one_and_holds_the_same_recordings(
    store: Store, tmp_path: Path
) -> None:
    whole = prepare(FakeDataset(change=mixed), out=tmp_path / "whole")
    again = open_store(store.path)
    again.verify()
    assert len(again.shards) == 3
    assert all(len(one) for one in again.shards)
    assert len(again) == len(whole) == again.table.height
    places = {name: row for row, name in enumerate(whole.table["id"])}
    order = [shard_of(patient, 3) for patient in whole.table["patient"]]
    assert [places[name] for name in again.table["id"]] == np.argsort(order, kind="stable").tolist()
    for one, other in ((again.table, whole.table), (again.quarantine, whole.quarantine)):
        columns = [name for name in one.columns if name != "offset"]
        assert one.select(columns).sort("id").equals(other.select(columns).sort("id"))
    for row, digital in again.iter_signals():
        wanted = whole.recording(again.table["id"][row]).digital
        assert np.array_equal(digital, wanted)
        assert np.array_equal(again.recording(row).digital, wanted)
    assert sorted(again.rows_without_recording) == sorted(whole.rows_without_recording)
    assert again.leads == whole.leads
    for fact in ("dataset", "source", "fingerprint", "labels", "frame", "patients", "samples"):
        assert getattr(again.manifest, fact) == getattr(whole.manifest, fact), fact


def test_frames_are_those_of_a_store_in_one_piece(store: Store, tmp_path: Path) -> None:
    whole = make_frames(prepare(FakeDataset(change=mixed), out=tmp_path / "whole"))
    frames = make_frames(store)
    assert frames.leads == whole.leads

    def by_recording(of: Frames) -> dict[tuple[str, int], tuple[object, ...]]:
        return {
            (of.recording_ids[of.recording[i]], int(of.segment[i])): (
                [at >= 0 and of.signals[at : at + of.spec.samples].tobytes() for at in starts],
                of.scale[i].tobytes(),
                of.patient_ids[of.patient[i]],
                int(of.split[i]),
                of.target[i].tolist(),
            )
            for i, starts in enumerate(of.starts)
        }

    assert by_recording(frames) == by_recording(whole)


def test_a_patients_recordings_are_in_one_shard(store: Store) -> None:
    people = [set(one.table["patient"]) for one in store.shards]
    assert sum(map(len, people)) == len(set.union(*people)) == store.manifest.patients
    for number, own in enumerate(people):
        assert {shard_of(patient, 3) for patient in own} == {number}


def test_a_shard_is_a_store_of_its_own(store: Store) -> None:
    one = open_store(store.shards[1].path)
    one.verify()
    assert set(one.table["id"]) < set(store.table["id"])
    with pytest.raises(SettingError, match="given twice"):
        expect_different_stores([store, one])
    expect_different_stores([one, open_store(store.shards[0].path)])


def test_a_second_entry_of_the_same_id_goes_to_quarantine_whatever_its_patient(
    tmp_path: Path,
) -> None:
    class Twice(FakeDataset):
        def list(self) -> Listing:
            entries = super().list().entries
            more = tuple(Entry("r2", f"other{i}", f"again{i}.dat") for i in range(6))
            return Listing(entries=(*entries, *more))

    made = prepare(Twice(), out=tmp_path / "store", shards=4)
    assert made.table["id"].is_unique().all()
    assert made.recording("r2").patient == "p1"
    repeated = made.quarantine.filter(reason="duplicate id")
    assert sorted(repeated["detail"]) == [
        f"again{i}.dat has the ID of r2.dat, which is used" for i in range(6)
    ]
    assert repeated.height == 6


def test_recordings_that_take_the_same_id_only_when_read_are_refused_at_joining(
    tmp_path: Path,
) -> None:
    class Renamed(FakeDataset):
        def read(self, entry: Entry) -> Recording:
            made = super().read(entry)
            object.__setattr__(made, "id", "same")
            return made

    with pytest.raises(StoreError, match="holds the recording same in two shards"):
        prepare(Renamed(), out=tmp_path / "store", shards=2)


def test_patients_that_only_reading_tells_are_together_where_the_listing_says_so(
    tmp_path: Path,
) -> None:
    class Said(FakeDataset):
        by_reading = True

        def list(self) -> Listing:
            made = super().list()
            known = not self.by_reading
            entries = (Entry(one.id, one.id, one.path) for one in made.entries)
            return Listing(tuple(replace(one, patient_is_known=known) for one in entries))

        def read(self, entry: Entry) -> Recording:
            made = super().read(entry)
            object.__setattr__(made, "patient", f"p{int(entry.id[1:]) // 5}")
            return made

    with pytest.warns(UserWarning, match="50 files are read once more"):
        made = prepare(Said(), out=tmp_path / "store", shards=4)
    assert made.manifest.patients == made.table["patient"].n_unique() == 10
    silent = Said()
    silent.by_reading = False
    with pytest.raises(StoreError, match=r"listed with another.*`shards`"):
        prepare(silent, out=tmp_path / "other", shards=4)


def test_more_shards_than_patients_leave_some_empty(tmp_path: Path) -> None:
    made = prepare(FakeDataset(count=6), out=tmp_path / "store", shards=16)
    made.verify()
    assert sum(len(one) == 0 for one in made.shards) >= 13
    assert len(list(made.iter_recordings())) == 5


def test_without_a_usable_recording_there_is_no_store(tmp_path: Path) -> None:
    class Flat(FakeDataset):
        def read(self, entry: Entry) -> Recording:
            return super().read(Entry("r3", entry.patient, entry.path))

    with pytest.raises(StoreError, match=r"no recording of fake is usable \(50 flat, such as: all"):
        prepare(Flat(), out=tmp_path / "store", shards=3)
    assert not list((tmp_path / "store").iterdir())


def test_an_interrupted_run_goes_on_from_the_journals_and_gives_the_same_store(
    store: Store, tmp_path: Path
) -> None:
    class Fails(FakeDataset):
        def read(self, entry: Entry) -> Recording:
            if len(self.seen) == 30:
                raise RuntimeError("a defect")
            return super().read(entry)

    out = tmp_path / "interrupted"
    with pytest.raises(RuntimeError, match="a defect"):
        prepare(Fails(change=mixed), out=out, shards=3)
    with pytest.raises(StoreError, match=r"incomplete: \d of 3 shards; run the same"):
        open_store(out)
    second = FakeDataset(change=mixed)
    assert prepare(second, out=out, shards=3).manifest == store.manifest
    assert 20 <= len(second.seen) < 35
    third = FakeDataset(change=mixed)
    prepare(third, out=out, shards=3)
    assert not third.seen
    assert contents(out) == contents(store.path)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_missing_or_damaged_shard_gets_a_sentence_and_is_made_again(
    store: Store, tmp_path: Path
) -> None:
    before = contents(store.path)
    shard = store.shards[1].path
    shutil.rmtree(shard)
    with pytest.raises(
        StoreError, match=r"the shard .*shard-0001-of-0003 is missing; run the same"
    ):
        open_store(store.path)
    dataset = FakeDataset(change=mixed)
    prepare(dataset, out=store.path, shards=3)
    assert len(dataset.seen) == len(store.shards[1]) + store.shards[1].manifest.quarantined - 1
    assert contents(store.path) == before

    table = shard / "table.parquet"
    table.write_bytes(table.read_bytes()[:-1] + b"!")
    with pytest.raises(
        StoreError, match=r"table.parquet is damaged.*delete .*shard-0001-of-0003 and"
    ):
        open_store(store.path).table  # noqa: B018
    shutil.rmtree(shard)
    prepare(FakeDataset(change=mixed), out=store.path, shards=3)

    shutil.rmtree(shard)
    shutil.copytree(store.shards[0].path, shard)
    with pytest.raises(StoreError, match=r"not the one that was joined; delete"):
        open_store(store.path)
    shutil.rmtree(shard)
    prepare(FakeDataset(change=mixed), out=store.path, shards=3)

    chunk = shard / "signals" / "c" / "0"
    changed = chunks.decompress(chunk.read_bytes(), 30_000).copy()
    changed[5] ^= 1
    chunks.write_chunk(shard / "signals", 0, changed)
    with pytest.raises(StoreError, match=r"0001-of-0003 is damaged \(the samples of recording"):
        open_store(store.path).verify()


def test_a_damaged_manifest_is_written_again_without_reading(store: Store) -> None:
    path = store.path / "manifest.json"
    good = path.read_bytes()
    path.write_text(good.decode().replace('"batch_size": 256', '"batch_size": 255'))
    with pytest.raises(
        StoreError, match=r"differs from its own hash\); delete .*manifest.json and"
    ):
        open_store(store.path)
    dataset = FakeDataset(change=mixed)
    prepare(dataset, out=store.path, shards=3)
    assert not dataset.seen
    assert path.read_bytes() == good


def test_a_forged_manifest_cannot_name_a_shard_elsewhere(store: Store) -> None:
    from clocs.sealed import own_hash

    path = store.path / "manifest.json"
    fields = json.loads(path.read_text())
    del fields["sha256"]
    fields["shards"][0]["folder"] = "../store/shard-0000-of-0003"
    path.write_text(json.dumps(fields | {"sha256": own_hash(fields)}))
    with pytest.raises(StoreError, match="manifest of something else"):
        open_store(store.path)


def test_what_is_there_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="in 3 shards, not 4; give as many"):
        prepare(FakeDataset(), out=store.path, shards=4)
    with pytest.raises(StoreError, match="another source"):
        prepare(FakeDataset(fingerprint="two"), out=store.path, shards=3)
    whole = prepare(FakeDataset(), out=tmp_path / "whole")
    with pytest.raises(StoreError, match="already a store in one piece"):
        prepare(FakeDataset(), out=whole.path, shards=3)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="exists and is not a store"):
        prepare(FakeDataset(), out=foreign, shards=3)
    for number in (0, 10_000):
        with pytest.raises(SettingError, match="`shards` is"):
            prepare(FakeDataset(), out=tmp_path / "new", shards=number)


def test_ray_needs_a_number_of_shards(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="say with `shards` how many"):
        prepare("synthetic", out=tmp_path / "new", ray="auto")


def test_a_task_gets_the_files_of_its_recordings_and_those_of_none(tmp_path: Path) -> None:
    names = ["a/one.hea", "a/one.dat", "b/one.hea", "b/one.dat", "b/ONE.atr", "all.h5", "table.csv"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    source = open_source(tmp_path)
    entries = [Entry(str(i), "", path) for i, path in enumerate(["a/one.hea", "all.h5"])]
    more = [Entry(str(i), "", path) for i, path in enumerate(["b/one.hea", "all.h5"])]
    files = files_of_shards(source, [Listing(tuple(entries)), Listing(tuple(more))])
    assert [sorted(own) for own in files] == [
        ["a/one.dat", "a/one.hea", "all.h5", "table.csv"],
        ["all.h5", "b/ONE.atr", "b/one.dat", "b/one.hea", "table.csv"],
    ]
    assert source.only(files[0]).names == tuple(sorted(files[0]))
    assert "b/one.hea" not in source.only(files[0])
