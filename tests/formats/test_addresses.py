"""Addresses as text, and files on a web server and in memory."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clocs
from clocs.errors import SettingError, SourceError, UnusableError
from clocs.formats import addresses
from clocs.formats.addresses import Address, parse_path_or_url
from clocs.formats.read import find_recordings
from clocs.formats.source import open_source
from own_files import record
from upload_files import zipped
from web_files import serving


@pytest.mark.parametrize(
    ("given", "url", "shown"),
    [
        ("s3://b/a//c/", "s3://b/a//c", "s3://b/a//c"),
        (Path("s3://b/a"), "s3://b/a", "s3://b/a"),
        ("https://me:pw@h:1/a.dcm?sig=x/y", "https://me:pw@h:1/a.dcm?sig=x/y", "https://h:1/a.dcm"),
        ("s3://me:p@w@h/a", "s3://me:p@w@h/a", "s3://h/a"),
        ("abfs://box@account/a", "abfs://box@account/a", "abfs://box@account/a"),
        ("memory:///x/y", "memory://x/y", "memory://x/y"),
        (Path("file:///x/y"), "file:///x/y", "file:///x/y"),
    ],
)
def test_an_address_survives_a_path_and_is_shown_without_secrets(
    given: Any, url: str, shown: str
) -> None:
    place = parse_path_or_url(given)
    assert isinstance(place, Address)
    assert place.url == url and str(place) == repr(place) == shown


@pytest.mark.parametrize("given", ["a/b", "C:/x", "/a:/b", "s3", "s3:", "folder:x"])
def test_a_path_is_no_address(given: str) -> None:
    assert parse_path_or_url(given) == Path(given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("reference://t.csv", "reference://t.csv is not an address that clocs can read; .* s3://"),
        ("zip://a::s3://b/c.zip", "not an address that clocs can read"),
        ("s3://b/a::http://h/refs.json", "joins several addresses"),
    ],
)
def test_addresses_that_lead_to_others_are_refused(given: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        open_source(given)


def test_an_address_has_names_like_a_path() -> None:
    place = parse_path_or_url("https://h/a/b%20c.tar.hea?key")
    assert isinstance(place, Address)
    assert (place.name, place.suffix) == ("b c.tar.hea", ".hea")
    assert place.parent.url == "https://h/a?key"
    assert (place.parent / "x").inside(place.parent) == "x" and not place.parent.inside(place)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("files")
    record(folder / "a b", "r0")
    record(folder / "a b", "r1")
    found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.*"))}
    return {**found, "z.zip": zipped(found)}


@pytest.fixture
def memory() -> Iterator[Any]:
    import fsspec

    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


def test_pages_of_a_web_server_are_a_folder(files: dict[str, bytes], tmp_path: Path) -> None:
    with serving(files) as web:
        source = open_source(web)
        assert list(source.names) == [
            *sorted(set(files) - {"z.zip"}),
            *(f"z.zip/{name}" for name in sorted(set(files) - {"z.zip"})),
        ]
        assert all(source.read(name) == data for name, data in files.items() if name in source)
        single = clocs.read(f"{web}/a b/r0.hea")
        (found,) = find_recordings([f"{web}/a b/r1.dat"])
    (tmp_path / "r0.hea").write_bytes(files["a b/r0.hea"])
    (tmp_path / "r0.dat").write_bytes(files["a b/r0.dat"])
    np.testing.assert_array_equal(single.digital, clocs.read(tmp_path / "r0.hea").digital)
    assert not isinstance(found, tuple) and found.name == f"{web}/a b/r1.hea"


def test_a_signed_web_address_is_used_whole_and_shown_without_its_signature(
    files: dict[str, bytes],
) -> None:
    with serving(files, key="sig=s3cr3t") as web:
        good, bad = f"{web}/a%20b/r0.hea?sig=s3cr3t", f"{web}/a%20b/r0.hea?sig=s3cr3"
        assert clocs.read(good).id == "r0"
        (found,) = find_recordings([good])
        assert "s3cr3t" not in found.name  # type: ignore[union-attr]
        with pytest.raises(SourceError, match=r"access to .*/r0\.hea is denied") as denied:
            clocs.read(bad)
    assert "s3cr3" not in str(denied.value)
    with pytest.raises(SourceError, match="cannot be reached") as gone:
        clocs.read(f"{web.replace('//', '//me:s3cr3t@')}/x.edf?sig=s3cr3t")
    assert "s3cr3t" not in str(gone.value)


def test_a_server_that_sends_whole_files_only_is_refused_for_large_zips(
    files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(files, ranges=False) as web:
        small = open_source(f"{web}/z.zip")
        assert small.read("a b/r0.hea") == files["a b/r0.hea"]
        monkeypatch.setattr(addresses, "_WHOLE", 100)
        with pytest.raises(SourceError, match=r"z\.zip sends whole files only"):
            open_source(f"{web}/z.zip")


def test_files_in_memory_become_a_store_by_threads(
    files: dict[str, bytes], memory: Any, tmp_path: Path
) -> None:
    for name, data in files.items():
        memory.pipe_file(f"/ward/{name}", data)
    source = open_source("memory://ward/a b")
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(source)
    with pytest.raises(UnusableError, match=r"memory://ward/a b/r0\.dat has .* at most 0\.0 MiB"):
        source.read("r0.dat", most=100)
    store = clocs.prepare("folder", "memory://ward/a b", out=tmp_path / "store")
    assert store.table["id"].to_list() == ["r0", "r1"]


def test_an_address_is_refused_as_out() -> None:
    with pytest.raises(SettingError, match="`out` is https://h/store; stores are written to fold"):
        clocs.prepare("synthetic", out="https://me:pw@h/store")
