"""Files with patient IDs, and caches, are their owner's alone, whatever ran first."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clocs
from clocs import Checkpoint, Frames, Store
from clocs.datasets.pseudonyms import key_of
from clocs.evaluation.groups import score_groups
from clocs.files import PUBLIC, private_cache, write_atomic
from clocs.patients.index_files import INDEXED
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_store_is_private(tmp_path: Path) -> None:
    clocs.prepare("synthetic", out=tmp_path / "stores" / "one", patients=3)
    assert mode(tmp_path / "stores") == 0o755
    assert mode(tmp_path / "stores" / "one") == 0o700
    assert mode(tmp_path / "stores" / "one" / "manifest.json") == 0o600
    for file in (tmp_path / "stores" / "one").glob("*.parquet"):
        assert mode(file) == 0o600


def test_a_store_in_a_folder_that_others_may_enter_keeps_its_ids_private(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o755)
    clocs.prepare("synthetic", out=tmp_path / "store", patients=3)
    assert mode(tmp_path / "store") == 0o755  # the owner's choice
    files = [path for path in (tmp_path / "store").iterdir() if path.is_file()]
    assert files and {mode(path) for path in files} == {0o600}


def test_embeddings_predictions_frames_and_indexes_are_private(
    checkpoint: Checkpoint, small_store: Store, usual_frames: Frames, tmp_path: Path
) -> None:
    clocs.embed(checkpoint, small_store).save(tmp_path / "patients.parquet")
    usual_frames.save(tmp_path / "frames.safetensors")
    (scored,) = score_groups([[checkpoint]], usual_frames, protocol="knn", resamples=0)
    scored.predictions.save(tmp_path / "predictions.safetensors")
    assert {mode(path) for path in tmp_path.iterdir()} == {0o600}
    clocs.index(checkpoint, small_store, out=tmp_path / "index")
    assert {mode(tmp_path / "index" / name) for name in INDEXED} == {0o700}
    assert mode(tmp_path / "index") == 0o700


def test_a_folder_of_checkpoints_is_private(usual_frames: Frames, tmp_path: Path) -> None:
    pretrain_frames(usual_frames, Plan("random", embedding_dim=8), tmp_path / "run")
    assert mode(tmp_path / "run") == 0o700
    assert mode(tmp_path / "run" / "seed-0.safetensors") == 0o600


def test_what_its_owner_has_shared_stays_shared(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"1")
    assert mode(path) == 0o600
    path.chmod(0o640)
    write_atomic(path, b"2")
    assert (mode(path), path.read_bytes()) == (0o640, b"2")
    write_atomic(tmp_path / "report.html", b"", mode=PUBLIC)
    assert mode(tmp_path / "report.html") == 0o644


def test_a_cache_that_was_open_is_closed_unless_it_holds_other_files(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "native").mkdir(parents=True)
    cache.chmod(0o755)
    key_of(cache)
    assert mode(cache) == 0o700
    cache.chmod(0o755)
    (cache / "thesis.txt").touch()
    private_cache(cache)
    assert mode(cache) == 0o755  # not a folder for caches alone
    assert mode(cache / "pseudonyms.key") == 0o600
