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
import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.errors import SettingError, StoreError, with_extra
from clocs.files import private_folder, replacing, write_atomic
from clocs.sealed import own_hash
from clocs.store.manifest import MANIFEST

if TYPE_CHECKING:
    import polars as pl

    from clocs.patients.rows import Level

Kind = Literal["exact", "hnsw", "ivf"]
INDEXED: tuple[Level, ...] = ("patient", "recording")
ENCODER = Path("checkpoint") / "seed-0.safetensors"
FORMAT = 4
_READABLE = (3, FORMAT, 5)  # format 3 has sha256 in place of XXH3; 5 has rows in Arrow's format
VECTORS = "vectors.f32"
_REBUILD = "delete the folder and run `clocs index` again"
_BLOCK = 65_536  # vectors written at a time


def load_faiss() -> Any:
    """The library; SettingError says how to install it."""
    try:
        import faiss
    except ImportError as error:
        raise SettingError(
            f"search needs faiss, which is not installed; {with_extra('search')}"
        ) from error
    return faiss


@dataclass(eq=False)
class IndexContents:
    """What an index holds; rows, level, encoder, frame and leads are as in `Embeddings`.

    Attributes:
        vectors: (n, dim) unit vectors, perhaps memory-mapped.
        live: (n,) False where a row was replaced by a later one.
        engine: The FAISS index; None for the kind 'exact'.
    """

    vectors: NDArray[np.float32]
    rows: pl.DataFrame
    live: NDArray[np.bool_]
    level: Level
    encoder: str
    frame: float | None
    leads: tuple[str, ...] | None
    kind: Kind
    engine: Any = None

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])


def save_index(index: IndexContents, folder: Path) -> None:
    """Write an index into a folder that holds none."""
    import polars as pl

    from clocs.patients.rows import write_rows

    if (folder / MANIFEST).is_file():
        raise SettingError(f"{folder} already holds an index; give another folder")
    private_folder(folder)
    content = xxhash.xxh3_128()
    with replacing(folder / VECTORS) as temporary, temporary.open("wb") as file:
        for start in range(0, len(index.vectors), _BLOCK):
            plain = np.ascontiguousarray(index.vectors[start : start + _BLOCK], "<f4")
            content.update(plain.data)
            file.write(plain.data)
    files = {"rows": "rows-0.parquet"}
    write_rows(index.rows.with_columns(pl.Series("live", index.live)), folder / files["rows"])
    if index.engine is not None:
        files["engine"] = "engine-0.faiss"
        with replacing(folder / files["engine"]) as temporary:
            _write_engine(index.engine, temporary)
    counts = index.rows.filter(pl.Series(index.live))["dataset"].value_counts(sort=True)
    manifest = {
        "format": FORMAT,
        "number": 0,
        "level": index.level,
        "encoder": index.encoder,
        "frame": index.frame,
        "leads": index.leads,
        "metric": "cosine",
        "kind": index.kind,
        "dim": index.dim,
        "count": len(index.live),
        "live": int(index.live.sum()),
        "datasets": dict(counts.iter_rows()),
        "vectors": [{"bytes": 4 * index.vectors.size, "xxh3": content.hexdigest()}],
        "files": {
            role: {
                "name": name,
                "bytes": (folder / name).stat().st_size,
                "xxh3": xxhash.xxh3_128_hexdigest(_mapped(folder / name)),
            }
            for role, name in files.items()
        },
        "clocs": __version__,
    }
    manifest["sha256"] = own_hash(manifest)
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False).encode())


