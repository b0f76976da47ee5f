from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from zarr.codecs import BloscCodec

from clocs.datasets.base import Entry
from clocs.errors import SettingError, StoreError
from clocs.frames.make import make_frames
from clocs.recording import Episode, Gap, Recording
from clocs.store import chunks
from clocs.store.manifest import FileHash
from clocs.store.prepare import prepare
from clocs.store.store import Store, content_hash, open_store
from damage import read_damaged
from fake_dataset import FakeDataset


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(chunks, "CHUNK_SAMPLES", 30_000)
    return prepare(FakeDataset(), out=tmp_path / "store")


def same(one: Recording, other: Recording) -> bool:
    return all(
        np.array_equal(a, b) and a.dtype == b.dtype if isinstance(a, np.ndarray) else a == b
        for a, b in ((getattr(one, f.name), getattr(other, f.name)) for f in fields(Recording))
    )


def test_recordings_come_back_exactly_by_row_by_id_and_in_turn(store: Store) -> None:
    fake = FakeDataset()
    in_turn = list(store.iter_recordings())
    assert len(in_turn) == len(store) == 40
    for row, recording in enumerate(in_turn):
        wanted = fake.recording(int(recording.id[1:]), recording.patient)
        assert same(recording, wanted)
        assert same(store.recording(row), wanted)
        assert same(store.recording(recording.id), wanted)


recordings = st.builds(
    lambda digital, **rest: Recording(
        digital=digital,
        leads=tuple(f"L{i}" for i in range(digital.shape[0])),
        gain=np.linspace(100.1, 1e4, digital.shape[0]),
        baseline=np.arange(digital.shape[0], dtype=np.int32) - 7,
        **rest,
    ),
    digital=npst.arrays(np.int16, npst.array_shapes(min_dims=2, max_dims=2, max_side=50)),
    id=st.just(""),
    patient=st.text(max_size=5),
    rate=st.floats(50, 1e4),
    unit=st.sampled_from(["mV", "adu"]),
    labels=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    episodes=st.lists(
        st.builds(Episode, st.integers(0, 9), st.integers(0, 99), st.text(max_size=3)), max_size=3
    ).map(tuple),
    age=st.none() | st.floats(0, 120),
    sex=st.sampled_from([None, "male", "female"]),
    extra=st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(recordings, min_size=1, max_size=8), st.integers(1, 300))
def test_any_recording_survives_the_store(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    given_: list[Recording],
    chunk: int,
) -> None:
    kept = {name: f for name, f in ((f.name, f) for f in fields(Recording)) if name != "id"}
    wanted = [
        Recording(id=f"r{i}", **{name: getattr(recording, name) for name in kept})
        for i, recording in enumerate(given_)
    ]

    class Given(FakeDataset):
        def read(self, entry: Entry) -> Recording:
            return wanted[int(entry.id[1:])]

    monkeypatch.setattr(chunks, "CHUNK_SAMPLES", chunk)
    store = prepare(Given(count=len(wanted)), out=tmp_path_factory.mktemp("any") / "store")
    store.verify()
    assert all(same(a, b) for a, b in zip(store.iter_recordings(), wanted, strict=True))


def test_leads_come_by_name_in_the_order_asked_for(store: Store) -> None:
    for row, digital in store.iter_signals(leads=("aVR", "II")):
        assert np.array_equal(digital, store.recording(row).digital[[3, 0]])
    assert next(store.iter_signals(leads=("V6", "V2")))[1].shape[0] == 1  # it has no V6


def test_iterating_decodes_every_chunk_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    real = chunks.decompress

    def counting(encoded: bytes, samples: int) -> np.ndarray:
        decoded.append(samples)
        return real(encoded, samples)

    monkeypatch.setattr(chunks, "decompress", counting)
    assert sum(1 for _ in store.iter_recordings()) == 40
    assert len(decoded) == store.manifest.chunks > 20


