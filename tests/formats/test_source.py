"""Sources: the same bytes from a folder, a zip and zips in a folder; bad ones are refused."""

from __future__ import annotations

import inspect
import os
import pickle
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.errors import ClocsError, ClocsWarning, SourceError, UnusableError
from clocs.formats.source import open_source

METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
FILES = {"a.hea": b"text", "sub/b.dat": bytes(range(256)) * 50, "empty.csv": b""}


def write_folder(folder: Path) -> Path:
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_zip(path: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
    return path


def test_a_folder_gives_its_files_by_posix_names(tmp_path: Path) -> None:
    source = open_source(write_folder(tmp_path))
    assert source.names == ("a.hea", "empty.csv", "sub/b.dat")
    assert {name: source.read(name) for name in source.names} == FILES


@pytest.mark.parametrize("method", METHODS)
def test_a_zip_gives_the_same_bytes_as_the_folder_whatever_its_method(
    tmp_path: Path, method: int
) -> None:
    source = open_source(write_zip(tmp_path / "all.zip", method))
    assert {name: source.read(name) for name in source.names} == FILES


def test_zips_inside_a_folder_are_read_in_place_beside_plain_files(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(b"x")
    write_zip(tmp_path / "one.zip")
    write_zip(tmp_path / "two.ZIP")
    source = open_source(tmp_path)
    assert set(source.names) == {
        "labels.csv",
        *(f"one.zip/{name}" for name in FILES),
        *(f"two.ZIP/{name}" for name in FILES),
    }
    assert source.read("two.ZIP/sub/b.dat") == FILES["sub/b.dat"]


def test_junk_of_operating_systems_is_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "mac.zip", "w") as archive:
        archive.writestr("top/a.hea", b"1")
        archive.writestr("__MACOSX/top/._a.hea", b"2")
        archive.writestr("top/.DS_Store", b"3")
    (tmp_path / ".DS_Store").write_bytes(b"4")
    assert open_source(tmp_path).names == ("mac.zip/top/a.hea",)


@pytest.mark.parametrize("method", ["folder", *METHODS])
def test_pieces_of_a_file_are_those_of_the_whole_in_any_order(
    tmp_path: Path, method: str | int
) -> None:
    whole = np.arange(750_000, dtype="<u4").tobytes()
    if isinstance(method, str):
        (tmp_path / "a.bin").write_bytes(whole)
        source = open_source(tmp_path)
    else:
        with zipfile.ZipFile(tmp_path / "all.zip", "w", method) as archive:
            archive.writestr("a.bin", whole)
        source = open_source(tmp_path / "all.zip")
    assert source.size("a.bin") == len(whole)
    assert source.head("a.bin", 100) == whole[:100]
    for start, count in [(0, 10), (5, 2_000_000), (2_000_005, 10**6), (7, 1), (2_999_999, 5)]:
        assert source.piece("a.bin", start, count) == whole[start : start + count]
    assert source.piece("a.bin", 4_000_000, 5) == b""
    assert pickle.loads(pickle.dumps(source)).piece("a.bin", 50, 5) == whole[50:55]  # noqa: S301


def test_many_threads_read_the_same_zip_at_once(tmp_path: Path) -> None:
    contents = {f"{i}.bin": os.urandom(5000) * (i % 3 + 1) for i in range(60)}
    with zipfile.ZipFile(tmp_path / "many.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    source = open_source(tmp_path / "many.zip")
    names = list(contents) * 10
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(source.read, names)) == [contents[name] for name in names]


def test_a_worker_process_can_reopen_a_source(tmp_path: Path) -> None:
    source = open_source(write_zip(tmp_path / "all.zip"))
    again = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert again.names == source.names
    assert again.fingerprint == source.fingerprint
    assert again.read("a.hea") == b"text"


def test_the_fingerprint_is_stable_and_changes_with_size_time_and_members(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    first = open_source(folder).fingerprint
    assert open_source(folder).fingerprint == first
    os.utime(folder / "a.hea", ns=(0, 0))
    touched = open_source(folder).fingerprint
    (folder / "a.hea").write_bytes(b"longer text")
    os.utime(folder / "a.hea", ns=(0, 0))
    grown = open_source(folder).fingerprint
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        archive.writestr("c", b"c")
    more = open_source(folder).fingerprint
    assert len({first, touched, grown, more}) == 4


def test_links_that_lead_back_end(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    (folder / "again").symlink_to(folder, target_is_directory=True)
    assert open_source(folder).names == ("a.hea", "empty.csv", "sub/b.dat")


def test_links_that_lead_out_are_named_and_followed_only_if_asked(tmp_path: Path) -> None:
    folder, other = write_folder(tmp_path / "folder"), write_folder(tmp_path / "other")
    (other / "back").symlink_to(other, target_is_directory=True)
    (folder / "out").symlink_to(other, target_is_directory=True)
    (folder / "out.hea").symlink_to(other / "a.hea")
    (folder / "nowhere").symlink_to(tmp_path / "gone")
    (folder / "itself").symlink_to("itself")
    (folder / "inside.hea").symlink_to("a.hea")
    inside = ("a.hea", "empty.csv", "inside.hea", "sub/b.dat")
    with pytest.warns(ClocsWarning, match=r"not followed \(4: itself, nowhere, out and"):
        assert open_source(folder).names == inside
    with pytest.warns(ClocsWarning, match=r"not followed \(2: itself, nowhere\)"):
        found = open_source(folder, follow_links=True)
    assert set(found.names) == {*inside, "out.hea", *(f"out/{name}" for name in FILES)}
    assert found.read("out/a.hea") == b"text"


def test_a_deep_tree_is_listed_and_one_that_is_too_deep_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "deep" / Path(*"d" * 200)
    deep.mkdir(parents=True)
    (deep / "a.hea").write_bytes(b"text")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    try:
        (name,) = open_source(tmp_path / "deep").names
    finally:
        sys.setrecursionlimit(limit)
    assert name == "d/" * 200 + "a.hea"
    monkeypatch.chdir(tmp_path)
    for _ in range(20):  # longer than the 4,096 bytes that a path may have
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    with pytest.raises(SourceError, match=r"cannot be listed .File name too long") as said:
        open_source(tmp_path)
    assert len(str(said.value)) < 400


def test_a_missing_path_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"aaa… does not exist"):
        open_source("a" * 5000)
    with pytest.raises(SourceError, match=r"nowhere does not exist; give a folder or the zip"):
        open_source(tmp_path / "nowhere")


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"hello")
    with pytest.raises(SourceError, match=r"a\.zip is neither a folder nor a zip"):
        open_source(tmp_path / "a.zip")


@pytest.mark.parametrize("where", ["alone", "in a folder"])
def test_a_truncated_zip_is_refused_with_the_remedy(tmp_path: Path, where: str) -> None:
    path = write_zip(tmp_path / "cut.zip")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(SourceError, match=r"cut\.zip is a zip that is cut short.*again"):
        open_source(path if where == "alone" else tmp_path)


def test_an_encrypted_member_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "secret.zip")
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the flag of the first member
    path.write_bytes(bytes(data))
    with pytest.raises(SourceError, match=r"a\.hea in .*secret\.zip is encrypted; unpack"):
        open_source(path)


def test_a_damaged_member_spoils_only_itself(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "rot.zip", zipfile.ZIP_STORED)
    data = path.read_bytes().replace(b"text", b"tixt")
    path.write_bytes(data)
    source = open_source(path)
    with pytest.raises(UnusableError, match=r"a\.hea in .* is damaged"):
        source.read("a.hea")
    assert source.read("sub/b.dat") == FILES["sub/b.dat"]


def test_asking_for_a_file_that_is_not_there_is_a_source_error(tmp_path: Path) -> None:
    source = open_source(write_folder(tmp_path))
    with pytest.raises(SourceError, match=r"holds no file b\.hea"):
        source.read("b.hea")
    (tmp_path / "a.hea").unlink()
    with pytest.raises(SourceError, match=r"a\.hea .* can no longer be read"):
        source.read("a.hea")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=8))
def test_no_mutation_of_a_zip_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    path = write_zip(tmp_path_factory.mktemp("fuzz") / "all.zip")
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[place % len(data)] = value
    path.write_bytes(bytes(data))
    try:
        source = open_source(path)
        for name in source.names:
            source.read(name)
    except ClocsError as error:
        assert "\n" not in str(error)