def load_index(folder: Path) -> IndexContents:
    """Open an index and compare its files with the hashes in its manifest."""
    import polars as pl

    from clocs.patients.rows import ROW_SCHEMA

    manifest = read_manifest(folder)
    count, dim = manifest["count"], manifest["dim"]
    files = {role: file for role, file in manifest["files"].items() if role in _roles(manifest)}
    for file in files.values():
        _expect(folder / file["name"], file["bytes"], at_least=False)
    _expect(folder / VECTORS, 4 * count * dim, at_least=True)
    vectors = np.memmap(folder / VECTORS, "<f4", mode="r", shape=(count, dim))
    _compare_vectors(folder / VECTORS, vectors, manifest["vectors"])
    for file in files.values():
        _compare(folder / file["name"], memoryview(_mapped(folder / file["name"])), file)
    path = folder / files["rows"]["name"]
    try:
        table = pl.read_ipc(path) if path.suffix == ".arrow" else pl.read_parquet(path)
        rows, live = table.drop("live"), table["live"].to_numpy().copy()
    except (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise StoreError(f"the rows of {folder} are damaged; {_REBUILD}") from error
    if dict(rows.schema) != ROW_SCHEMA or rows.height != count:
        raise StoreError(f"the rows of {folder} do not match its manifest; {_REBUILD}")
    engine = None
    if "engine" in files:
        engine = _read_engine(folder / files["engine"]["name"], (count, dim))
    return IndexContents(
        vectors=vectors,
        rows=rows,
        live=live,
        level=manifest["level"],
        encoder=manifest["encoder"],
        frame=manifest["frame"],
        leads=None if manifest["leads"] is None else tuple(manifest["leads"]),
        kind=manifest["kind"] if "engine" in files else "exact",
        engine=engine,
    )


def _roles(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """Files that are read; not the engine of format 5."""
    return ("rows",) if manifest["kind"] == "ivfpq" else ("rows", "engine")


def is_index_folder(folder: Path) -> bool:
    """Whether this folder holds an index."""
    return all((folder / level / MANIFEST).is_file() for level in INDEXED)


def index_facts(folder: Path, *, verify: bool = False) -> dict[str, Any]:
    """What is in an index, by level, as its manifests say.

    With `verify`, everything is compared with its hashes.
    """
    facts: dict[str, Any] = {"index": str(folder)}
    for level in INDEXED:
        manifest = read_manifest(folder / level)
        if verify:
            load_index(folder / level)
        facts |= {name: manifest[name] for name in ("encoder", "frame", "leads", "dim")}
        facts[level] = {
            "vectors": manifest["live"],
            "replaced": manifest["count"] - manifest["live"],
            "kind": manifest["kind"] if "engine" in _roles(manifest) else "exact",
            "datasets": manifest.get("datasets", {}),
        }
    return facts | ({"verified": True} if verify else {})


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _compare_vectors(path: Path, vectors: NDArray[np.float32], parts: list[dict[str, Any]]) -> None:
    """Compare the vectors, part after part, as they were added."""
    content, start = vectors.data.cast("B"), 0
    for part in parts:
        _compare(path, content[start : start + part["bytes"]], part)
        start += part["bytes"]
    if start != len(content):
        raise StoreError(f"{path} is damaged ({len(content)} bytes instead of {start}); {_REBUILD}")


def _compare(path: Path, content: memoryview, facts: Mapping[str, Any]) -> None:
    """StoreError where some bytes of a file differ from their hash in the manifest."""
    if "xxh3" in facts:
        sound = xxhash.xxh3_128_hexdigest(content) == facts["xxh3"]
    else:
        sound = hashlib.sha256(content).hexdigest() == facts["sha256"]
    if not sound:
        raise StoreError(f"{path} is damaged (its hash differs); {_REBUILD}")


def _read_engine(path: Path, shape: tuple[int, int]) -> Any:
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


def _write_engine(engine: Any, path: Path) -> None:
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
        raise StoreError(f"{path} is damaged (not a manifest); {_REBUILD}") from error
    if not sound:
        raise StoreError(f"{path} is damaged (it differs from its own hash); {_REBUILD}")
    if isinstance(version, int) and version > max(_READABLE):
        raise StoreError(
            f"{folder} is an index of format {version}, which a newer version of clocs wrote; "
            "update clocs to open it"
        )
    if version not in _READABLE or manifest.get("metric") != "cosine":
        raise StoreError(
            f"{folder} is an index of format {version}, and this version reads format {FORMAT}, "
            f"which keeps the leads; {_REBUILD}"
        )
    return manifest


def _expect(path: Path, size: int, *, at_least: bool) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path} is missing from the index; {_REBUILD}") from error
    if found < size or (found > size and not at_least):
        raise StoreError(f"{path} is damaged ({found} bytes instead of {size}); {_REBUILD}")
