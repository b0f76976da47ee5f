"""Vectors of a store are computed once, whichever commands ask, and are those of no cache."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import clocs
from clocs import Checkpoint, Frames, Store
from clocs.errors import ClocsWarning
from clocs.evaluation.labeled import LabeledPart
from clocs.files import folder_sizes
from clocs.frames.make import make_frames
from clocs.models import finetune
from clocs.patients import embed as of_stores
from clocs.store.manifest import VECTORS
from clocs.training import embed as of_frames
from clocs.training import embed as vector_cache
from clocs.training.embed import EncoderVectors, filled
from damage import flipped
from research.noise import noisy_test
from tiny_leads import many_lead_checkpoints, tiny_leads

READOUT: dict[str, Any] = {"protocol": "linear-converged", "resamples": 0, "device": "cpu"}


@pytest.fixture
def store(small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A copy without vectors."""
    monkeypatch.setenv("CLOCS_CACHE", str(tmp_path / "cache"))
    without = shutil.ignore_patterns(VECTORS)
    return clocs.open_store(shutil.copytree(small_store.path, tmp_path / "store", ignore=without))


@pytest.fixture(params=["one lead", "many leads"])
def encoder(
    request: pytest.FixtureRequest, checkpoint: Checkpoint, small_store: Store
) -> Iterator[Checkpoint]:
    if request.param == "one lead":
        yield checkpoint
        return
    with tiny_leads():
        yield many_lead_checkpoints(make_frames(small_store))[0]


def nothing_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **options: Any) -> Any:
        raise AssertionError("it is encoded again")

    monkeypatch.setattr(of_frames, "_encoded", refuse)
    monkeypatch.setattr(of_stores, "encoded", refuse)


def results(encoder: Checkpoint, store: Store, out: Path) -> list[Any]:
    """What every command makes of a store."""
    levels = [clocs.embed(encoder, store, level=level) for level in ("frame", "recording")]
    clocs.index(encoder, store, out=out / "index")
    scored = clocs.evaluate(encoder, store, **READOUT, baselines=False)
    made = clocs.finetune(encoder, store, device="cpu", resamples=0)
    apart = clocs.patient_distances(encoder, store)
    return [
        *(one.vectors.tobytes() for one in levels),
        sorted(path.read_bytes() for path in (out / "index" / "patient").iterdir()),
        scored.json(),
        {name: tensor.numpy().tobytes() for name, tensor in made.head.items()},
        made.card.scores,
        apart.intra.tobytes(),
        [one.json() for one in clocs.retrieval([encoder], store)],
    ]


