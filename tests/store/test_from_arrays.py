"""Arrays in memory become a store that every verb takes, and that goes with its object."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import clocs
from clocs.errors import ClocsWarning, SettingError, UnusableError
from clocs.recording import Gap

LEADS = ("I", "II", "V1")
PATIENTS = [f"p{i // 2}" for i in range(40)]


def signals(n: int = 40, samples: int = 1000, leads: int = 3, seed: int = 0) -> NDArray[Any]:
    """ECG-like: spikes at a patient's own rate, and noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(0, 0.05, (n, leads, samples))
    for i in range(n):
        X[i, :, :: 60 + 5 * (i // 2)] += 1 + 0.1 * np.arange(leads)[:, None]
    return X


def make(X: Any, patients: Any = PATIENTS, **more: Any) -> clocs.Store:
    options: dict[str, Any] = {"rate": 100, "leads": LEADS} | more
    return clocs.from_arrays(X, patients, **options)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int16, np.int32])
def test_signals_come_back_as_they_were_given(kind: Any) -> None:
    X = (signals() * 1000).astype(kind)
    store = make(X, unit="µV", ages=[*range(39), None], sexes=["F", None] * 20)
    assert len(store) == 40
    assert store.manifest.dataset == "arrays"
    first, last = store.recording(0), store.recording("39")
    assert (first.patient, first.leads, first.rate, first.unit) == ("p0", LEADS, 100.0, "mV")
    assert (first.age, first.sex, last.age, last.sex) == (0.0, "female", None, None)
    tolerance = 0.05 if kind != np.float16 else 1
    assert np.abs(last.signal * 1000 - X[39].astype(np.float64)).max() <= tolerance


def test_lists_of_different_lengths_and_a_single_lead_are_taken() -> None:
    pieces = [signals(1, n)[0] for n in (1000, 700, 1500)]
    store = make(pieces, [7, 7, 8])
    assert store.table["samples"].to_list() == [1000, 700, 1500]
    assert store.table["patient"].to_list() == ["7", "7", "8"]
    single = make(signals()[:, 0], leads="MLII")
    assert single.recording(3).digital.shape == (1, 1000)


def test_nan_is_a_gap_and_a_recording_of_nan_is_left_out_with_a_warning() -> None:
    X = signals()
    X[3, 1, 100:200] = np.nan
    X[4, 2] = np.nan
    X[5] = np.nan
    with pytest.warns(ClocsWarning, match=r"1 of 40 recordings cannot be used.*nan"):
        store = make(X)
    assert len(store) == 39
    assert store.recording("3").gaps == (Gap(100, 200, "II"),)
    assert np.isnan(store.recording("3").signal[1, 100:200]).all()
    assert store.recording("4").leads == ("I", "II")


def test_tiny_values_of_an_unknown_unit_keep_their_precision() -> None:
    X = signals() * 1e-9
    recording = make(X, unit="adu").recording(2)
    assert recording.unit == "adu"
    assert np.abs(recording.signal - X[2]).max() < 1e-4 * np.abs(X[2]).max()


@pytest.mark.parametrize(
    ("labels", "classes", "expected", "all_classes", "multilabel"),
    [
        (["b", "a", None, "b"], None, [["b"], ["a"], [], ["b"]], ("a", "b"), False),
        (np.array([0, 1, 1, 0]), None, [["0"], ["1"], ["1"], ["0"]], ("0", "1"), False),
        ([["a", "b"], [], None, "b"], None, [["a", "b"], [], [], ["b"]], ("a", "b"), True),
        (["a"] * 4, ["b", "a"], [["a"]] * 4, ("b", "a"), False),
        (np.eye(4, 2), ["x", "y"], [["x"], ["y"], [], []], ("x", "y"), False),
        (np.ones((4, 2), bool), ["x", "y"], [["x", "y"]] * 4, ("x", "y"), True),
        (None, None, [[]] * 4, (), False),
        ([float("nan"), "a", "a", "a"], None, [[], ["a"], ["a"], ["a"]], ("a",), False),
    ],
)
def test_labels_may_be_names_lists_or_a_matrix(
    labels: Any, classes: Any, expected: Any, all_classes: Any, multilabel: bool
) -> None:
    store = make(signals(4), "abcd", labels=labels, classes=classes)
    assert store.table["labels"].to_list() == expected
    assert (store.manifest.labels, store.manifest.multilabel) == (all_classes, multilabel)


