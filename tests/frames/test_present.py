"""A lead that is not there is absent, never zero; a gap costs the frames that it touches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.frames.frames import ABSENT, Frames, join
from clocs.frames.make import make_frames, plan_frames
from clocs.frames.signals import bridged, touched
from clocs.frames.views import Views, instances
from clocs.recording import FrameSpec, Gap, Recording, flat_stretches
from clocs.store.prepare import prepare
from clocs.store.store import Store
from fake_dataset import FakeDataset

SHORT = FrameSpec(2.5, 500)  # resampled from 500 Hz to 200 Hz
AS_STORED = FrameSpec(2.5, 1250)


def changed(number: int, recording: Recording) -> Recording:
    if number == 1:
        return recording.select(["aVR", "II"])
    if number == 2:
        return replace(recording, gaps=(Gap(1300, 1310, "V2"), Gap(2499, 2501, "II")))
    if number == 4:
        return replace(recording, gaps=tuple(Gap(0, 1250, lead) for lead in recording.leads))
    return recording


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("mixed") / "store"
    return prepare(FakeDataset(count=6, change=changed, name="mixed"), out=folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return prepare(FakeDataset(count=6), out=tmp_path_factory.mktemp("whole") / "store")


def rows_of(frames: Frames, name: str) -> np.ndarray:
    return np.flatnonzero(frames.recording == frames.recording_ids.index(name))


@pytest.mark.parametrize("spec", [SHORT, AS_STORED])
def test_frames_of_a_mixed_store_are_those_of_a_whole_one_where_present(
    mixed: Store, whole: Store, spec: FrameSpec
) -> None:
    some, every = make_frames(mixed, spec=spec), make_frames(whole, spec=spec)
    assert every.present.all()
    assert some.leads == every.leads == ("II", "V2", "aVL", "aVR")
    for row in range(len(some)):
        name, segment = some.recording_ids[some.recording[row]], some.segment[row]
        own = rows_of(every, name)
        same = own[every.segment[own] == segment]
        for lead in range(4):
            got = some.windows(np.array([row]), lead)
            if not some.present[row, lead]:
                assert np.isnan(got).all() and np.isnan(some.scale[row, lead])
            elif name not in ("r2", "r4"):  # elsewhere a gap may change the last bits
                np.testing.assert_array_equal(got, every.windows(same, lead))
            else:
                np.testing.assert_allclose(got, every.windows(same, lead), atol=0.05)


def test_a_recording_without_a_lead_gives_frames_of_those_it_has(mixed: Store) -> None:
    frames = make_frames(mixed, spec=AS_STORED)
    assert frames.present[rows_of(frames, "r1")].tolist() == [[True, False, False, True]] * 4
    assert (frames.starts[rows_of(frames, "r1"), 1] == ABSENT).all()


def test_a_gap_costs_the_frames_of_its_lead_that_it_touches(mixed: Store) -> None:
    frames = make_frames(mixed, spec=AS_STORED)
    there = frames.present[rows_of(frames, "r2")]
    assert there[:, 0].tolist() == [True, False, False, True]  # 2499 and 2500 are in two frames
    assert there[:, 1].tolist() == [True, False, True, True]
    assert there[:, 2:].all()


def test_a_frame_without_any_signal_is_left_out(mixed: Store) -> None:
    frames = make_frames(mixed, spec=AS_STORED)
    assert frames.segment[rows_of(frames, "r4")].tolist() == [1, 2, 3]
    alone = frames.with_leads(["V2"])
    assert len(alone) == int(frames.present[:, 1].sum())
    assert alone.present.all()
    assert len(rows_of(alone, "r1")) == 0


def test_a_gap_does_not_leak_into_other_frames_when_a_recording_is_resampled(
    tmp_path: Path,
) -> None:
    """A step of 20 mV at a gap's edges would ring; a bridge does not."""

    def high(number: int, recording: Recording) -> Recording:
        time = np.arange(recording.samples) / recording.rate
        wave = np.rint(200 * np.sin(2 * np.pi * 3 * time) + 4000).astype(np.int16)
        digital = np.tile(wave, (len(recording.leads), 1))
        gaps = () if number != 5 else (Gap(1300, 1900, "II"),)
        for gap in gaps:
            digital[0, gap.start : gap.stop] = recording.baseline[0]
        return replace(recording, digital=digital, gaps=gaps)

    store = prepare(FakeDataset(count=6, change=high), out=tmp_path / "store")
    frames = make_frames(store, spec=SHORT, leads=["II"])
    clean, holed = (frames.windows(rows_of(frames, name)) for name in ("r0", "r5"))
    assert frames.segment[rows_of(frames, "r5")].tolist() == [0, 2, 3]
    assert np.abs(clean[[0, 2, 3]] - holed).max() < 0.01  # mV, of a wave of 1 mV around 20