def test_every_command_reads_what_the_first_has_encoded_bit_for_bit(
    encoder: Checkpoint, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # for few leads it encodes anew
    monkeypatch.setattr(finetune, "calibrated_by_leads", lambda classifier, *given: classifier)
    with monkeypatch.context() as without:
        without.setattr(vector_cache, "MAX_BYTES", 0)
        expected = results(encoder, store, tmp_path / "without")
    assert not folder_sizes(store.path / VECTORS)
    clocs.evaluate(encoder, store, **READOUT, baselines=False)
    clocs.patient_distances(encoder, store, split="all")  # halves of recordings have other frames
    nothing_is_encoded(monkeypatch)
    assert results(encoder, store, tmp_path / "with") == expected


def noisy(part: LabeledPart) -> LabeledPart:
    return noisy_test(part, "muscle", 6.0)


def test_noise_fewer_leads_and_another_encoder_are_encoded_anew(
    checkpoint: Checkpoint, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocs.evaluate(checkpoint, store, **READOUT, baselines=False)
    known = set((store.path / VECTORS).iterdir())
    clocs.evaluate(checkpoint, store, **READOUT, baselines=False, further=[noisy])
    assert set((store.path / VECTORS).iterdir()) == known
    clocs.evaluate(checkpoint, store, **READOUT)  # the untrained encoder is kept, too
    assert len(list((store.path / VECTORS).iterdir())) == len(known) + 1
    nothing_is_encoded(monkeypatch)
    clocs.evaluate(checkpoint, store, **READOUT)
    for options in ({"further": [noisy]}, {"leads": ["II"]}):
        with pytest.raises(AssertionError, match="encoded again"):
            clocs.evaluate(checkpoint, store, **READOUT, **options, baselines=False)


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_vectors_are_their_owners_alone(checkpoint: Checkpoint, store: Store) -> None:
    before = os.umask(0o022)
    try:
        clocs.embed(checkpoint, store)
    finally:
        os.umask(before)
    found = [store.path / VECTORS, *(store.path / VECTORS).rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600, 0o700}
    assert sum(folder_sizes(store.path / VECTORS).values()) == sum(
        p.stat().st_size for p in found if p.is_file()
    )


def test_no_flipped_bit_changes_a_vector_and_damage_is_a_sentence(
    checkpoint: Checkpoint, store: Store
) -> None:
    first = clocs.embed(checkpoint, store).vectors
    (file,) = (store.path / VECTORS).rglob("*.safetensors")
    whole = file.read_bytes()
    for damaged in flipped(whole, most=5):
        file.write_bytes(damaged)
        with pytest.warns(ClocsWarning, match="are computed again"):
            np.testing.assert_array_equal(clocs.embed(checkpoint, store).vectors, first)
        assert file.read_bytes() == whole


def test_where_the_store_takes_no_files_the_cache_folder_does_or_nothing_is_kept(
    checkpoint: Checkpoint, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.path / VECTORS).write_text("in the way, as on a disk that cannot be written to")
    first = clocs.embed(checkpoint, store).vectors
    assert list((tmp_path / "cache" / VECTORS).rglob("*.safetensors"))
    with monkeypatch.context() as known:
        nothing_is_encoded(known)
        np.testing.assert_array_equal(clocs.embed(checkpoint, store).vectors, first)
    monkeypatch.setenv("CLOCS_CACHE", str(store.path / VECTORS / "nowhere"))
    np.testing.assert_array_equal(clocs.embed(checkpoint, store).vectors, first)


def vectors(rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.stack([rows, -rows], axis=1).astype(np.float32)


def of(folder: Path, key: str = "a", rows: int = 100) -> EncoderVectors:
    return EncoderVectors([folder], key, rows, 2)


def keep(one: EncoderVectors, rows: NDArray[np.int64]) -> None:
    one.add(rows, vectors(rows))
    one.flush()


def test_missing_rows_are_encoded_in_order_and_by_those_alone_who_miss_them(
    tmp_path: Path,
) -> None:
    keep(of(tmp_path, "a"), np.arange(100))
    keep(of(tmp_path, "b"), np.arange(10, 40))
    wanted, asked = np.arange(5, 95, 5), []

    def encode(members: list[int], unknown: NDArray[np.bool_]) -> Iterator[NDArray[np.float32]]:
        asked.append((members, wanted[unknown].tolist()))
        for start in range(0, unknown.sum(), 3):
            yield vectors(wanted[unknown][start : start + 3])[None]

    for _ in range(2):
        pieces = list(filled([of(tmp_path, "a"), of(tmp_path, "b")], wanted, encode, 4))
        assert all(piece.shape[1] <= 4 for piece in pieces)
        for found in np.concatenate(pieces, axis=1):
            np.testing.assert_array_equal(found, vectors(wanted))
    assert asked == [([1], [5, *range(40, 95, 5)])]


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    parts = np.array_split(np.random.default_rng(0).permutation(1000), 8)
    every = [np.sort(part) for part in (*parts, *parts)]
    work = [threading.Thread(target=keep, args=(of(tmp_path, rows=1000), one)) for one in every]
    for one in work:
        one.start()
    for one in work:
        one.join()
    found = of(tmp_path, rows=1000)
    assert found.known.all() and len(list((tmp_path / "a").iterdir())) == 8
    np.testing.assert_array_equal(found.read(np.arange(1000)), vectors(np.arange(1000)))


def test_vectors_not_used_for_longest_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, key in enumerate("cba"):
        keep(of(tmp_path, key), np.arange(100))
        os.utime(tmp_path / key, (1e9 - age, 1e9 - age))
    one = sum(file.stat().st_size for file in (tmp_path / "a").iterdir())
    of(tmp_path, "a")  # used now
    monkeypatch.setattr(vector_cache, "MAX_BYTES", 3 * one)
    keep(of(tmp_path, "d"), np.arange(100))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c", "d"}
    monkeypatch.setattr(vector_cache, "MAX_BYTES", 100)
    keep(of(tmp_path, "e"), np.arange(100))
    assert not (tmp_path / "e").exists()


def test_frames_of_the_experiments_are_kept_nowhere(
    checkpoint: Checkpoint, usual_frames: Frames, small_store: Store
) -> None:
    from clocs.evaluation.groups import score_groups

    before = folder_sizes(small_store.path / VECTORS)
    score_groups([[checkpoint]], usual_frames, protocol="knn", resamples=0)
    assert folder_sizes(small_store.path / VECTORS) == before


def test_a_store_in_shards_is_found_complete_with_its_vectors(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for _ in range(2):
        made = clocs.prepare("synthetic", out=tmp_path / "store", patients=6, shards=2)
        assert len(clocs.embed(checkpoint, made)) == 6
    assert (tmp_path / "store" / VECTORS).is_dir()
