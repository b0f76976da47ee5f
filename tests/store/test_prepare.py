from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from clocs.datasets.base import Entry, Listing
from clocs.errors import ClocsError, StoreError, UnusableError
from clocs.recording import Recording
from clocs.store import chunks
from clocs.store.prepare import prepare
from clocs.store.store import open_store
from damage import flipped
from fake_dataset import FakeDataset

FAKE = Path(__file__).resolve().parents[1] / "fake_dataset.py"


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_SAMPLES", 50_000)
    monkeypatch.setattr(chunks, "CHUNKS_PER_PART", 2)


@pytest.mark.usefixtures("small_parts")
def test_content_is_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    stores = [prepare(FakeDataset(), out=tmp_path / str(n), workers=n) for n in (1, 2, 5)]
    assert len({store.manifest.content_hash for store in stores}) == 1
    assert len({(store.path / "table.parquet").read_bytes() for store in stores}) == 1
    ids = stores[0].table["id"].to_list()
    assert ids == sorted(ids, key=lambda name: int(name[1:]))


def test_content_hash_changes_with_a_sample_or_a_label(tmp_path: Path) -> None:
    def sample(number: int, recording: Recording) -> Recording:
        recording.digital[0, 0] += number == 5
        return recording

    stores = [
        prepare(FakeDataset(), out=tmp_path / "a"),
        prepare(FakeDataset(change=sample), out=tmp_path / "b"),
        prepare(FakeDataset(labels=("A", "C")), out=tmp_path / "c"),
    ]
    assert len({store.manifest.content_hash for store in stores}) == 3


def test_every_entry_is_stored_or_in_quarantine_with_its_reason(tmp_path: Path) -> None:
    store = prepare(FakeDataset(), out=tmp_path / "store")
    quarantine = store.quarantine
    found = set(store.table["id"]) | set(quarantine["id"])
    assert found == {f"r{i}" for i in range(50)} | {"listed"}
    assert store.manifest.quarantined == quarantine.height == 11
    reasons = {name: why for name, *why in quarantine.rows()}
    assert reasons["listed"] == ["no label", "not in the table"]
    assert reasons["r17"] == ["unreadable", "it breaks off"]
    assert reasons["r13"] == ["flat", "all leads are flat"]
    assert store.rows_without_recording == ("x1", "x2")


def test_a_second_entry_of_the_same_id_goes_to_quarantine(tmp_path: Path) -> None:
    class Twice(FakeDataset):
        def list(self) -> Listing:
            entries = super().list().entries
            return Listing(entries=(*entries, Entry("r2", "other", "again.dat")))

    store = prepare(Twice(), out=tmp_path / "store")
    assert store.recording("r2").patient == "p1"
    assert store.quarantine.filter(reason="duplicate id").rows() == [
        ("r2", "duplicate id", "again.dat has the ID of r2.dat, which is used")
    ]


def test_a_recording_without_samples_goes_to_quarantine(tmp_path: Path) -> None:
    def empty(number: int, recording: Recording) -> Recording:
        if number == 4:
            object.__setattr__(recording, "digital", recording.digital[:, :0])
        return recording

    store = prepare(FakeDataset(count=6, change=empty), out=tmp_path / "store")
    assert store.quarantine.filter(id="r4")["reason"].to_list() == ["too short"]


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (ImportError("no module called codec"), "cannot be imported .no module called codec"),
        (TypeError("a bug in a reader"), "a bug in a reader"),
        (None, "not .leads, samples. of int16"),
    ],
)
def test_a_defect_of_a_reader_stops_and_the_same_call_resumes(
    tmp_path: Path, defect: Exception | None, message: str
) -> None:
    def broken(number: int, recording: Recording) -> Recording:
        if number == 41 and defect is not None:
            raise defect
        if number == 41:
            object.__setattr__(recording, "digital", recording.digital.astype(np.int32))
        return recording

    with pytest.raises(Exception, match=message):
        prepare(FakeDataset(change=broken), out=tmp_path / "store")
    store = prepare(FakeDataset(), out=tmp_path / "store")
    store.verify()
    assert "r41" in store.table["id"].to_list()


def test_a_complete_store_is_returned_without_reading_again(tmp_path: Path) -> None:
    first = prepare(FakeDataset(), out=tmp_path / "store")
    again = FakeDataset()
    assert prepare(again, out=tmp_path / "store").manifest == first.manifest
    assert again.seen == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (FakeDataset(fingerprint="two"), "source"),
        (FakeDataset(version="2"), "settings"),
        (FakeDataset(name="other"), "dataset"),
    ],
)
def test_a_complete_store_of_something_else_is_never_overwritten(
    tmp_path: Path, other: FakeDataset, what: str
) -> None:
    first = prepare(FakeDataset(), out=tmp_path / "store")
    with pytest.raises(StoreError, match=rf"another {what}.*another folder as `out`"):
        prepare(other, out=tmp_path / "store")
    assert open_store(tmp_path / "store").manifest == first.manifest