def test_instances_of_leads_leave_out_absent_ones_and_those_of_frames_need_all(
    mixed: Store,
) -> None:
    frames = make_frames(mixed, spec=AS_STORED)
    one = instances(frames, of="lead", views=Views())
    assert len(one) == int(frames.present.sum())
    assert (one.windows >= 0).all() and np.isfinite(one.scale).all()
    pairs = instances(frames, of="lead", views=Views(segments=2))
    assert (pairs.windows >= 0).all()
    together = instances(frames, of="frame", views=Views(all_leads=True))
    assert (together.windows >= 0).all()
    assert len(together) == int(frames.present.all(axis=1).sum())
    both = instances(frames, of="frame", views=Views(segments=2, all_leads=True))
    assert (both.windows >= 0).all() and len(both) < len(pairs)


def test_absent_leads_stay_absent_in_joined_and_saved_frames(
    mixed: Store, whole: Store, tmp_path: Path
) -> None:
    first, second = make_frames(whole, spec=AS_STORED), make_frames(mixed, spec=AS_STORED)
    both = join([first, second])
    np.testing.assert_array_equal(both.present, np.concatenate([first.present, second.present]))
    row = len(first) + int(rows_of(second, "r1")[0])
    np.testing.assert_array_equal(
        both.windows(np.array([row])), second.windows(np.array([row - len(first)]))
    )
    both.save(tmp_path / "frames.safetensors")
    back = Frames.load(tmp_path / "frames.safetensors")
    np.testing.assert_array_equal(back.starts, both.starts)
    np.testing.assert_array_equal(back.scale, both.scale)


def test_only_the_leads_of_a_recording_take_memory(mixed: Store, whole: Store) -> None:
    some, every = (plan_frames(one, spec=AS_STORED) for one in (mixed, whole))
    lost = (some.counts * (4 - some.has.sum(axis=1))).sum() * AS_STORED.samples
    assert lost > 0
    sizes = [len(make_frames(one, spec=AS_STORED).signals) for one in (mixed, whole)]
    assert sizes[0] == sizes[1] - lost
    assert every.has.all()


@given(
    start=st.integers(0, 5000),
    size=st.integers(1, 4000),
    rate=st.floats(60, 1000),
    seconds=st.floats(0.5, 5),
)
@settings(deadline=None, max_examples=100)
def test_a_frame_is_touched_where_it_shares_a_sample(
    start: int, size: int, rate: float, seconds: float
) -> None:
    spec, gap = FrameSpec(seconds, 100), Gap(start, start + size, "II")
    first = np.rint(np.arange(20) * rate * seconds).astype(np.int64)
    got = touched(first, rate, spec, gap)
    for place, begin in enumerate(first):
        own = set(range(int(begin), int(begin + rate * seconds)))
        if own & set(range(gap.start, gap.stop)):
            assert got[place]


def test_a_bridge_is_a_line_between_the_values_beside_the_gap() -> None:
    digital = np.array([[0, 10, 0, 0, 40, 50], [7, 7, 7, 7, 7, 9]], np.int16)
    made = bridged(digital, ["II", "V2"], [Gap(2, 4, "II"), Gap(5, 6, "V2")])
    assert made.tolist() == [[0, 10, 20, 30, 40, 50], [7, 7, 7, 7, 7, 7]]
    assert digital[0, 2] == 0


def flattened(number: int, recording: Recording) -> Recording:
    digital = recording.digital.copy()
    if number == 1:
        digital[0, 1200:3800] = 32767  # saturated over two whole frames of lead II
    if number == 2:
        digital[:, 1250:2500] = 5  # an electrode that all leads need
    return replace(recording, digital=digital)


def test_flat_frames_are_skipped_where_the_dataset_asks_for_it(tmp_path: Path) -> None:
    kept, skipped = (
        make_frames(
            prepare(
                FakeDataset(count=3, change=flattened, skip_flat=skip), out=tmp_path / str(skip)
            ),
            spec=AS_STORED,
        )
        for skip in (False, True)
    )
    assert kept.present.all() and kept.without_signal == 0
    there = skipped.present[rows_of(skipped, "r1")]
    assert there[:, 0].tolist() == [True, False, False, True]
    assert there[:, 1:].all()
    assert skipped.segment[rows_of(skipped, "r2")].tolist() == [0, 2, 3]
    assert skipped.without_signal == 2 + 4


def test_flat_stretches_are_whole_seconds_without_a_step() -> None:
    recording = FakeDataset(samples=2000).recording(0, "p")
    digital = np.tile(np.arange(2000, dtype=np.int16), (4, 1))
    digital[0, 100:600] = 7
    digital[1, 100:599] = 7  # a sample short of a second
    digital[2] = 3
    found = flat_stretches(replace(recording, digital=digital))
    assert found == (Gap(100, 600, "II"), Gap(0, 2000, "aVL"))


def test_skipped_frames_are_counted_by_info_and_said_before_training(tmp_path: Path) -> None:
    from clocs.models.describe import store_facts

    store = prepare(
        FakeDataset(count=3, change=flattened, skip_flat=True, frame=AS_STORED),
        out=tmp_path / "store",
    )
    facts = store_facts(store)
    assert (facts["views_without_signal"], facts["frames_without_signal"]) == (6, 1)
    assert facts["frames"] == int(make_frames(store).present.sum())
