from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
from safetensors import safe_open
from safetensors.numpy import save

import clocs
from clocs.errors import StoreError
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.frames.splits import assign
from clocs.recording import FrameSpec
from clocs.store.store import Store
from damage import read_damaged


def assert_equal(a: Frames, b: Frames) -> None:
    for name, value in a.__dict__.items():
        other = getattr(b, name)
        same = np.array_equal(value, other) if isinstance(value, np.ndarray) else value == other
        assert same, name


def test_frames_hold_what_the_recordings_hold(small_store: Store, usual_frames: Frames) -> None:
    recording = small_store.recording(5).select(usual_frames.leads)
    rows = np.flatnonzero(usual_frames.recording == 5)
    for lead in range(4):
        got = usual_frames.windows(rows, lead).ravel()
        assert np.allclose(got, recording.signal[lead], atol=1e-6)


def test_labels_and_splits_are_those_of_the_recording(
    small_store: Store, usual_frames: Frames
) -> None:
    for row in (0, 33, 100):
        recording = small_store.recording(int(usual_frames.recording[row]))
        label = usual_frames.labels[int(usual_frames.target[row].argmax())]
        assert (label,) == recording.labels
        assert usual_frames.split[row] == assign([recording.patient], "synthetic")[0]


def test_frames_saved_by_earlier_versions_have_their_facts_under_the_same_key(
    usual_frames: Frames, tmp_path: Path
) -> None:
    usual_frames.save(tmp_path / "frames.safetensors")
    with safe_open(tmp_path / "frames.safetensors", framework="numpy") as file:
        assert list(file.metadata()) == ["clocs.frames"]


def test_saved_frames_come_back_bit_for_bit(usual_frames: Frames, tmp_path: Path) -> None:
    usual_frames.save(tmp_path / "frames.safetensors")
    assert_equal(Frames.load(tmp_path / "frames.safetensors"), usual_frames)
    size = (tmp_path / "frames.safetensors").stat().st_size
    assert size < 0.8 * usual_frames.signals.nbytes


def test_no_flipped_bit_of_saved_frames_changes_what_is_read(
    usual_frames: Frames, tmp_path: Path
) -> None:
    path = tmp_path / "frames.safetensors"
    rows = np.arange(6)
    few = replace(usual_frames, signals=usual_frames.signals[:80_000], **{
        name: getattr(usual_frames, name)[rows]
        for name in ("starts", "scale", "recording", "patient", "segment", "split", "target")
    })  # fmt: skip
    few.save(path)

    def read() -> object:
        found = vars(Frames.load(path))
        return {k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in found.items()}

    assert read_damaged(path, read) > 150
    assert read_damaged(path, lambda: Frames.facts(path)) > 1  # reads a small part of it


def test_frames_of_an_earlier_version_get_a_sentence(usual_frames: Frames, tmp_path: Path) -> None:
    path = tmp_path / "frames.safetensors"
    usual_frames.save(path)
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = json.loads(file.metadata()["clocs.frames"])
    del facts["sha256"], facts["checksum"]
    path.write_bytes(save(arrays, {"clocs.frames": json.dumps(facts | {"format": 2})}))
    words = r"format 2, but .* format 3.*with `clocs export --to frames`"
    with pytest.raises(StoreError, match=words):
        Frames.load(path)


def test_loading_needs_neither_zarr_nor_polars(usual_frames: Frames, tmp_path: Path) -> None:
    path = tmp_path / "frames.safetensors"
    usual_frames.save(path)
    code = (
        "import sys\n"
        "absent = ('zarr', 'numcodecs', 'polars', 'wfdb', 'soundfile')\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "from pathlib import Path\n"
        "from clocs.frames.frames import Frames\n"
        "from clocs.pretraining.plan import Plan\n"
        "from clocs.pretraining.pretrain import pretrain_frames\n"
        "from clocs.evaluation.groups import score_groups\n"
        "from clocs.training.loop import Settings\n"
        f"frames = Frames.load(Path({str(path)!r}))\n"
        "plan = Plan('cmsc', settings=Settings(epochs=1, batch_size=64))\n"
        f"found = pretrain_frames(frames, plan, Path({str(tmp_path / 'run')!r}))\n"
        "(one,) = score_groups([found], frames, settings=Settings(epochs=1), resamples=5)\n"
        "print(one.evaluation.auc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout.strip(" []\n")) <= 1


TWO_LINES = b'{"__metadata__":{"clocs.frames":"{}"},"a\\nb":{"dtype":"X","shape":[]}}'


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"nonsense", b"\x08" + b"\x00" * 7 + b"{}      "),
        len(TWO_LINES).to_bytes(8, "little") + TWO_LINES,
    ],
)
def test_a_damaged_file_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "frames.safetensors"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not a readable Frames file") as caught:
        Frames.load(path)
    assert "\n" not in str(caught.value)


