"""Sources and stores on a real S3 server."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clocs
import edf_files
from clocs.errors import ClocsWarning, SettingError, SourceError, StoreError
from clocs.formats.source import open_source
from clocs.store.manifest import MANIFEST
from clocs.store.store import Store, open_store
from own_files import record
from s3_server import BUCKET, SECRET, point_to, s3_server

pytestmark = pytest.mark.filterwarnings("ignore::clocs.errors.ClocsWarning")


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with s3_server() as system:
        yield system


@pytest.fixture(autouse=True)
def own_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOCS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stores"


@pytest.fixture(scope="module")
def ward(s3: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """WFDB and EDF files, a zip and a table of labels, here and in the bucket."""
    folder = tmp_path_factory.mktemp("files") / "ward"
    for number in range(3):
        record(folder / "wfdb", f"r{number}")
    edf_files.write(folder, [edf_files.signal("II")], "night.edf")
    (folder / "broken.edf").write_bytes((folder / "night.edf").read_bytes()[:3000])
    inner = folder.parent / "inner"
    record(inner, "z0")
    with zipfile.ZipFile(folder / "more.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(inner.iterdir()):
            archive.write(path, path.name)
    rows = "".join(f"{name},{label}\n" for name, label in (("r0", "AF"), ("z0", "SR")))
    (folder / "labels.csv").write_text(f"id,label\n{rows}")
    (folder / ".hidden").write_text("x")
    s3.put(str(folder), f"{BUCKET}/ward", recursive=True)
    return folder


def address(name: str) -> str:
    return f"s3://{BUCKET}/{name}"


def contents(store: Store) -> dict[str, bytes]:
    files = (path for path in store.path.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(store.path).as_posix(): path.read_bytes() for path in files}


def test_a_prefix_on_s3_becomes_the_store_of_the_same_folder_bit_for_bit(
    ward: Path, tmp_path: Path
) -> None:
    here = clocs.prepare("folder", ward, out=tmp_path / "here", labels="labels.csv")
    there = clocs.prepare(
        "folder", address("ward"), out=tmp_path / "there", labels=address("ward/labels.csv")
    )
    assert contents(there) == contents(here)
    assert there.manifest.content_hash == here.manifest.content_hash
    assert there.manifest.source == here.manifest.source == "ward"
    assert there.manifest.settings == here.manifest.settings == {"labels": "labels.csv"}
    assert len(there) == 5 and there.quarantine["id"].to_list() == ["broken"]
    assert SECRET not in (there.path / MANIFEST).read_text()


def test_a_zip_on_s3_and_single_files_are_read_where_they_are(ward: Path) -> None:
    zipped, here = open_source(address("ward/more.zip")), open_source(ward / "more.zip")
    assert zipped.names == here.names and not zipped.is_folder
    assert [zipped.read(name) for name in zipped.names] == [here.read(n) for n in here.names]
    assert zipped.read_sibling("labels.csv") == (ward / "labels.csv").read_bytes()
    assert zipped.read_sibling("absent.csv") is None
    for name in ("night.edf", "wfdb/r1.hea", "wfdb/r1.dat", "wfdb/r1"):
        found, expected = clocs.read(address(f"ward/{name}")), clocs.read(ward / name)
        assert found.id == expected.id and (found.digital == expected.digital).all()
    with pytest.raises(SourceError, match=r"s3://ward/ward/absent\.edf does not exist"):
        clocs.read(address("ward/absent.edf"))


def put(s3: Any, store: Store, name: str) -> None:
    for path in store.path.rglob("*"):
        if path.is_file():
            s3.put_file(str(path), f"{BUCKET}/{name}/{path.relative_to(store.path).as_posix()}")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return clocs.prepare("synthetic", out=tmp_path_factory.mktemp("small") / "store", patients=3)


def test_a_store_on_s3_is_copied_once_and_again_where_the_copy_is_damaged(
    s3: Any, small: Store, own_copies: Path
) -> None:
    put(s3, small, "made")
    with pytest.warns(ClocsWarning, match=r"s3://ward/made \(.* MB\) is copied to"):
        opened = open_store(address("made"))
    assert opened.manifest == small.manifest and own_copies in opened.path.parents
    assert own_copies.stat().st_mode & 0o077 == 0
    first = opened.path.stat().st_ino
    assert open_store(Path(address("made"))).path.stat().st_ino == first  # not copied again
    (opened.path / "table.parquet").unlink()
    assert len(open_store(address("made"))) == len(small)


def test_stores_and_files_at_addresses_are_embedded_as_those_here(
    s3: Any, ward: Path, small: Store
) -> None:
    put(s3, small, "small")
    files: list[Path | str] = [address("ward/night.edf"), ward / "night.edf"]
    made = clocs.embed(
        "cmsc-chapman", *files, address("small"), level="recording", frame=5.0, leads=["II"]
    )
    *rest, there, here = made.vectors  # files come after stores
    np.testing.assert_array_equal(there, here)
    assert len(rest) == len(small)


def test_a_store_in_shards_is_opened_from_s3(s3: Any, tmp_path: Path) -> None:
    made = clocs.prepare("synthetic", out=tmp_path / "parts", patients=4, shards=2)
    put(s3, made, "parts")
    opened = open_store(address("parts"))
    assert len(opened.shards) == 2 and opened.manifest == made.manifest


def test_incomplete_damaged_and_changed_stores_are_noticed(
    s3: Any, small: Store, tmp_path: Path, own_copies: Path
) -> None:
    put(s3, small, "worn")
    s3.mv(f"{BUCKET}/worn/{MANIFEST}", f"{BUCKET}/kept")
    with pytest.raises(StoreError, match="is no complete store"):
        open_store(address("worn"))
    s3.mv(f"{BUCKET}/kept", f"{BUCKET}/worn/{MANIFEST}")
    chunk, own = f"{BUCKET}/worn/signals/c/0", (small.path / "signals/c/0").read_bytes()
    for damaged in (own[:900] + bytes([own[900] ^ 1]) + own[901:], own[:-1]):
        s3.pipe_file(chunk, damaged)
        with pytest.raises(StoreError, match=r"s3://ward/worn.* is damaged"):
            open_store(address("worn"))
        assert not [path for path in own_copies.iterdir() if path.suffix != ".new"]
    s3.rm_file(chunk)
    with pytest.raises(StoreError, match="s3://ward/worn/signals/c/0 is missing"):
        open_store(address("worn"))
    s3.pipe_file(chunk, own)
    assert open_store(address("worn")).manifest == small.manifest
    other = clocs.prepare("synthetic", out=tmp_path / "other", patients=5)
    s3.rm(f"{BUCKET}/worn", recursive=True)
    put(s3, other, "worn")
    assert open_store(address("worn")).manifest == other.manifest


def test_what_is_wrong_with_an_address_is_one_sentence(
    s3: Any, ward: Path, small: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceError, match="s3://nowhere/x does not exist; check its bucket"):
        clocs.prepare("folder", "s3://nowhere/x", out=tmp_path / "out")
    with pytest.raises(SourceError, match="s3://ward/absent holds no files"):
        clocs.prepare("folder", address("absent"), out=tmp_path / "out")
    with pytest.raises(StoreError, match="s3://ward/ward is no complete store"):
        open_store(address("ward"))
    with pytest.raises(SettingError, match="`out` is s3://ward/new; stores are written to folders"):
        clocs.prepare("synthetic", out=address("new"))
    with pytest.raises(SettingError, match="nosuch://x/y is not an address"):
        open_store("nosuch://x/y")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(SettingError, match=r"s3:// addresses need s3fs; .* '\.\[s3\]'"):
        _without_instances(lambda: open_store(address("ward")))


def _without_instances(act: Any) -> None:
    from fsspec.registry import _registry

    known = _registry.pop("s3")
    try:
        act()
    finally:
        _registry["s3"] = known


def test_a_file_that_changes_while_it_is_read_is_noticed(
    s3: Any, ward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put(str(ward / "wfdb"), f"{BUCKET}/moving", recursive=True)
    source = open_source(address("moving"))
    s3.pipe_file(f"{BUCKET}/moving/r0.dat", b"longer" + (ward / "wfdb" / "r0.dat").read_bytes())
    with pytest.raises(SourceError, match=r"s3://ward/moving/r0.dat has changed since"):
        source.read("r0.dat")
    opened = open_source(address("moving"))
    opened.check_unchanged()
    size = opened.size("r1.dat")
    s3.pipe_file(f"{BUCKET}/moving/r1.dat", bytes(size))  # as long as before
    with pytest.raises(SourceError, match="s3://ward/moving have changed while they were read"):
        opened.check_unchanged()


def test_denied_access_is_said_in_one_sentence_without_the_key(
    s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from web_files import serving

    with serving({}, status=403) as web:
        point_to(monkeypatch, web)
        with pytest.raises(SourceError, match="access to s3://ward/x is denied") as denied:
            open_source("s3://ward/x")
    assert SECRET not in str(denied.value)
