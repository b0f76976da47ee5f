"""Files that take too much memory or time are named; the others are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bombs import GIB
from clinical_files import ishne
from clocs.errors import UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.read import find_recordings, read_several
from clocs.recording import Recording


def test_files_beyond_the_limits_are_listed_and_all_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = np.random.default_rng(0).integers(-900, 900, 5000).astype("<i2")
    for number in range(20):
        np.save(tmp_path / f"r{number:02}.npy", samples + number)
    with (tmp_path / "r05_memory.ecg").open("wb") as file:
        file.write(ishne(samples.reshape(1, -1), ("II",), nanovolts=2500))
        file.truncate(3 * GIB)
    row = ",".join(["1.25"] * 12) + "\n"  # the bad one at the end is looked for in all of them
    (tmp_path / "r12_time.csv").write_text(row * 250_000 + row.replace("1.25", "1_0"))
    monkeypatch.setenv("CLOCS_READ_GIB", "1")
    monkeypatch.setenv("CLOCS_READ_SECONDS", "1")
    results = list(read_several(find_recordings([tmp_path]), ReadOptions(rate=500.0, unit="µV")))
    good = [one for one in results if isinstance(one, Recording)]
    assert [one.id for one in good] == [f"r{number:02}" for number in range(20)]
    assert all(np.array_equal(one.digital[0], samples + i) for i, one in enumerate(good))
    bad = [one[1] for one in results if not isinstance(one, Recording)]
    assert all(isinstance(error, UnusableError) for error in bad)
    assert "took more than 1 GiB of memory to read" in str(bad[0])
    assert "took more than 1 s of processor time to read" in str(bad[1])