def test_resampling_is_scipys_and_loses_less_than_a_microvolt(small_store: Store) -> None:
    halved = make_frames(small_store, spec=FrameSpec(10.0, 2500))
    recording = small_store.recording(7).select(halved.leads)
    expected = scipy.signal.resample(recording.signal, 2500, axis=-1)
    rows = np.flatnonzero(halved.recording == 7)
    assert len(rows) == 1
    for lead in range(4):
        assert np.allclose(halved.windows(rows, lead)[0], expected[lead], atol=5e-4)
        assert np.abs(halved.windows(rows, lead)[0] - expected[lead]).max() < 1e-3


def test_a_baseline_is_taken_off(small_store: Store, tmp_path: Path) -> None:
    from clocs.frames.signals import cut_windows

    digital = small_store.recording(0).digital[None, :1, :2500]
    gain, none, some = np.array([[1000.0]]), np.array([[0]]), np.array([[-12]])
    plain, scale = cut_windows(digital, gain, none, 500.0, 1, FrameSpec(5.0), "recording")
    shifted, fine = cut_windows(digital - 12, gain, some, 500.0, 1, FrameSpec(5.0), "recording")
    assert np.allclose(plain * scale[0], shifted * fine[0], atol=1e-3)


@pytest.mark.parametrize("rate", [500.0, 300.0])
def test_a_lead_the_wrong_way_up_is_turned(small_store: Store, rate: float) -> None:
    from clocs.frames.signals import cut_windows

    digital = small_store.recording(0).digital[None, :2]
    gain, none = np.array([[1000.0, 1000.0]]), np.zeros((1, 2), np.int64)
    rest = (rate, 1, FrameSpec(5.0), "recording")
    upright, scale = cut_windows(digital, gain, none, *rest)
    turned, fine = cut_windows(-digital, -gain, none, *rest)
    assert (fine > 0).all()
    assert np.allclose(upright * scale[..., None], turned * fine[..., None], atol=1e-3)


@pytest.mark.parametrize("rate", [500.0, 300.0])
@pytest.mark.parametrize("resample", ["recording", "frame"])
def test_a_recording_is_cut_the_same_in_any_company(rate: float, resample: str) -> None:
    from clocs.frames.signals import cut_windows

    draw = np.random.default_rng(0)
    digital = draw.integers(-3000, 3000, size=(7, 3, 5300)).astype(np.int16)
    gain = draw.choice([200.0, 1000.0, 4880.0], size=(7, 3))
    baseline = draw.integers(-50, 50, size=(7, 3)) * (np.arange(7) % 2)[:, None]
    rest = (rate, 2, FrameSpec(5.0), resample)
    together = cut_windows(digital, gain, baseline, *rest)
    for one in range(7):
        some = slice(one, one + 1)
        alone = cut_windows(digital[some], gain[some], baseline[some], *rest)
        assert np.array_equal(alone[0][0], together[0][one])
        assert np.array_equal(alone[1][0], together[1][one])


def test_leads_come_in_the_order_asked_for(small_store: Store, usual_frames: Frames) -> None:
    turned = make_frames(small_store, leads=["aVR", "II"])
    assert turned.leads == ("aVR", "II")
    rows = np.array([3])
    assert np.array_equal(turned.windows(rows, 1), usual_frames.windows(rows, 0))


def test_import_is_light() -> None:
    code = "import sys, clocs; print([m for m in ('torch', 'polars', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert clocs.__version__


def test_signals_beyond_the_given_memory_are_mapped_from_a_nameless_file(
    small_store: Store, usual_frames: Frames
) -> None:
    before = set(small_store.path.parent.iterdir())
    mapped = make_frames(small_store, memory=1000)
    assert isinstance(mapped.signals, np.memmap)
    assert np.array_equal(mapped.signals, usual_frames.signals)
    assert set(small_store.path.parent.iterdir()) == before
