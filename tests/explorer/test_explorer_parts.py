from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rich.console import Console

from clocs import FrameSpec, Store
from clocs.errors import CheckpointError, ClocsError, SettingError
from clocs.explorer import classifier, patient_map
from clocs.explorer.material import embed_all, half_distances, halves_of
from clocs.explorer.open import open_session
from clocs.explorer.packing import DTYPES, pack, unpack
from clocs.explorer.placing import embed_upload
from clocs.explorer.pseudonyms import key_of, pseudonyms
from clocs.explorer.session import Session
from clocs.patients.embeddings import Embeddings
from clocs.training.checkpoint import load_checkpoint


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.sampled_from(DTYPES).flatmap(
            lambda name: hnp.arrays(name, hnp.array_shapes(max_dims=2, min_side=0, max_side=5))
        ),
        max_size=4,
    ),
    st.dictionaries(st.text(min_size=1).filter(lambda k: k != "arrays"), st.integers(), max_size=3),
)
def test_what_is_packed_comes_back(arrays: dict[str, Any], facts: dict[str, Any]) -> None:
    said, found = unpack(pack(facts, arrays))
    assert said == facts
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@given(st.binary(max_size=200))
def test_bytes_of_a_stranger_are_an_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        unpack(data)


def test_pseudonyms_stay_the_same_are_distinct_and_need_the_key(tmp_path: Path) -> None:
    patients = [("a", str(i)) for i in range(5000)] + [("b", str(i)) for i in range(5000)]
    key = key_of(tmp_path)
    assert (tmp_path / "pseudonyms.key").stat().st_mode & 0o077 == 0
    names = pseudonyms(patients, key)
    assert names == pseudonyms(patients, key_of(tmp_path))
    assert len(set(names)) == len(patients)
    assert not set(names) & set(pseudonyms(patients, b"\0" * 32))


def test_pca_keeps_the_two_directions_of_largest_spread() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(500, 6)) * [9, 5, 1, 0.5, 0.2, 0.1]
    turned = (x @ np.linalg.qr(generator.normal(size=(6, 6)))[0]).astype(np.float32)
    places = patient_map.pca(turned)
    assert abs(np.corrcoef(places[:, 0], x[:, 0])[0, 1]) > 0.99
    assert abs(np.corrcoef(places[:, 1], x[:, 1])[0, 1]) > 0.99


def test_a_map_is_kept_and_a_damaged_one_is_made_again(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    first = patient_map.Projection(vectors, tmp_path)
    assert first.now()[1].kind == "pca"
    places = np.ones((30, 2), np.float32)
    first.file.write_bytes(pack({}, {"positions": places}))
    assert patient_map.Projection(vectors, tmp_path).now()[1].kind == "umap"
    other = patient_map.Settings(neighbours=5)
    assert patient_map.Projection(vectors, tmp_path, other).now()[1].kind == "pca"
    first.file.write_bytes(first.file.read_bytes()[:-9])
    assert patient_map.Projection(vectors, tmp_path).now()[1].kind == "pca"


def test_a_map_that_cannot_be_computed_says_so_and_pca_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.zeros((30, 8), np.float32)
    monkeypatch.setattr("sys.executable", "/bin/false")
    made = patient_map.Projection(vectors, tmp_path)
    made._compute()
    assert made.now()[1].state == "failed"
    assert "PCA" in made.now()[1].words


def worker(folder: Path, *lines: str) -> str:
    """A program in place of the interpreter that says these lines and makes a map of ones."""
    places = folder / "places"
    places.write_bytes(pack({}, {"positions": np.ones((30, 2), np.float32)}))
    said = "\n".join(f"echo '{line}'" for line in lines)
    script = folder / "worker"
    script.write_text(f'#!/bin/sh\n{said}\ncp {places} "$(dirname "$4")/positions.clocs"\n')
    script.chmod(0o755)
    return str(script)


def test_what_a_library_prints_between_progress_is_passed_over_and_a_full_disk_costs_no_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    lines = ("NumbaWarning: hello", "[1]", '{"progress": 0.5, "words": "half"}')
    monkeypatch.setattr("sys.executable", worker(tmp_path, *lines))
    made = patient_map.Projection(vectors, tmp_path / "cache")
    made._compute()
    assert made.now()[1].kind == "umap" and made.file.is_file()
    (tmp_path / "file").write_text("no folder")
    other = patient_map.Projection(vectors, tmp_path / "file" / "cache")
    other._compute()
    assert other.now()[1].kind == "umap"


def test_a_map_that_cannot_even_be_begun_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "nowhere"))
    made = patient_map.Projection(np.eye(8, dtype=np.float32), tmp_path)
    made._compute()
    assert made.now()[1].state == "failed" and "No such file" in made.now()[1].words


def test_nobody_to_show_gets_a_sentence(session: Session, tmp_path: Path) -> None:
    file, nobody = tmp_path / "p.parquet", np.zeros(len(session.embeddings), bool)
    session.embeddings.where(nobody).save(file)
    for words, weights in (
        ("nothing to show", None),
        ("nowhere does not exist", tmp_path / "nowhere"),
    ):
        with pytest.raises(ClocsError, match=words):
            open_session(
                embeddings=file, checkpoint=weights, cache=tmp_path, console=Console(quiet=True)
            )


def test_a_newcomer_lies_between_its_neighbours_and_nearer_to_the_nearest() -> None:
    places = np.array([[0, 0], [10, 0], [99, 99]], np.float32)
    at = patient_map.between(places, np.array([0, 1]), np.array([0.1, 0.3], np.float32))
    np.testing.assert_allclose(at, [2.5, 0], atol=1e-5)