def test_zarr_opens_the_signals_as_one_flat_array(store: Store) -> None:
    array = zarr.open_array(store.path / "signals", mode="r")
    assert array.shape == (store.manifest.samples,)
    assert array.dtype == np.int16
    flat = np.concatenate([digital.ravel() for _, digital in store.iter_signals()])
    assert np.array_equal(array[:], flat)
    zarr.create_array(
        store.path.parent / "made",
        shape=array.shape,
        chunks=array.chunks,
        dtype="int16",
        fill_value=0,
        compressors=BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"),
    )
    folders = (store.path.parent / "made", store.path / "signals")
    headers = [json.loads((folder / "zarr.json").read_text()) for folder in folders]
    assert headers[0] == headers[1]


def test_default_leads_are_the_papers_four_or_else_those_of_half_of_the_recordings(
    store: Store, tmp_path: Path
) -> None:
    assert store.choose_leads() == ("II", "V2", "aVL", "aVR")
    assert store.choose_leads(["avr", "II"]) == ("aVR", "II")
    with pytest.raises(SettingError, match="no lead V5; choose from II"):
        store.choose_leads(["V5"])

    def fewer(number: int, recording: Recording) -> Recording:
        return recording if number % 3 == 0 else recording.select(["V2", "II"])

    mixed = prepare(FakeDataset(change=fewer), out=tmp_path / "mixed")
    assert mixed.leads == ("II", "V2", "aVL", "aVR")
    assert mixed.choose_leads() == ("II", "V2")
    assert mixed.rows_with(["aVR"]).size == 14
    assert mixed.rows_with(["II"]).size == 40


def test_no_absolute_path_is_in_the_manifest(store: Store) -> None:
    assert str(store.path.parent) not in (store.path / "manifest.json").read_text()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["table.parquet", "signals/c/3", "signals/zarr.json"])
@pytest.mark.parametrize("damage", [truncate, Path.unlink])
def test_opening_notices_files_that_are_missing_or_cut_short(
    store: Store, name: str, damage: Callable[[Path], None]
) -> None:
    damage(store.path / name)
    with pytest.raises(StoreError, match=r"(damaged|missing).*run `clocs prepare` again"):
        open_store(store.path)


@pytest.mark.parametrize(
    "name", ["table.parquet", "quarantine.parquet", "rows_without_recording.json"]
)
def test_verify_notices_a_changed_byte_in_a_file(store: Store, name: str) -> None:
    store.verify()
    change_last_byte(store.path / name)
    with pytest.raises(StoreError, match=f"{name} is damaged"):
        store.verify()


def test_verify_names_the_recording_whose_samples_changed(store: Store) -> None:
    path = store.path / "signals" / "c" / "0"
    changed = chunks.decompress(path.read_bytes(), 30_000).copy()
    changed[20_010] += 1
    chunks.write_chunk(store.path / "signals", 0, changed)
    with pytest.raises(StoreError, match="samples of recording r1 have changed"):
        store.verify()


READS: dict[str, Callable[[Store], object]] = {
    "recording": lambda store: store.recording("r1"),
    "iter_signals": lambda store: list(store.iter_signals()),
    "iter_recordings": lambda store: list(store.iter_recordings()),
    "make_frames": make_frames,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_changed_sample_is_noticed_by_whoever_reads_it(
    store: Store, read: Callable[[Store], object]
) -> None:
    path = store.path / "signals" / "c" / "0"
    changed = chunks.decompress(path.read_bytes(), 30_000).copy()
    changed[20_010] ^= 1
    chunks.write_chunk(store.path / "signals", 0, changed)
    store.recording(0)  # lies before it
    with pytest.raises(StoreError, match="samples of recording r1 have changed"):
        read(store)


def test_no_flipped_bit_of_a_store_changes_what_is_read(tmp_path: Path) -> None:
    small = FakeDataset(count=4, samples=300)
    folder = prepare(small, out=tmp_path / "store").path

    def read() -> object:
        opened = open_store(folder)
        return (
            [(one.id, one.digital.tobytes(), str(one)) for one in opened.iter_recordings()],
            (opened.table.rows(), opened.quarantine.rows(), opened.rows_without_recording),
            opened.manifest,
        )

    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        refused = read_damaged(file, read, most=120)
        assert refused > 40 or file.name in ("zarr.json", "rows_without_recording.json"), file


def test_a_chunk_that_is_no_chunk_is_named(store: Store) -> None:
    path = store.path / "signals" / "c" / "2"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StoreError, match=r"c/2 is damaged"):
        open_store(store.path).verify()


