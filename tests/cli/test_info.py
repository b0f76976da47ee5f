from __future__ import annotations

import io
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from clocs.cli.tables import store_tables
from clocs.frames.make import make_frames
from clocs.frames.splits import PARTS, assign
from clocs.models.describe import store_facts
from clocs.recording import Episode, FrameSpec, Recording
from clocs.store.prepare import prepare
from clocs.store.store import Store
from fake_dataset import FakeDataset


def slow_frames(store: Store, spec: FrameSpec) -> list[tuple[str, int, tuple[str, ...]]]:
    """(recording, frame, labels) of every frame that is kept, one at a time."""
    found = []
    for recording in store.iter_recordings():
        width = round(spec.seconds * recording.rate)
        for frame in range(recording.samples // width):
            labels = recording.labels
            if recording.episodes:
                at = frame * width
                labels = tuple(e.label for e in recording.episodes if e.start <= at < e.stop)
                if not set(labels) & set(store.manifest.labels):
                    continue
            found.append((recording.id, frame, labels))
    return found


def episodes(number: int, recording: Recording) -> Recording:
    """Every second recording labeled by episodes, some with a label outside the dataset."""
    if number % 2:
        return recording
    edges = (0, 900, 2600, 2600 + 400 * (number % 9), recording.samples - 100)
    stretches = zip(edges, edges[1:], ("A", "B", "C", "A"), strict=False)
    return replace(
        recording, labels=(), episodes=tuple(Episode(*one) for one in stretches if one[0] < one[1])
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    fake = FakeDataset(
        count=60, samples=7600, change=episodes, frame=FrameSpec(2.0), segment_frame=FrameSpec(1.5)
    )
    return prepare(fake, out=tmp_path_factory.mktemp("info") / "store")


def test_counts_equal_those_of_a_slow_twin(store: Store) -> None:
    info = store_facts(store, leads=["II", "aVR"])
    patients = dict(store.table.select("id", "patient").iter_rows())
    frames = slow_frames(store, store.manifest.frame)
    assert info["frames"] == 2 * len(frames)
    for label in store.manifest.labels:
        assert info["label_frames"][label] == 2 * sum(label in labels for _, _, labels in frames)
    part_of = {name: PARTS[assign([who], "fake")[0]] for name, who in patients.items()}
    per_part = Counter(part_of[name] for name, _, _ in frames)
    segments = {(name, i) for name, i, _ in slow_frames(store, store.manifest.segment_frame)}
    pairs = [name for name, i in segments if i % 2 == 0 and (name, i + 1) in segments]
    pairs_per_part = Counter(part_of[name] for name in pairs)
    for part in ("train", "validation", "test"):
        assert info["splits"][part]["frames"] == 2 * per_part[part]
        assert info["instances"]["simclr"][part] == 2 * per_part[part]
        assert info["instances"]["cmlc"][part] == per_part[part]
        assert info["instances"]["cmsc"][part] == 2 * pairs_per_part[part]
        assert info["instances"]["cmsmlc"][part] == pairs_per_part[part]
    assert info["instances"]["cmsc"]["total"] == 2 * len(pairs)
    every = sum(
        r.samples // round(store.manifest.frame.seconds * r.rate) for r in store.iter_recordings()
    )
    assert sum(info["left_out_frames"].values()) == every - len(frames) > 0
    assert info["left_out_frames"]["C"] > 0


def test_frames_have_the_labels_that_info_counts(store: Store) -> None:
    """Recordings with labels, with episodes and with both."""
    kinds = {(bool(r.labels), bool(r.episodes)) for r in store.iter_recordings()}
    assert kinds == {(True, False), (False, True), (True, True)}
    info, frames = store_facts(store), make_frames(store)
    assert info["frames"] == len(frames.starts) * 4
    counted = dict(zip(frames.labels, (frames.target.sum(axis=0) * 4).tolist(), strict=True))
    assert info["label_frames"] == counted
    assert (frames.target.sum(axis=1) == 1).all()


def test_parts_add_up_to_the_whole(store: Store) -> None:
    info = store_facts(store)
    for what in ("patients", "recordings", "frames"):
        assert sum(part[what] for part in info["splits"].values()) == info[what]
    assert info["recordings"] == len(store) == 48
    assert info["quarantined"] == len(info["quarantine_list"]) == 13
    assert info["quarantine"] == {"flat": 6, "unreadable": 6, "no label": 1}
    assert info["rows_without_recording"] == len(info["rows_without_recording_list"]) == 2


def test_info_is_json_with_all_documented_keys(store: Store) -> None:
    info = json.loads(json.dumps(store_facts(store)))
    promised = "dataset recordings patients frames leads rate labels splits instances quarantined"
    assert set(promised.split()) <= set(info)
    assert info["rate"] == 500.0
    assert info["leads"] == ["II", "V2", "aVL", "aVR"]


def test_leads_that_recordings_have_are_counted_and_no_others(tmp_path: Path) -> None:
    def fewer(number: int, recording: Recording) -> Recording:
        return recording.select(["II"]) if number % 2 else recording

    store = prepare(FakeDataset(change=fewer), out=tmp_path / "store")
    info = store_facts(store, leads=["II", "V2"])
    assert info["recordings_without_leads"] == 0
    assert info["recordings_lacking_leads"] == 15
    assert info["frames"] == 40 + 25
    assert sum(info["label_frames"].values()) == 40 + 25
    assert info["instances"]["simclr"]["total"] == 40 + 25
    assert info["instances"]["cmlc"]["total"] == 25
    alone = store_facts(store, leads=["V2"])
    assert (alone["recordings_without_leads"], alone["frames"]) == (15, 25)
    assert info["lead_sets"] == [
        {"leads": ["II", "V2", "aVL", "aVR"], "recordings": 25},
        {"leads": ["II"], "recordings": 15},
    ]
    assert info["rates"] == {"500": 40}
    page = io.StringIO()
    Console(file=page, width=100).print(store_tables(info, "store"))
    assert "15 recordings lack some of these leads" in page.getvalue()


def test_tables_show_the_counts_and_the_reasons_of_the_quarantine(tmp_path: Path) -> None:
    info = store_facts(prepare(FakeDataset(count=150), out=tmp_path / "store"))

    def shown(verbose: bool) -> str:
        page = io.StringIO()
        Console(file=page, width=100).print(store_tables(info, "my store", verbose=verbose))
        return page.getvalue()

    text = shown(verbose=False)
    assert re.search(r"recordings +│ 120 .*patients +│ 75 ", text, re.DOTALL)
    assert "cmsmlc" in text
    assert all(reason in text for reason in info["quarantine"])
    ids = [one["id"] for one in info["quarantine_list"]]
    assert sum(f" {one} " in text for one in ids) == len(info["quarantine"]) < len(ids)
    assert "clocs info 'my store' --verbose" in text
    assert all(f" {one} " in shown(verbose=True) for one in ids)


def test_a_hundred_thousand_recordings_count_as_their_parts_do(store: Store) -> None:
    copies = 100_000 // len(store)
    table = pl.concat([store.table] * copies)
    number = pl.int_range(pl.len()).cast(pl.String)
    table = table.with_columns(patient=pl.col("patient") + "-" + number)
    large = Store(store.path, store.manifest)
    vars(large)["table"] = table
    assert store_facts(large)["frames"] == copies * store_facts(store)["frames"]