def test_halves_compare_a_patient_with_itself() -> None:
    # Two patients in two opposite directions, two recordings of two frames each.
    rows = Embeddings.make_rows(
        {
            "dataset": ["d"] * 8 + ["d"],
            "patient": ["p"] * 4 + ["q"] * 4 + ["single"],
            "recording": ["1", "1", "2", "2"] * 2 + ["1"],
            "segment": [0, 1] * 4 + [0],
            "lead": ["II"] * 9,
        },
        9,
    )
    vectors = np.array([[1, 0]] * 4 + [[0, 3]] * 4 + [[1, 1]], np.float32)
    halves = halves_of(Embeddings(vectors, rows, "frame", "e"))
    assert halves.shape == (2, 2, 2)  # whoever has one frame has no halves
    found = half_distances(halves)
    np.testing.assert_allclose(found.intra, 0, atol=1e-6)
    np.testing.assert_allclose(found.inter, np.sqrt(2), atol=1e-6)
    assert found.separability == 1.0


def test_the_classifier_reads_what_a_linear_layer_can_and_is_tested_on_others() -> None:
    generator = np.random.default_rng(0)
    code = generator.integers(0, 3, 600)
    vectors = np.eye(3, 8, dtype=np.float32)[code] + 0.3 * generator.normal(size=(600, 8))
    rows = Embeddings.make_rows(
        {
            "dataset": ["d"] * 600,
            "patient": [str(i) for i in range(600)],
            "labels": [["abc"[c]] for c in code],
            "split": ["train" if i % 2 else "test" for i in range(600)],
        },
        600,
    )
    embeddings = Embeddings(vectors.astype(np.float32), rows, "patient", "e")
    made = classifier.fit(embeddings, "d", ("a", "b", "c"), multilabel=False)
    assert made is not None and made.auc is not None
    assert made.auc > 0.97
    assert (made.trained_on, made.tested_on) == (300, 300)
    p = made.predict(embeddings.vectors)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert (p.argmax(axis=1) == code).mean() > 0.9
    assert classifier.fit(embeddings, "another", ("a",), multilabel=False) is None


def test_a_cache_of_another_version_is_made_again(
    small_store: Store, encoder: Path, tmp_path: Path
) -> None:
    weights = encoder / "seed-0.safetensors"
    first, apart = embed_all(weights, [small_store], tmp_path)
    (file,) = tmp_path.glob("patients-*.parquet")
    whole = file.read_bytes()
    pl.DataFrame({"other": [1]}).write_parquet(file)
    second, again = embed_all(weights, [small_store], tmp_path)
    np.testing.assert_array_equal(first.vectors, second.vectors)
    np.testing.assert_array_equal(apart.intra, again.intra)
    assert file.read_bytes() == whole


def test_an_upload_is_cut_as_the_patients_on_the_map_are(
    small_store: Store, encoder: Path, tmp_path: Path
) -> None:
    loaded = load_checkpoint(encoder)
    whole = replace(loaded, card=replace(loaded.card, frame=FrameSpec(10.0)))
    weights = tmp_path / "seed-0.safetensors"
    whole.save(weights)
    everybody, _ = embed_all(weights, [small_store], tmp_path / "cache")
    assert everybody.frame == 10.0 != small_store.manifest.frame.seconds
    own = small_store.table.filter(pl.col("patient") == everybody.rows["patient"][0])["id"]
    vector, _ = embed_upload(whole, small_store.recording(own[0]), everybody.frame)
    cosines = everybody.vectors @ vector
    assert cosines.argmax() == 0 and cosines[0] > 0.9
    short = replace(small_store.recording(0), digital=small_store.recording(0).digital[:, :2000])
    with pytest.raises(SettingError, match="too short"):  # and not: it is zero
        embed_upload(whole, short, everybody.frame)


def test_embeddings_of_another_encoder_are_refused(
    session: Session, encoder: Path, tmp_path: Path
) -> None:
    made = tmp_path / "patients.parquet"
    for name, wrong in (("e" * 64, True), (session.embeddings.encoder, False)):
        replace(session.embeddings, encoder=name).save(made)
        with pytest.raises(CheckpointError, match="another encoder") if wrong else nullcontext():
            open_session(
                embeddings=made, checkpoint=encoder, cache=tmp_path, console=Console(quiet=True)
            )


def test_columns_say_what_the_rows_say(session: Session) -> None:
    rows, columns = session.embeddings.rows, session.columns
    for i, row in enumerate(rows.iter_rows(named=True)):
        named = {name for bit, name in enumerate(session.labels) if columns["labels"][i] >> bit & 1}
        assert named == set(row["labels"])
        assert ("train", "validation", "test")[columns["split"][i]] == row["split"]
        assert columns["age"][i] == (255 if row["age"] is None else round(row["age"]))


def test_neighbours_are_the_nearest_others_and_never_the_patient(session: Session) -> None:
    x = session.embeddings.vectors
    for row in range(0, len(x), 7):
        near = session.neighbours(session.codes[row], 5)["neighbours"]
        apart = np.linalg.norm(x - x[row], axis=1)
        apart[row] = np.inf
        np.testing.assert_allclose([n["distance"] for n in near], np.sort(apart)[:5], atol=2e-3)
        assert row not in [n["row"] for n in near]


def test_signals_are_the_stores_own(session: Session, small_store: Store) -> None:
    code = session.codes[3]
    patient = session.embeddings.rows["patient"][3]
    ids = small_store.table.filter(pl.col("patient") == patient)["id"].to_list()
    facts, arrays = unpack(session.signal(code, 1, start=1.0, seconds=2.0, lead="V2"))
    own = small_store.recording(ids[1]).select(["V2"])
    first = round(own.rate)
    np.testing.assert_array_equal(arrays["digital"], own.digital[:, first : 3 * first])
    assert (facts["unit"], facts["gain"]) == ("mV", own.gain.tolist())