def test_a_store_of_another_format_says_so(store: Store) -> None:
    path = store.path / "manifest.json"
    path.write_text(path.read_text().replace('"format": 3', '"format": 99'))
    with pytest.raises(StoreError, match=r"format 99, but .* reads formats 3 to 4"):
        open_store(store.path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}'])
def test_a_manifest_that_is_none_says_so(store: Store, text: str) -> None:
    (store.path / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
        open_store(store.path)


def test_an_edited_manifest_says_so(store: Store) -> None:
    path = store.path / "manifest.json"
    path.write_text(path.read_text().replace('"batch_size": 256', '"batch_size": 255'))
    with pytest.raises(StoreError, match="differs from its own hash"):
        open_store(store.path)


def test_what_is_no_store_gets_a_sentence_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist; make a store with `clocs prepare"):
        open_store(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="is not a store"):
        open_store(tmp_path)


def test_a_table_that_does_not_fit_its_samples_is_refused_even_with_the_right_hashes(
    store: Store,
) -> None:
    outside = [{"start": 0, "stop": 10**6, "lead": "II"}]
    foreign = [{"start": 0, "stop": 1, "lead": "V9"}]
    gaps = store.table.schema["gaps"]
    tables = {
        "a gap outside": store.table.with_columns(pl.lit(outside, dtype=gaps).alias("gaps")),
        "a gap elsewhere": store.table.with_columns(pl.lit(foreign, dtype=gaps).alias("gaps")),
        "offset": store.table.with_columns(pl.col("offset").reverse()),
        "gap": store.table.with_columns(pl.col("digest").replace(store.table["digest"][0], None)),
        "leads": store.table.with_columns(pl.lit(["II"] * 4).alias("leads")),
        "columns": store.table.drop("rate"),
    }
    for what, table in tables.items():
        table.write_parquet(store.path / "table.parquet")
        files = {
            **store.manifest.files,
            "table.parquet": FileHash.from_file(store.path / "table.parquet"),
        }
        replace(store.manifest, files=files).write(store.path)
        with pytest.raises(StoreError, match=r"table.parquet does not hold what it should"):
            open_store(store.path)
            pytest.fail(what)


def rewritten(store: Store, table: pl.DataFrame, version: int) -> Store:
    """The same store with another table, as of another format."""
    table.write_parquet(store.path / "table.parquet")
    files = {
        **store.manifest.files,
        "table.parquet": FileHash.from_file(store.path / "table.parquet"),
    }
    replace(store.manifest, files=files, format=version).write(store.path)
    return open_store(store.path)


def test_gaps_and_folds_come_back_from_a_store(tmp_path: Path) -> None:
    def change(number: int, recording: Recording) -> Recording:
        gaps = (Gap(5, 9, "V2"), Gap(100, 5000, "II")) if number == 4 else ()
        return replace(recording, gaps=gaps, fold=str(number) if number % 2 else None)

    made = prepare(FakeDataset(count=6, change=change), out=tmp_path / "store")
    back = {one.id: one for one in made.iter_recordings()}
    assert back["r4"].gaps == (Gap(5, 9, "V2"), Gap(100, 5000, "II"))
    assert np.isnan(back["r4"].signal[1, 5:9]).all()
    assert [back[name].fold for name in ("r0", "r1", "r5")] == [None, "1", "5"]
    assert back["r0"].gaps == ()


def test_the_content_hash_leaves_out_columns_that_say_nothing(store: Store) -> None:
    written = io.BytesIO()
    store.table.drop("gaps", "fold", "flat").write_ndjson(written)
    assert store.manifest.content_hash == hashlib.sha256(written.getvalue()).hexdigest()
    with pytest.raises(StoreError, match="a store of format 2, but this version of clocs reads"):
        rewritten(store, store.table, 2)


def test_gaps_and_folds_are_part_of_the_content_hash(store: Store) -> None:
    gap = pl.lit([{"start": 0, "stop": 1, "lead": "II"}], dtype=store.table.schema["gaps"])
    hashes = {
        content_hash(table)
        for table in (
            store.table,
            store.table.with_columns(gap.alias("gaps")),
            store.table.with_columns(pl.lit("1").alias("fold")),
        )
    }
    assert len(hashes) == 3
