"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import clocs
from clocs import Frames, Store
from clocs.framing import make_frames


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real recordings; the test is skipped by name where it is absent."""
    root = Path(__file__).resolve().parent.parent
    folder = Path(os.environ.get("CLOCS_DATA", root.parent / "shared" / "data"))
    if not (folder / "chapman").is_dir():
        pytest.skip("needs the real recordings: set CLOCS_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Forty simulated patients with two recordings each."""
    return clocs.prepare(
        "synthetic", out=tmp_path_factory.mktemp("small") / "store", patients=40, seed=3
    )


@pytest.fixture(scope="session")
def small_frames(small_store: Store) -> Frames:
    """The same, cut into frames of four leads."""
    return make_frames(small_store)
