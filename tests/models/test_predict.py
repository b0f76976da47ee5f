"""Predictions of stores and files: one row per recording or stretch, nothing dropped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import clocs
from clocs import Checkpoint, Store
from clocs.errors import ClocsWarning, SettingError
from clocs.models.classifier import Classifier, distance, ecg_share_and_flat, fit_reference
from clocs.models.predict import (
    HASH,
    MEANINGS,
    MODEL,
    Item,
    mean_vectors,
    predict_recordings,
)
from clocs.patients.embed import embed_recordings
from clocs.patients.encode import (
    CutRecording,
    InputSpec,
    Windows,
    cut_each,
    encoded,
    encoded_by_all,
)
from clocs.recording import UNNAMED_LEAD, Gap
from clocs.sealed import own_hash
from clocs.training.card import ClassifierCard
from own_files import record

LABELS = ("AF", "N", "O")


@pytest.fixture(scope="module")
def classifier(checkpoint: Checkpoint) -> Classifier:
    """Two different members, without limits."""
    torch.manual_seed(5)
    shifted = {k: v + 0.01 * torch.randn_like(v) for k, v in checkpoint.weights.items()}
    members = (checkpoint, replace(checkpoint, weights=shifted))
    dim = checkpoint.encoder.embedding_dim
    card = ClassifierCard(
        name="rhythm-test",
        dataset="synthetic",
        content="0",
        labels=LABELS,
        multilabel=False,
        protocol="linear",
        encoders=tuple(one.card for one in members),
        temperature=(2.0, 2.0, 2.0),
        thresholds=(0.2, None, 0.5),
    )
    head = {"weight": torch.randn(2, dim, 3), "bias": torch.randn(2, 3)}
    return Classifier(card, members, head, fit_reference(torch.randn(2, 50, dim)))


def chances(table: pl.DataFrame) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return table.select(f"p({label})" for label in LABELS).to_numpy()


def written(folder: Path, store: Store, rows: range) -> list[Path]:
    """Recordings of a store as files."""
    made = []
    for row in rows:
        one = store.recording(row)
        path = folder / f"{one.id}.csv"
        leads = {lead: one.digital[k] / one.gain[k] for k, lead in enumerate(one.leads)}
        pl.DataFrame(leads).write_csv(path)
        made.append(path)
    return made


def test_a_prediction_is_that_of_the_mean_over_rows_of_each_member(
    classifier: Classifier, small_store: Store
) -> None:
    made = clocs.predict(classifier, small_store)
    assert made["recording"].to_list() == small_store.table["id"].to_list()
    assert made["dataset"].unique().to_list() == ["synthetic"] and made["file"].is_null().all()
    frame = classifier.encoders[0].card.frame
    for row in (0, 7, 33):
        one = small_store.recording(row)
        each = [embed_recordings(own, [one], level="frame") for own in classifier.encoders]
        z = torch.from_numpy(np.stack([own.vectors for own in each])).double()
        head = {k: v.double() for k, v in classifier.head.items()}
        logits = replace(classifier, head=head).logits(z).mean(dim=0, keepdim=True)
        expected = classifier.probabilities(logits)[0].numpy()
        np.testing.assert_allclose(chances(made)[row], expected, atol=1e-6)
        assert made["predicted"][row] == LABELS[int(expected.argmax())]
        assert made["rows"][row] == z.shape[1] and made["seconds"][row] == one.samples / one.rate
        away = distance(classifier.reference, z.mean(dim=1, keepdim=True).float())
        assert made["distance"][row] == pytest.approx(float(away), rel=1e-4)
        places = [one.leads.index(lead) for lead in classifier.encoders[0].card.leads]
        x = torch.from_numpy(one.digital[places].astype(np.float32))
        cut = x[:, : x.shape[1] // frame.samples * frame.samples].reshape(-1, frame.samples)
        assert made["ecg_share"][row] == pytest.approx(
            float(ecg_share_and_flat(cut, frame.rate)[0].mean())
        )


def test_members_are_encoded_as_one_fleet_like_each_alone(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).integers(-900, 900, (70, 1, 2500)).astype(np.int16)
    windows = Windows(values, np.ones((70, 1), np.bool_), np.ones((70, 1), np.float32))
    ((_, z),) = encoded_by_all(classifier.encoders, [windows])
    for own, member in zip(z, classifier.encoders, strict=True):
        np.testing.assert_allclose(own, next(encoded(member, [windows])), atol=1e-5)


def test_a_csv_of_predictions_holds_no_formula_and_parquet_the_exact_name(
    classifier: Classifier, small_store: Store, tmp_path: Path
) -> None:
    (file,) = written(tmp_path, small_store, range(1))
    file.rename(tmp_path / "=cmd|' C calc'!A0.csv")
    rate = small_store.recording(0).rate
    for name in ("made.csv", "made.parquet"):
        out = tmp_path / "out" / name
        clocs.predict(classifier, tmp_path / "=cmd|' C calc'!A0.csv", rate=rate, unit="mV", out=out)
    (row,) = pl.read_csv(tmp_path / "out" / "made.csv").to_dicts()
    assert row["recording"] == row["patient"] == "'=cmd|' C calc'!A0"
    (row,) = pl.read_parquet(tmp_path / "out" / "made.parquet").to_dicts()
    assert row["recording"] == "=cmd|' C calc'!A0"


def test_files_are_predicted_like_the_store_and_unusable_ones_are_rows_with_the_reason(
    classifier: Classifier, small_store: Store, tmp_path: Path
) -> None:
    files = written(tmp_path, small_store, range(3))
    (tmp_path / "broken.hea").write_text("nonsense\n")
    record(tmp_path, "other", leads=("V5", "V6"))
    rate = small_store.recording(0).rate
    made = clocs.predict(classifier, tmp_path, rate=rate, unit="mV")
    usable = made.filter(pl.col("problem").is_null())
    stored = clocs.predict(classifier, small_store).head(3)
    one = stored["patient"][0]
    alone = clocs.predict(classifier, small_store, cohort=[one])
    assert set(alone["patient"]) == {one} and alone["recording"][0] == stored["recording"][0]
    assert sorted(usable["recording"]) == sorted(path.stem for path in files)
    for row in usable.iter_rows(named=True):
        (twin,) = stored.filter(pl.col("recording") == row["recording"]).to_dicts()
        for label in LABELS:
            assert row[f"p({label})"] == pytest.approx(twin[f"p({label})"], abs=1e-3)
    assert usable["dataset"].is_null().all() and usable["file"].str.ends_with(".csv").all()
    broken, other = made.filter(pl.col("problem").is_not_null()).sort("file").to_dicts()
    assert "broken" in broken["file"] and broken["recording"] is None
    assert "has none of the leads II, V2, aVL, aVR" in other["problem"]
    assert other["recording"] == "other" and other["predicted"] is None and other["rows"] == 0


def test_noise_and_strangeness_are_abstained_from_in_words(
    classifier: Classifier, small_store: Store
) -> None:
    plain = clocs.predict(classifier, small_store, split="test")
    assert plain["abstained"].is_null().all()
    limits = {name: float(np.median(plain[name])) for name in ("ecg_share", "distance")}
    strict = replace(classifier, card=replace(classifier.card, limits={"1": limits}))
    made = clocs.predict(strict, small_store, split="test")
    noisy = made["ecg_share"] < limits["ecg_share"]
    far = made["distance"] > limits["distance"]
    assert made["abstained"].is_not_null().equals(noisy | far)
    assert made["predicted"].is_null().equals(noisy | far)
    words = made.filter(noisy & far)["abstained"][0]
    assert words.startswith("too noisy: ") and "; unlike the training data: " in words
    np.testing.assert_array_equal(chances(made), chances(plain))


def test_several_labels_are_those_from_their_thresholds_on(
    classifier: Classifier, small_store: Store
) -> None:
    several = replace(classifier, card=replace(classifier.card, multilabel=True))
    made = clocs.predict(several, small_store, split="test")
    assert made.schema["predicted"] == pl.List(pl.String)
    for row in made.iter_rows(named=True):
        expected = [n for n, t in (("AF", 0.2), ("O", 0.5)) if row[f"p({n})"] >= t]
        assert row["predicted"] == expected


def test_stretches_cover_a_long_recording_and_those_without_signal_say_so(
    classifier: Classifier, small_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clocs.patients.encode.AT_ONCE", 34)  # batches end within stretches
    one = small_store.recording(0)
    frame = classifier.encoders[0].card.frame
    long = replace(one, digital=np.tile(one.digital, 4))
    count = int(long.samples / long.rate / frame.seconds)
    hole = (Gap(0, int(3 * frame.seconds * one.rate), lead) for lead in one.leads)
    takes = InputSpec.from_checkpoint(classifier.encoders[0])
    (seen,) = cut_each([replace(long, gaps=tuple(hole))], takes)
    assert isinstance(seen, CutRecording)
    items = [Item({}, key, count, seen.windows, seen.frame_of, seen.reading) for key in (0, 1)]
    whole, parts = mean_vectors(classifier, items), mean_vectors(classifier, items, 3)
    each = -(-count // 3)
    assert len(whole.about) == 2 and len(parts.about) == 2 * each
    assert "no signal" in parts.about[0]["problem"]
    assert parts.about[0]["rows"] == 0 and 0 not in parts.there
    assert [one["start"] for one in parts.about[:2]] == [0.0, 3 * frame.seconds]
    assert parts.about[each - 1]["end"] == count * frame.seconds
    weights = np.array([one["rows"] for one in parts.about[:each]])
    joined = (parts.vectors[:, :each] * weights[:, None]).sum(axis=1) / weights.sum()
    np.testing.assert_allclose(joined, whole.vectors[:, 0], atol=1e-5)
    np.testing.assert_allclose(whole.vectors[:, 0], whole.vectors[:, 1], atol=1e-5)


def test_tables_are_written_with_the_name_and_hash_of_the_model(
    classifier: Classifier, small_store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "rhythm.safetensors"
    classifier.save(file)
    out = tmp_path / "new" / "made.parquet"
    made = clocs.predict(file, small_store, split="test", over_time=0, out=out)
    assert {"start", "end"} <= set(made.columns)
    assert pl.read_parquet(out).equals(made)
    about = pl.read_parquet_metadata(out)
    assert about[MODEL] == "rhythm-test" and about[HASH] == own_hash(classifier.card.to_dict())
    assert json.loads(about[MEANINGS]) == classifier.card.meanings
    card = replace(classifier.card, dataset="physionet2020")
    for one in (card, replace(card, multilabel=True)):
        own = replace(classifier, card=one)
        table = clocs.predict(own, small_store, split="test", out=tmp_path / "made.csv")
        written = pl.read_csv(tmp_path / "made.csv")
        assert written.height == table.height and "meaning" not in table.columns
        for labels, words in written.select("predicted", "meaning").iter_rows():
            named = [one.meanings[label] for label in (labels or "").split("; ") if label]
            assert (words or "") == "; ".join(named)
            assert "AF" not in (labels or "").split("; ") or "Atrial fibrillation" in words


def test_what_cannot_be_meant_is_refused_before_anything_is_read(
    classifier: Classifier, small_store: Store, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=r"ends in \.parquet or \.csv"):
        clocs.predict(classifier, small_store, out=tmp_path / "made.txt")
    with pytest.raises(SettingError, match="a folder"):
        (tmp_path / "x.csv").mkdir()
        clocs.predict(classifier, small_store, out=tmp_path / "x.csv")
    with pytest.raises(SettingError, match="`over_time` is -1"):
        clocs.predict(classifier, small_store, over_time=-1)
    with pytest.raises(SettingError, match="at least one store or file"):
        clocs.predict(classifier)
    with pytest.raises(SettingError, match="leave out `split`"):
        clocs.predict(classifier, tmp_path, split="test")


def test_the_only_lead_is_read_by_a_model_of_a_lead_without_a_name(
    classifier: Classifier, small_store: Store
) -> None:
    encoders = tuple(
        replace(one, card=replace(one.card, leads=(UNNAMED_LEAD,))) for one in classifier.encoders
    )
    model = replace(classifier, encoders=encoders)
    named = small_store.recording(0).select(["II"])
    unnamed = replace(named, leads=(UNNAMED_LEAD,))
    with pytest.warns(ClocsWarning, match="the only lead of a recording, II"):
        found = predict_recordings(model, [named])
    assert found["notes"].to_list() == [["II is taken as the lead without a name"]]
    other = predict_recordings(model, [unnamed])
    assert found["predicted"][0] and found.drop("notes").equals(other.drop("notes"))
    several = predict_recordings(model, [small_store.recording(0)])
    assert "has none of the leads ECG" in several["problem"][0]
