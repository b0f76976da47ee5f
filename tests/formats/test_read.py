"""Files, folders and zips of recordings: each is read or named, and none stops the others."""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import wfdb

import clocs
from clinical_files import ishne
from clocs.errors import ClocsError, ClocsWarning, UnknownRateError
from clocs.formats.base import ReadOptions
from clocs.formats.read import find_recordings, read_several
from clocs.recording import Recording


def write_record(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    signal = np.sin(np.arange(5000)[:, None] / [17.0, 23.0])
    wfdb.wrsamp(
        name,
        fs=500,
        units=["mV"] * 2,
        sig_name=["II", "V2"],
        p_signal=signal,
        write_dir=str(folder),
    )


def write_csv(path: Path) -> None:
    rows = np.random.default_rng(0).normal(0, 200, size=(5000, 12)).round(2)
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))


def read(*paths: Path) -> list[Recording | tuple[str, ClocsError]]:
    return list(read_several(find_recordings(paths), ReadOptions(rate=500)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_record(tmp_path / "in", "one")
    write_csv(tmp_path / "in" / "two.csv")
    steps = np.arange(6000, dtype=np.int16).reshape(1, -1)
    (tmp_path / "in" / "three.ecg").write_bytes(ishne(steps, ("II",), nanovolts=2500))
    (tmp_path / "in" / "notes.txt").write_text("not a recording")
    return tmp_path / "in"


def ids(results: list[Recording | tuple[str, ClocsError]]) -> list[str]:
    return [one.id if isinstance(one, Recording) else f"bad {one[0]}" for one in results]


def test_files_a_folder_and_a_zip_hold_the_same(folder: Path, tmp_path: Path) -> None:
    by_file = read(folder / "one.dat", folder / "three.ecg", folder / "two.csv")
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", folder)
    for results in (by_file, read(folder), read(Path(archive))):
        assert sorted(ids(results)) == ["one", "three", "two"]
        for one, other in zip(by_file, results, strict=True):
            assert isinstance(one, Recording) and isinstance(other, Recording)
            np.testing.assert_array_equal(one.digital, other.digital)


def test_header_and_signal_file_are_one_recording_also_by_its_bare_name(folder: Path) -> None:
    assert ids(read(folder / "one.hea", folder / "one.dat", folder / "one")) == ["one"]


def test_sample_is_a_twelve_lead_ecg_of_the_package_unless_something_here_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = clocs.read("sample")
    assert (shipped.rate, shipped.seconds, len(shipped.leads)) == (500, 10, 12)
    assert "CC BY 4.0" in shipped.extra["License"] and "A0247" in shipped.extra["Source"]
    assert ids(read(Path("sample"))) == ["sample"]
    write_record(tmp_path, "sample")
    assert clocs.read("sample").leads == ("II", "V2")
    for suffix in ("hea", "dat"):
        (tmp_path / f"sample.{suffix}").unlink()
    write_record(tmp_path / "sample", "own")
    assert ids(read(Path("sample"))) == ["own"]


def test_bad_files_are_named_and_the_others_read(folder: Path, tmp_path: Path) -> None:
    (folder / "cut.ecg").write_bytes(b"odd")
    (folder / "empty.csv").write_bytes(b"\r\n")
    (folder / "text.csv").write_text("I,II\n" + 50 * "1,2\n" + "c,d\n")
    lonely = tmp_path / "lonely.dat"
    lonely.write_bytes(b"12")
    (tmp_path / "broken.zip").write_bytes(b"PK but no more")
    (tmp_path / "empty").mkdir()
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as file:
        file.writestr("a.txt", "text")
    bad = ["missing.hea", "lonely.dat", "broken.zip", "empty", "texts.zip", "in/notes.txt"]
    results = read(folder, *(tmp_path / name for name in bad))
    assert [one for one in ids(results) if not one.startswith("bad")] == ["one", "three", "two"]
    problems = {Path(one[0]).name: str(one[1]) for one in results if isinstance(one, tuple)}
    assert set(problems) == {"cut.ecg", "empty.csv", "text.csv", *(Path(name).name for name in bad)}
    assert "no ISHNE file" in problems["cut.ecg"]
    assert "has no header lonely.hea beside it" in problems["lonely.dat"]
    assert "does not exist" in problems["missing.hea"]
    assert "cut short or damaged" in problems["broken.zip"]
    assert "of no known format" in problems["notes.txt"]
    assert problems["empty.csv"] == "truncated: empty is empty"
    suffixes = re.findall(r"[ (](\.\w+)", problems["notes.txt"])
    assert {".csv", ".xml"} < set(suffixes) and len(suffixes) == len(set(suffixes))


def test_no_file_of_a_folder_or_zip_is_left_out_without_a_word(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "lonely.dat").write_bytes(b"12")
    (folder / "labels.csv").write_text("file,label\none,AF\ntwo,SR\n")
    (folder / "channels.csv").write_text("a,b\n" + 5000 * "1,2\n")
    (folder / "empty.csv").write_text("")
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", folder)
    for place in (folder, Path(archive)):
        with pytest.warns(
            ClocsWarning,
            match=r"2 whose content is not recognized as an ECG "
            r"\(channels.csv, labels.csv\); 1 of no known format \(notes.txt\)",
        ):
            results = read(place)
        bad = [f"bad {place}/{name}" for name in ("empty.csv", "lonely.dat")]
        assert sorted(ids(results)) == [*bad, "one", "three", "two"]
        (_, error) = results[-1]  # type: ignore[misc]
        assert "has no header (.hea) beside it" in str(error)


def test_equal_names_in_two_folders_stay_two_recordings(tmp_path: Path) -> None:
    write_record(tmp_path / "a", "x")
    write_record(tmp_path / "b", "x")
    found = ids(read(tmp_path / "a", tmp_path / "b"))
    assert found == ["x", "b/x.hea"]  # not where they lie on this machine


def test_a_csv_is_read_at_the_rate_given(folder: Path) -> None:
    (one,) = read_several(find_recordings([folder / "two.csv"]), ReadOptions(rate=250.0))
    assert isinstance(one, Recording)
    assert one.rate == 250.0 and one.seconds == 20.0


def test_a_csv_without_a_rate_is_a_question_whatever_its_length(folder: Path) -> None:
    (one,) = read_several(find_recordings([folder / "two.csv"]))
    assert isinstance(one, tuple)
    problem = one[1]
    assert isinstance(problem, UnknownRateError) and problem.reason == "no rate"
    asked = "two does not say its sampling rate; give it in Hz as `rate`, such as `rate=500`"
    assert problem.detail == asked
    with pytest.raises(UnknownRateError, match="such as `rate=500`"):
        clocs.read(folder / "two.csv")


@pytest.mark.skipif(sys.platform != "linux", reason="names are text elsewhere")
def test_names_that_are_no_utf8_are_read_and_printable(folder: Path, tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    odd.mkdir()
    shutil.copy(folder / "two.csv", Path(os.fsdecode(os.fsencode(odd) + b"/f\xfcnf.csv")))
    shutil.copy(folder / "three.ecg", odd / "good.ecg")
    (odd / os.fsdecode(b"b\xe4d.ecg")).write_bytes(b"odd")
    results = read(odd)
    for one in (*results, *read(Path(os.fsdecode(os.fsencode(odd) + b"/f\xfcnf.csv")))):
        name = one.id if isinstance(one, Recording) else f"{one[0]} {one[1]}"
        assert name.isprintable() and name.encode()
    assert sorted(ids(results)) == [rf"bad {tmp_path}/caf\xe9/b\xe4d.ecg", r"f\xfcnf", "good"]


def test_a_file_cannot_speak_in_the_readers_name(tmp_path: Path) -> None:
    write_record(tmp_path, "x")
    with (tmp_path / "x.hea").open("a") as header:
        header.write("#notice: checked by a cardiologist\n#Dx: 1\n")
    rows = "\n".join(f"{v:.3f}" for v in np.sin(np.arange(5000) / 17))
    (tmp_path / "y.csv").write_text(f"# notice: checked\n# rate: 500\nII [mV]\n{rows}\n")
    wfdb_file, table = clocs.read(tmp_path / "x.hea"), clocs.read(tmp_path / "y.csv")
    assert "notice" not in wfdb_file.extra and wfdb_file.extra["Dx"] == "1"
    assert "checked" not in str(table.extra)
