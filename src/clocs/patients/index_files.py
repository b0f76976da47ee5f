"""An index on disk: plain vectors, a table of rows, FAISS's own file and a manifest; no pickle.

    vectors.f32         (n, dim) unit vectors, little-endian float32; only ever appended to
    rows-N.parquet      one row per vector, and which were replaced
    engine-N.faiss      for the kinds 'hnsw', 'ivf' and 'ivfpq'
    codes-N.ivf         for the kind 'ivfpq', whose rows are in rows-N.arrow, to be memory-mapped
    manifest.json       what the index is, with the size and hash of each file; written last

Opening compares all of it with these hashes; of the kind 'ivfpq', which is not read as a whole, the
manifest, the engine and all sizes, unless it is asked to verify.

Saving writes files with the next number N, then the manifest that names them, then deletes the old
ones: if it is interrupted, the folder opens as the old index or as the new one. Vectors beyond the
manifest's count are left over from an interrupted addition and overwritten by the next.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import xxhash
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.errors import SettingError, StoreError, with_extra
from clocs.files import private_folder, replacing, sync_folder, write_atomic
from clocs.patients.faiss_engines import Approximate, Kind
from clocs.patients.on_disk_engine import Effort, OnDisk, build, digest_of, file_names
from clocs.patients.rows import ROW_SCHEMA, Level, write_rows
from clocs.sealed import own_hash
from clocs.store.manifest import MANIFEST

FORMAT, ON_DISK_FORMAT = 4, 5  # the latter for the kind 'ivfpq' alone
_READABLE = (3, FORMAT, ON_DISK_FORMAT)  # format 3 has sha256 in place of XXH3
VECTORS = "vectors.f32"
_REBUILD = "delete the folder and run `clocs index` again"
_BLOCK = 65_536  # vectors written at a time


@dataclass(eq=False)
class IndexContents:
    """What an index holds; rows, level, encoder, frame and leads are as in `Embeddings`.

    Attributes:
        parts: (n, dim) unit vectors in one or more pieces, perhaps memory-mapped.
        live: (n,) False where a row was replaced by a later one.
        engine: The FAISS index; None for the kind 'exact', and for 'ivfpq' before it is saved.
        saved_as: The hash of the manifest that it was loaded from or saved with; '' before that.
    """

    parts: list[NDArray[np.float32]]
    rows: pl.DataFrame
    live: NDArray[np.bool_]
    level: Level
    encoder: str
    frame: float | None
    leads: tuple[str, ...] | None
    kind: Kind
    engine: Approximate | OnDisk | None = None
    saved_as: str = ""

    @property
    def dim(self) -> int:
        return int(self.parts[0].shape[1])


def save_index(index: IndexContents, folder: Path) -> None:
    """Write a new index, or the additions to one that was loaded from the same folder."""
    before = _read_manifest(folder) if (folder / MANIFEST).is_file() else None
    if before is not None and before["sha256"] != index.saved_as:
        raise SettingError(
            f"{folder} already holds an index, or it has changed since it was opened; "
            "give another folder, or add to that index with `add`"
        )
    private_folder(folder)
    number = 0 if before is None else before["number"] + 1
    parts: list[dict[str, Any]] = [] if before is None else before["vectors"]
    written = sum(part["bytes"] for part in parts) // (4 * index.dim)
    part = _append(folder / VECTORS, index, written)
    on_disk = index.kind == "ivfpq"
    files = {"rows": f"rows-{number}.{'arrow' if on_disk else 'parquet'}"}
    rows = index.rows.with_columns(pl.Series("live", index.live))
    if on_disk:
        with replacing(folder / files["rows"]) as temporary:
            rows.write_ipc(temporary, compression="uncompressed")
        index.parts = [_map_vectors(folder, len(index.live), index.dim)]
        previous = None if before is None else folder / before["files"]["engine"]["name"]
        index.engine = build(folder, number, index.parts[0], previous)
        files |= file_names(number)
    else:
        write_rows(rows, folder / files["rows"])
    if isinstance(index.engine, Approximate):
        files["engine"] = f"engine-{number}.faiss"
        with replacing(folder / files["engine"]) as temporary:
            index.engine.write(temporary)
    manifest = {
        "format": ON_DISK_FORMAT if on_disk else FORMAT,
        "number": number,
        "level": index.level,
        "encoder": index.encoder,
        "frame": index.frame,
        "leads": index.leads,
        "metric": "cosine",
        "kind": index.kind,
        "dim": index.dim,
        "count": len(index.live),
        "live": int(index.live.sum()),
        "vectors": [*parts, part] if part["bytes"] else parts,
        "files": {
            role: {
                "name": name,
                "bytes": (folder / name).stat().st_size,
                "xxh3": digest_of(folder / name),
            }
            for role, name in files.items()
        },
        "clocs": __version__,
    }
    if isinstance(index.engine, OnDisk):
        manifest["efforts"] = [asdict(effort) for effort in index.engine.efforts]
    manifest["sha256"] = own_hash(manifest)
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False).encode())
    index.saved_as = str(manifest["sha256"])
    if before is not None:
        for file in before["files"].values():
            (folder / file["name"]).unlink(missing_ok=True)


def load_index(folder: Path, *, verify: bool = False) -> IndexContents:
    """Open an index and compare its files with the hashes in its manifest.

    Those of the kind 'ivfpq' that are not read as a whole are compared only to `verify` them. If
    another process adds to the index meanwhile and replaces files, the new ones are read.
    """
    while True:
        manifest = _read_manifest(folder)
        try:
            return _load(folder, manifest, verify=verify)
        except StoreError:
            if _read_manifest(folder)["sha256"] == manifest["sha256"]:
                raise


def _load(folder: Path, manifest: dict[str, Any], *, verify: bool) -> IndexContents:
    count, dim, on_disk = manifest["count"], manifest["dim"], manifest["kind"] == "ivfpq"
    for file in manifest["files"].values():
        _expect(folder / file["name"], file["bytes"], at_least=False)
    _expect(folder / VECTORS, 4 * count * dim, at_least=True)
    vectors = _map_vectors(folder, count, dim)
    compared = [] if on_disk and not verify else manifest["vectors"]
    with ThreadPoolExecutor(1) as pool:  # the vectors meanwhile: hashing them releases the GIL
        content = vectors.data.cast("B")
        done = pool.submit(_compare_vectors, folder / VECTORS, content, compared)
        for role, file in manifest["files"].items():
            if compared or role == "engine":
                _compare(folder / file["name"], memoryview(_mapped(folder / file["name"])), file)
        try:
            table = _read_rows(folder / manifest["files"]["rows"]["name"], mapped=on_disk)
            rows, live = table.drop("live"), table["live"].to_numpy().copy()
        except (
            OSError,
            ValueError,
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
        ) as error:
            raise StoreError(f"the rows of {folder} are damaged; {_REBUILD}") from error
        done.result()
    if dict(rows.schema) != ROW_SCHEMA or rows.height != count:
        raise StoreError(f"the rows of {folder} do not match its manifest; {_REBUILD}")
    engine: Approximate | OnDisk | None = None
    if "engine" in manifest["files"]:
        path, shape = folder / manifest["files"]["engine"]["name"], (count, dim)
        if on_disk:
            engine = OnDisk.read(path, [Effort(**one) for one in manifest["efforts"]], shape)
        else:
            engine = Approximate.read(path, manifest["kind"], shape)
    return IndexContents(
        parts=[vectors],
        rows=rows,
        live=live,
        level=manifest["level"],
        encoder=manifest["encoder"],
        frame=manifest["frame"],
        leads=None if manifest["leads"] is None else tuple(manifest["leads"]),
        kind=manifest["kind"],
        engine=engine,
        saved_as=manifest["sha256"],
    )


def _map_vectors(folder: Path, count: int, dim: int) -> NDArray[np.float32]:
    return np.memmap(folder / VECTORS, "<f4", mode="r", shape=(count, dim))


def _read_rows(path: Path, *, mapped: bool) -> pl.DataFrame:
    """The table of rows; memory-mapped, it takes memory only for what is read of it."""
    if not mapped:
        return pl.read_parquet(path)
    try:
        import pyarrow as pa
    except ImportError as error:
        raise SettingError(
            f"this index needs pyarrow, which is not installed; {with_extra('search')}"
        ) from error
    table = pl.from_arrow(pa.ipc.open_file(pa.memory_map(str(path))).read_all(), rechunk=False)
    assert isinstance(table, pl.DataFrame)
    return table


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _compare_vectors(path: Path, content: memoryview, parts: list[dict[str, Any]]) -> None:
    """Compare the vectors, part after part, as they were added; without parts, none."""
    start = 0 if parts else len(content)
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


def _append(path: Path, index: IndexContents, written: int) -> dict[str, Any]:
    """Write the vectors from `written` on; their size and hash."""
    total, size = xxhash.xxh3_128(), 0
    with path.open("r+b" if written else "wb") as file:
        file.truncate(written * index.dim * 4)
        file.seek(0, os.SEEK_END)
        for part in index.parts:
            for start in range(min(written, len(part)), len(part), _BLOCK):
                plain = np.ascontiguousarray(part[start : start + _BLOCK], "<f4")
                total.update(plain.data)
                size += file.write(plain.data)
            written = max(0, written - len(part))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return {"bytes": size, "xxh3": total.hexdigest()}


def _read_manifest(folder: Path) -> dict[str, Any]:
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
    if isinstance(version, int) and version > ON_DISK_FORMAT:
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
