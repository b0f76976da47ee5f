"""An index on disk: plain vectors, a table of rows, FAISS's own file and a manifest; no pickle.

    checkpoint/seed-0.safetensors, seed-0.json     the encoder, so that files can be queries
    patient/, recording/                           one index each:
        vectors.f32         (n, dim) unit vectors, little-endian float32
        rows-0.parquet      one row per vector, and which were replaced
        engine-0.faiss      for the kinds 'hnsw' and 'ivf'
        manifest.json       what the index is, with the size and hash of each file; written last

Opening compares all of it with these hashes. An index of format 5, which earlier versions wrote for
more than ten million vectors, is searched exactly: its vectors and rows are the same.

Earlier versions added to an index: vectors came in parts with a hash each, files had the next
number, and vectors beyond the manifest's count were left over from an interrupted addition.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from clocs.errors import StoreError, needing
from clocs.sealed import own_hash
from clocs.store.manifest import MANIFEST

if TYPE_CHECKING:
    from clocs.patients.rows import Level

Kind = Literal["exact", "hnsw", "ivf"]
INDEXED: tuple[Level, ...] = ("patient", "recording")
ENCODER = Path("checkpoint") / "seed-0.safetensors"
FORMAT = 4
_READABLE = (FORMAT, 5)  # which has rows in Arrow's format
VECTORS = "vectors.f32"
REBUILD = "delete the folder and run `clocs index` again"


def load_faiss() -> Any:
    """The library; SettingError says how to install it."""
    with needing("search needs faiss", "search"):
        import faiss
    return faiss


def is_index_folder(folder: Path) -> bool:
    """Whether this folder holds an index."""
    return all((folder / level / MANIFEST).is_file() for level in INDEXED)


def index_facts(folder: Path) -> dict[str, Any]:
    """What is in an index, by level, as its manifests say."""
    facts: dict[str, Any] = {"index": str(folder)}
    for level in INDEXED:
        manifest = read_manifest(folder / level)
        facts |= {name: manifest[name] for name in ("encoder", "frame", "leads", "dim")}
        facts[level] = {
            "vectors": manifest["live"],
            "replaced": manifest["count"] - manifest["live"],
            "kind": kind_of(manifest),
            "datasets": manifest.get("datasets", {}),
        }
    return facts


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """How an index is searched: exactly, where format 5 had an engine of its own."""
    kind: Kind = "exact" if manifest["kind"] == "ivfpq" else manifest["kind"]
    return kind


def checked_vectors(folder: Path, manifest: Mapping[str, Any]) -> NDArray[np.float32]:
    """(n, dim) memory-mapped, once all files that are read agree with their hashes."""
    count, dim, parts = manifest["count"], manifest["dim"], manifest["vectors"]
    if sum(part["bytes"] for part in parts) != 4 * count * dim:
        raise StoreError(f"{folder / VECTORS} is damaged (of another size); {REBUILD}")
    _compare(folder / VECTORS, parts)
    for role, facts in manifest["files"].items():
        if role == "rows" or kind_of(manifest) != "exact":
            _compare(folder / facts["name"], [facts])
    return np.memmap(folder / VECTORS, "<f4", mode="r", shape=(count, dim))


def _compare(path: Path, parts: Iterable[Mapping[str, Any]]) -> None:
    """StoreError where the parts of a file, one after another, differ from their hashes."""
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # the latter of an empty file
        raise StoreError(f"{path} is missing from the index, or empty; {REBUILD}") from error
    for part in parts:
        piece, content = content[: part["bytes"]], content[part["bytes"] :]
        if xxhash.xxh3_128_hexdigest(piece) != part["xxh3"]:
            raise StoreError(f"{path} is damaged (its hash differs); {REBUILD}")


def read_engine(path: Path, shape: tuple[int, int]) -> Any:
    """FAISS's own file; StoreError where it is damaged, or not of vectors of a shape (n, dim)."""
    try:
        engine = load_faiss().read_index(str(path))
    except (RuntimeError, MemoryError) as error:
        raise StoreError(
            f"{path} is damaged (FAISS cannot read it); run `clocs index` again"
        ) from error
    if (engine.ntotal, engine.d) != shape:
        raise StoreError(f"{path} is of other vectors; run `clocs index` again")
    return engine


def write_engine(engine: Any, path: Path) -> None:
    """Write FAISS's own file; OSError where the system refuses it."""
    try:
        load_faiss().write_index(engine, str(path))
    except RuntimeError as error:
        code = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of one level of an index, compared with its hash."""
    path = folder / MANIFEST
    if not path.is_file():
        raise StoreError(f"{folder} is not an index; make one with `clocs index`")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
        fields = {name: value for name, value in manifest.items() if name != "sha256"}
        sound = manifest["sha256"] == own_hash(fields)
        # Saving deletes the files of the previous manifest: no name may point out of the folder.
        sound &= all(Path(file["name"]).name == file["name"] for file in manifest["files"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} is damaged (not a manifest); {REBUILD}") from error
    if not sound:
        raise StoreError(f"{path} is damaged (it differs from its own hash); {REBUILD}")
    if isinstance(version, int) and version > max(_READABLE):
        raise StoreError(
            f"{folder} is an index of format {version}, which a newer version of clocs wrote; "
            "update clocs to open it"
        )
    if version not in _READABLE or manifest.get("metric") != "cosine":
        raise StoreError(
            f"{folder} is an index of format {version}, and this version reads format {FORMAT}, "
            f"which keeps the leads; {REBUILD}"
        )
    return manifest
