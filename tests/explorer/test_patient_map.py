from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clocs.explorer import patient_map
from clocs.explorer.session import Session
from damage import flipped


def test_pca_finds_the_two_principal_components() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(500, 6)) * [9, 5, 1, 0.5, 0.2, 0.1]
    turned = (x @ np.linalg.qr(generator.normal(size=(6, 6)))[0]).astype(np.float32)
    places = patient_map.pca(turned)
    assert abs(np.corrcoef(places[:, 0], x[:, 0])[0, 1]) > 0.99
    assert abs(np.corrcoef(places[:, 1], x[:, 1])[0, 1]) > 0.99


def test_a_map_is_cached_and_a_damaged_one_is_recomputed(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    first = patient_map.Projection(vectors, tmp_path)
    assert first.now[1].kind == "pca"
    places = np.ones((30, 2), np.float32)
    patient_map.MAP.write(first.file, {}, {"positions": places})
    assert patient_map.Projection(vectors, tmp_path).now[1].kind == "umap"
    for damaged in flipped(first.file.read_bytes(), most=200):
        first.file.write_bytes(damaged)
        found, state = patient_map.Projection(vectors, tmp_path).now
        assert state.kind == "pca" or np.array_equal(found, places)
    first.file.write_bytes(first.file.read_bytes()[:-9])
    assert patient_map.Projection(vectors, tmp_path).now[1].kind == "pca"


def test_a_failed_map_is_reported_and_pca_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.zeros((30, 8), np.float32)
    monkeypatch.setattr("sys.executable", "/bin/false")
    made = patient_map.Projection(vectors, tmp_path)
    made._compute()
    assert made.now[1].state == "failed"
    assert "PCA" in made.now[1].description


def test_of_many_patients_a_sample_is_laid_out_and_the_others_are_placed_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    cluster = generator.integers(0, 2, 300)
    vectors = generator.normal(size=(2, 8))[cluster] + 0.1 * generator.normal(size=(300, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(tmp_path / "vectors.npy", vectors.astype(np.float32))
    seen = []

    def layout(some: np.ndarray) -> np.ndarray:
        seen.append(len(some))
        return np.stack([10.0 * cluster[: len(some)], generator.normal(size=len(some))], axis=1)

    monkeypatch.setattr(patient_map, "_layout", layout)
    monkeypatch.setattr(patient_map, "SAMPLE", 100)
    patient_map.main(tmp_path / "vectors.npy")
    places = patient_map.MAP.read(tmp_path / "positions.safetensors")[1]["positions"]
    assert seen == [100] and places.shape == (300, 2)
    centers = np.stack([places[:100][cluster[:100] == c].mean(axis=0) for c in (0, 1)])
    nearest = np.linalg.norm(places[:, None] - centers, axis=2).argmin(axis=1)
    assert np.array_equal(nearest, cluster)


def test_the_size_of_the_sample_matters_only_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    files = []
    for most in (10, 30, 100_000):
        monkeypatch.setattr(patient_map, "SAMPLE", most)
        files.append(patient_map.Projection(vectors, tmp_path).file)
    assert files[0] != files[1] == files[2]


def worker(folder: Path, *lines: str) -> str:
    """A program in place of the interpreter that prints these lines and makes a map of ones."""
    places = folder / "places"
    patient_map.MAP.write(places, {}, {"positions": np.ones((30, 2), np.float32)})
    echoes = "\n".join(f"echo '{line}'" for line in lines)
    script = folder / "worker"
    script.write_text(f'#!/bin/sh\n{echoes}\ncp {places} "$(dirname "$4")/positions.safetensors"\n')
    script.chmod(0o755)
    return str(script)


def test_other_output_of_the_worker_is_ignored_and_an_unwritable_cache_loses_no_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    lines = ("NumbaWarning: hello", "[1]", '{"progress": 0.5, "description": "half"}')
    monkeypatch.setattr("sys.executable", worker(tmp_path, *lines))
    made = patient_map.Projection(vectors, tmp_path / "cache")
    made._compute()
    assert made.now[1].kind == "umap" and made.file.is_file()
    (tmp_path / "file").write_text("no folder")
    other = patient_map.Projection(vectors, tmp_path / "file" / "cache")
    other._compute()
    assert other.now[1].kind == "umap"


def test_a_worker_whose_server_has_ended_ends_silently(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.eye(8, dtype=np.float32))
    command = [sys.executable, "-m", "clocs.explorer.patient_map", str(tmp_path / "vectors.npy")]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None
    running.stdout.close()
    assert running.communicate()[1] == b"" and running.returncode == 1


def test_a_worker_that_cannot_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "nowhere"))
    made = patient_map.Projection(np.eye(8, dtype=np.float32), tmp_path)
    made._compute()
    assert made.now[1].state == "failed" and "No such file" in made.now[1].description


def test_an_upload_is_placed_between_its_neighbors_closer_to_the_nearest() -> None:
    places = np.array([[0, 0], [10, 0], [99, 99]], np.float32)
    at = patient_map.position_among(places, np.array([0, 1]), np.array([0.1, 0.3], np.float32))
    np.testing.assert_allclose(at, [2.5, 0], atol=1e-5)


def test_map_columns_match_the_rows(session: Session) -> None:
    rows, columns = session.embeddings.rows, session.columns
    for i, row in enumerate(rows.iter_rows(named=True)):
        named = {name for bit, name in enumerate(session.labels) if columns["labels"][i] >> bit & 1}
        assert named == set(row["labels"])
        assert ("train", "validation", "test")[columns["split"][i]] == row["split"]
        assert columns["age"][i] == (255 if row["age"] is None else round(row["age"]))
