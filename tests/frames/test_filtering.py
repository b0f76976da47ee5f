"""Declared filters: the same wherever an encoder is used; where there are none, nothing changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Store
from clocs.errors import ClocsWarning, SettingError, StoreError
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.frames.signals import filtered
from clocs.patients.embed import embed_recordings
from clocs.recording import Filters, FrameSpec, Recording
from clocs.store.prepare import prepare
from clocs.store.store import open_store
from clocs.training import Settings
from clocs.training.card import parse_card
from fake_dataset import FakeDataset

ALL = Filters((0.5, 40), 50, baseline=True)
FRAME = FrameSpec(2.5, 512)
ONE_EPOCH = Settings(epochs=1, patience=1, batch_size=16)


def wave(hz: float, rate: float = 500.0, seconds: float = 20.0) -> np.ndarray:
    time = np.arange(round(seconds * rate)) / rate
    return np.asarray(np.sin(2 * np.pi * hz * time))


def kept(filters: Filters, hz: float, rate: float = 500.0) -> float:
    """The share of a wave's amplitude that is left, away from the ends."""
    made = filtered(wave(hz, rate)[None], rate, filters)[0]
    middle = slice(len(made) // 4, -len(made) // 4)
    return float(np.sqrt(2 * np.mean(made[middle] ** 2)))


def test_each_filter_takes_out_what_it_says_and_keeps_the_rest() -> None:
    band = Filters(band_pass=(0.5, 40))
    assert kept(band, 10) > 0.98 and kept(band, 0.1) < 0.02 and kept(band, 120) < 0.02
    assert kept(Filters(notch=50), 50) < 0.01 and kept(Filters(notch=50), 45) > 0.9
    assert kept(Filters(notch=60), 60) < 0.01 and kept(Filters(notch=60), 50) > 0.95
    assert kept(Filters(baseline=True), 0.15) < 0.05 and kept(Filters(baseline=True), 2) > 0.98
    # there is nothing above half of the rate to be taken out
    assert kept(Filters(band_pass=(0.5, 60)), 10, rate=100) > 0.98
    assert kept(Filters(notch=50), 10, rate=100) > 0.98


def test_filters_do_not_shift_a_signal() -> None:
    pulse = np.exp(-0.5 * ((np.arange(5000) - 2500) / 10) ** 2)
    made = filtered(pulse[None], 500.0, ALL)[0]
    assert abs(int(made.argmax()) - 2500) <= 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"band_pass": (40, 0.5)}, "must begin at"),
        ({"band_pass": (0.5,)}, "two frequencies"),
        ({"band_pass": (0.5, float("nan"))}, "must begin at"),
        ({"notch": 55}, "50 or 60 Hz"),
        ({"baseline": 1}, "True or False"),
    ],
)
def test_filters_that_make_no_sense_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Filters(**given)  # type: ignore[arg-type]


def changed(number: int, recording: Recording) -> Recording:
    drift = (300 * wave(0.1, seconds=20)[: recording.samples]).astype(np.int16)
    return replace(recording, digital=recording.digital + drift, episodes=())


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    made = FakeDataset(count=40, change=changed, frame=FRAME, segment_frame=FRAME)
    folder = tmp_path_factory.mktemp("filters")
    return (
        prepare(made, out=folder / "plain"),
        prepare(made, out=folder / "filtered", band_pass="0.5-40", notch=50, baseline=True),
    )


@pytest.fixture(scope="module")
def trained(
    stores: tuple[Store, Store], tmp_path_factory: pytest.TempPathFactory
) -> list[clocs.Checkpoint]:
    out = tmp_path_factory.mktemp("out")
    return clocs.pretrain(stores[1], out=out, settings=ONE_EPOCH, device="cpu", embedding_dim=8)


def test_a_store_keeps_its_samples_and_says_how_they_are_filtered(
    stores: tuple[Store, Store],
) -> None:
    plain, other = stores
    assert plain.manifest.content_hash == other.manifest.content_hash
    assert open_store(other.path).manifest.frame.filters == ALL
    assert "filters" not in json.loads((plain.path / "manifest.json").read_text())["frame"]
    with pytest.raises(StoreError, match="another filters"):
        prepare(
            FakeDataset(count=40, change=changed, frame=FRAME, segment_frame=FRAME), out=other.path
        )


@pytest.mark.parametrize("spec", [FRAME, FrameSpec(2.5, 1250)])
def test_frames_are_cut_from_the_filtered_recording(
    stores: tuple[Store, Store], spec: FrameSpec, tmp_path: Path
) -> None:
    frames = make_frames(stores[1], spec=replace(spec, filters=ALL))
    recording = stores[1].recording(0)
    whole = filtered(recording.signal, recording.rate, ALL)
    rows = np.flatnonzero(frames.recording == 0)
    got = frames.windows(rows, 1).ravel()
    if spec.samples == 1250:
        np.testing.assert_allclose(got, whole[1, : len(got)], atol=2e-3)
    assert abs(got.mean()) < 0.2 * abs(make_frames(stores[0], spec=spec).windows(rows, 1).mean())
    frames.save(tmp_path / "frames.safetensors")
    assert Frames.load(tmp_path / "frames.safetensors").spec == frames.spec


def test_the_card_keeps_the_filters_and_every_use_applies_them(
    stores: tuple[Store, Store], trained: list[clocs.Checkpoint]
) -> None:
    plain, other = stores
    card = parse_card(trained[0].card.json())
    assert card.frame.filters == card.frame_trained.filters == ALL
    # whatever the store says, the encoder sees what it learned on
    with pytest.warns(ClocsWarning, match=r"filtered as the encoder needs it .* declares \(none\)"):
        first = clocs.embed(trained[0], plain, level="frame", device="cpu")
    second = clocs.embed(trained[0], other, level="frame", device="cpu")
    np.testing.assert_array_equal(first.vectors, second.vectors)
    files = embed_recordings(trained[0], [plain.recording(i) for i in range(3)], level="frame")
    np.testing.assert_array_equal(files.vectors, second.vectors[: len(files)])
    scores = [
        clocs.evaluate(trained, one, settings=ONE_EPOCH, resamples=0, device="cpu").auc
        for one in stores
    ]
    assert scores[0] == scores[1]
    frames = make_frames(other)
    assert frames.spec.filters == ALL


def test_encoders_of_different_filters_are_not_evaluated_together(
    stores: tuple[Store, Store], trained: list[clocs.Checkpoint], tmp_path: Path
) -> None:
    without = clocs.pretrain(
        stores[0], out=tmp_path, settings=ONE_EPOCH, device="cpu", embedding_dim=8
    )
    assert b"filters" not in without[0].card.json()
    with pytest.raises(SettingError, match="trained with different filters"):
        clocs.evaluate_many([trained, without], stores[0], device="cpu")