def test_a_table_of_labels_brings_its_class_names() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"AF": [1, 0, 0, 1], "SR": [0, 1, 1, 0]})
    store = make(signals(4), pandas.Series(list("abcd")), labels=table)
    assert store.table["labels"].to_list() == [["AF"], ["SR"], ["SR"], ["AF"]]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"patients": ["a"]}, SettingError, "`patients` has 1 entries for 40"),
        ({"patients": [None] * 40}, SettingError, "name the patient of every recording"),
        ({"leads": ("I", "II")}, SettingError, "expected \\(2, samples\\)"),
        ({"leads": ("I", "II", "Lead II")}, SettingError, "distinct"),
        ({"unit": "furlong"}, SettingError, "furlong"),
        ({"rate": 1}, UnusableError, "sampling rate of 1 Hz"),
        ({"ids": ["a"] * 40}, SettingError, "distinct"),
        ({"frame": 11}, SettingError, "longest recording has 10 s"),
        ({"labels": np.ones((40, 1))}, SettingError, "at least two"),
        ({"labels": np.full((40, 2), 2), "classes": "ab"}, SettingError, "0 and 1 alone"),
        ({"labels": ["c"] * 40, "classes": "ab"}, SettingError, "'c' in `labels`"),
        ({"sexes": [1] * 40}, SettingError, "'male', 'female' or None"),
        ({"recorded_at": ["yesterday"] * 40}, SettingError, "ISO 8601"),
        ({"unit": "V", "X": 1e6 * signals()}, SettingError, "40 implausible.*`unit`"),
        ({"X": np.full((40, 3, 100), "a")}, SettingError, "not numbers"),
        ({"X": []}, SettingError, "empty"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(
    change: Any, error: type[Exception], message: str
) -> None:
    given = {"X": signals(), "patients": PATIENTS} | change
    with pytest.raises(error, match=message):
        make(**given)


def test_dates_are_taken_as_objects_or_text() -> None:
    from datetime import date, datetime

    taken = [date(2020, 1, 2), datetime(2020, 1, 2, 3, 4, 5, 6), "2020-01-02", None]
    store = make(signals(5), "abcde", recorded_at=[*taken, np.datetime64("2020-01-02T03:04:05")])
    moment = "2020-01-02T03:04:05"
    assert store.table["taken"].to_list() == ["2020-01-02", moment, "2020-01-02", None, moment]


def test_the_temporary_folder_goes_with_the_store_but_not_from_a_forked_process() -> None:
    store = make(signals())
    folder = store.path
    child = os.fork()
    if child == 0:
        del store
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.is_dir()
    del store
    gc.collect()
    assert not folder.exists()


def test_a_failed_call_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SettingError):
        make(np.full((40, 3, 1000), np.nan))
    assert list(tmp_path.iterdir()) == []


def test_a_store_may_be_kept_and_other_arrays_do_not_overwrite_it(tmp_path: Path) -> None:
    kept = make(signals(), out=tmp_path / "store")
    again = make(signals(), out=tmp_path / "store")
    assert again.manifest.content_hash == kept.manifest.content_hash
    assert clocs.open_store(tmp_path / "store").recording(1).patient == "p0"
    with pytest.raises(clocs.ClocsError, match="already a complete store of something else"):
        make(signals(seed=1), out=tmp_path / "store")


def test_every_verb_takes_it(tmp_path: Path) -> None:
    labels = [["fast", "slow"][i // 2 % 2] for i in range(40)]
    store = make(signals(), labels=labels)
    made = clocs.pretrain(
        store, method="cmsc", out=tmp_path / "run", epochs=1, embedding_dim=8, device="cpu"
    )
    vectors = clocs.embed(made[0], store, level="recording", device="cpu")
    assert vectors.vectors.shape == (40, 8)
    score = clocs.evaluate(made[0], store, epochs=1, resamples=0, device="cpu")
    assert set(score.auc_per_class) == {"fast", "slow"}
    clocs.index(made[0], store, out=tmp_path / "index", device="cpu")
    assert len(clocs.similar(tmp_path / "index", patient="p3", k=3)) == 3
    assert clocs.retrieval([made[0]], store, device="cpu") is not None

    from clocs.explorer.open import open_session

    session = open_session(
        stores=[store], checkpoint=tmp_path / "run", cache=tmp_path / "cache", show_ids=True
    )
    assert len(session.embeddings) == 20


def test_no_guard_is_needed_in_a_script_or_notebook(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(
        "import numpy as np, clocs\n"
        "store = clocs.from_arrays(np.random.randn(4, 1, 500), 'abcd', rate=100, leads=['II'])\n"
        "print(len(store), store.path)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    count, folder = done.stdout.split()
    assert count == "4"
    assert not Path(folder).exists()