def test_a_folder_with_foreign_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="exists and is not a store; give another folder as `out`"):
        prepare(FakeDataset(), out=tmp_path)
    with pytest.raises(StoreError, match="exists and is not a store"):
        prepare(FakeDataset(), out=tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_no_usable_recording_gives_no_store_but_the_reasons(tmp_path: Path) -> None:
    class Hopeless(FakeDataset):
        def read(self, entry: Entry) -> Recording:
            raise UnusableError("nan", "all of it")

    with pytest.raises(StoreError, match=r"no recording of fake is usable \(50 nan, such as: all"):
        prepare(Hopeless(), out=tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.usefixtures("small_parts")
def test_a_full_disk_stops_with_a_sentence_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, index: int, samples: NDArray[np.int16]) -> None:
        if index == 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(folder, index, samples)

    real = chunks.write_chunk
    monkeypatch.setattr(chunks, "write_chunk", full)
    with pytest.raises(ClocsError, match="the disk is full; free some space"):
        prepare(FakeDataset(), out=tmp_path / "store")
    with pytest.raises(StoreError, match=r"incomplete: \d+ of 50 recordings; run the same"):
        open_store(tmp_path / "store")
    monkeypatch.setattr(chunks, "write_chunk", real)
    again = FakeDataset()
    store = prepare(again, out=tmp_path / "store")
    store.verify()
    assert len(again.seen) < 50
    assert store.manifest == prepare(FakeDataset(), out=tmp_path / "whole").manifest


@pytest.mark.usefixtures("small_parts")
def test_an_unfinished_store_of_another_source_is_not_continued(tmp_path: Path) -> None:
    class Interrupted(FakeDataset):
        def read(self, entry: Entry) -> Recording:
            if entry.id == "r40":
                raise KeyboardInterrupt
            return super().read(entry)

    with pytest.raises(KeyboardInterrupt):
        prepare(Interrupted(), out=tmp_path / "store")
    with pytest.raises(StoreError, match=r"unfinished store of something else \(another fin"):
        prepare(FakeDataset(fingerprint="two"), out=tmp_path / "store")
    seen: list[tuple[int, int]] = []
    prepare(FakeDataset(), out=tmp_path / "store", progress=lambda *now: seen.append(now)).verify()
    assert 0 < seen[0][0] <= 40
    assert seen[-1] == (50, 50)
    assert seen == sorted(seen)


@pytest.mark.usefixtures("small_parts")
def test_a_damaged_batch_of_an_unfinished_store_is_read_again(tmp_path: Path) -> None:
    class Interrupted(FakeDataset):
        def read(self, entry: Entry) -> Recording:
            if entry.id == "r45":
                raise KeyboardInterrupt
            return super().read(entry)

    whole = prepare(FakeDataset(), out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        prepare(Interrupted(), out=tmp_path / "unfinished")
    assert len(list((tmp_path / "unfinished" / "parts").iterdir())) >= 6
    for name in ("000001.json", "000001.parquet"):
        content = (tmp_path / "unfinished" / "parts" / name).read_bytes()
        for number, damaged in enumerate(flipped(content, most=4)):
            out = tmp_path / f"{name}-{number}"
            shutil.copytree(tmp_path / "unfinished", out)
            (out / "parts" / name).write_bytes(damaged)
            again = FakeDataset()
            assert prepare(again, out=out).manifest == whole.manifest
            assert "r0" not in again.seen  # the batch before it counts
            assert "r40" in again.seen  # those after it do not


@pytest.mark.usefixtures("small_parts")
def test_killed_at_any_moment_it_resumes_to_the_same_content(tmp_path: Path) -> None:
    out, log = tmp_path / "store", tmp_path / "read.log"
    kills = 0
    for enough in (0, 25, 90):
        child = subprocess.Popen([sys.executable, FAKE, out, log])
        while child.poll() is None and (not log.exists() or _done(out) < enough):
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        with pytest.raises(StoreError, match=r"incomplete: \d+ of 200 recordings"):
            open_store(out)
    assert kills == 3
    done = _done(out)
    assert 90 <= done < 200
    last = FakeDataset(count=200)
    store = prepare(last, out=out)
    store.verify()
    assert sorted(last.seen) == sorted(f"r{i}" for i in range(done, 200))
    whole = prepare(FakeDataset(count=200), out=tmp_path / "whole")
    assert store.manifest == whole.manifest
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in whole.path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_dataset(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from fake_dataset import FakeDataset\n"
        "from clocs.store.prepare import prepare\n"
        "fake = FakeDataset(count=int(sys.argv[3]), samples=100_000)\n"
        "prepare(fake, out=Path(sys.argv[1]), workers=2)\n"
        # not ru_maxrss, which begins with what the starting process held
        "status = Path('/proc/self/status').read_text()\n"
        "peak = next(line for line in status.splitlines() if line.startswith('VmHWM'))\n"
        "print(int(peak.split()[1]) // 1024, 'torch' in sys.modules)"
    )

    def peak(count: int) -> int:
        args = ["-c", script, f"{tmp_path / str(count)}", f"{FAKE.parent}", f"{count}"]
        mib, torch = _python(*args).split()
        assert torch == "False"
        return int(mib)

    small, large = peak(50), peak(500)  # 40 and 400 MB of samples
    assert large < small + 120  # what is in flight: 24 chunks, the slots, the journal
    assert large < 400


def _python(*args: str) -> str:
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, check=True
    ).stdout


def _done(out: Path) -> int:
    """Recordings of an unfinished store."""
    found = re.search(r"incomplete: (\d+)", str(_error(out)))
    return int(found[1]) if found else 0


def _error(out: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        open_store(out)
    return caught.value
