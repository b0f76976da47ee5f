"""Manifest: what a store says about itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from clocs.errors import StoreError
from clocs.files import file_error, sha256_of, write_atomic
from clocs.recording import FrameSpec
from clocs.sealed import own_hash, spelled_for_files, spelled_in_code

FORMAT = 3
JOINED = 4  # the format of a store in shards, each of which is a store of format 3
_READABLE = (FORMAT, JOINED)
MANIFEST = "manifest.json"
VECTORS = "vectors"  # a folder of a store: of `clocs.training.embed`
KEPT = "kept"  # and another: of `clocs.store.kept`


def shard_name(number: int, count: int) -> str:
    """The folder of one of `count` shards, from 0."""
    return f"shard-{number:04d}-of-{count:04d}"


def shards_in(folder: Path) -> list[tuple[Path, int]]:
    """The folders of shards, finished or not, and how many there should be."""
    found = []
    for path in sorted(folder.glob("shard-*")):
        if name := re.fullmatch(r"shard-\d{4,}-of-(\d{4,})", path.name):
            found.append((path, int(name[1])))
    return found


@lru_cache(maxsize=64)  # a patient's recordings are usually read one after the other
def shard_of(patient: str, count: int) -> int:
    """Which of `count` shards holds a patient: the first 8 bytes of sha256("shard:ID") modulo it.

    The hash is another than that of splits, so every shard has its share of each part.
    """
    key = hashlib.sha256(f"shard:{patient}".encode(errors="surrogatepass")).digest()[:8]
    return int.from_bytes(key, "big") % count


def rebuild_hint(folder: Path) -> str:
    """The remedy of damage; of a store in shards, only the damaged one is made again."""
    return f"delete {folder} and run `clocs prepare` again"


def damaged(path: Path, why: str, folder: Path | None = None) -> StoreError:
    """The error of a damaged file, and what to delete: its folder, or itself."""
    return StoreError(f"{path} is damaged ({why}); {rebuild_hint(folder or path)}")


@dataclass(frozen=True, slots=True)
class FileHash:
    """Size and sha256 of one file of the store."""

    bytes: int
    sha256: str

    @classmethod
    def from_file(cls, path: Path) -> FileHash:
        return cls(path.stat().st_size, sha256_of(path))


@dataclass(frozen=True, slots=True)
class ShardHash:
    """One shard of a store: a folder in the store's own, which is a store itself."""

    folder: str
    content_hash: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a store says about itself; written last, so that its presence means completeness.

    Attributes:
        source: The name of the folder or file that was read, without its place on the machine.
        settings: The dataset's options.
        fingerprint: Of the source as listed.
        labels: Class names in order.
        frame: Of evaluation and of one-frame views.
        segment_frame: Of views that are consecutive segments.
        batch_size: As in the paper for this dataset.
        quarantined: How many recordings could not be used.
        rows_without_recording: How many rows of label tables have no recording.
        samples: Length of the flat array of signals.
        chunk: Samples per chunk.
        signal_bytes: Of all chunks on disk.
        files: Size and hash of each other file.
        content_hash: Of all recordings: samples, labels and everything else in the table, in
            order; independent of how and by how many workers the store was made. That of a store in
            shards is the hash of theirs.
        clocs: The version that wrote the store.
        skip_flat: Whether frames that are flat in a lead are absent there; the table's column
            `flat` lists the stretches.
        keep_unlabeled: Whether frames outside of a recording's labeled episodes are kept, without
            a label: for pre-training.
        shards: Of a store in shards, in the order of its recordings; it has no files of its own.
        leads: Of a store in shards, in the order in which the source's listing has them.
        format: Of the store's layout.
    """

    dataset: str
    source: str
    settings: Mapping[str, str]
    fingerprint: str
    labels: tuple[str, ...]
    multilabel: bool
    frame: FrameSpec
    segment_frame: FrameSpec
    resample: Literal["recording", "frame"]
    batch_size: int
    recordings: int
    patients: int
    quarantined: int
    rows_without_recording: int
    samples: int
    chunk: int
    signal_bytes: int
    files: Mapping[str, FileHash]
    content_hash: str
    clocs: str
    skip_flat: bool = False
    keep_unlabeled: bool = False
    shards: tuple[ShardHash, ...] = ()
    leads: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def chunks(self) -> int:
        return -(-self.samples // self.chunk)

    def write(self, folder: Path) -> None:
        """Write the manifest, with a hash of itself, atomically."""
        fields = dataclasses.asdict(self)
        fields |= {name: getattr(self, name).to_dict() for name in ("frame", "segment_frame")}
        if not self.shards:
            del fields["shards"], fields["leads"]
        fields = spelled_for_files(fields)
        fields["sha256"] = own_hash(fields)
        write_atomic(folder / MANIFEST, json.dumps(fields, indent=2, ensure_ascii=False).encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check the manifest of a complete store."""
        path = folder / MANIFEST
        remedy = rebuild_hint(path if shards_in(folder) else folder)  # joining again is quick
        try:
            fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            version = fields["format"]
        except OSError as error:
            raise file_error(error, path, doing="read") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(f"{path} is damaged (it is no manifest); {remedy}") from error
        if version not in _READABLE and "dataset" in fields:  # and so a store
            raise StoreError(
                f"{folder} is a store of format {version}, but this version of clocs reads formats "
                f"{_READABLE[0]} to {_READABLE[-1]}; {remedy} with this version"
            )
        if fields.pop("sha256", None) != own_hash(fields):
            raise StoreError(f"{path} is damaged (it differs from its own hash); {remedy}")
        fields = spelled_in_code(fields)
        try:
            for name in ("frame", "segment_frame"):
                fields[name] = FrameSpec.from_dict(fields[name])
            fields["labels"] = tuple(fields["labels"])
            fields["files"] = {name: FileHash(**file) for name, file in fields["files"].items()}
            fields["shards"] = tuple(ShardHash(**one) for one in fields.get("shards", ()))
            fields["leads"] = tuple(fields.get("leads", ()))
            made = cls(**fields)
            _expect_types(made, *made.files.values(), *made.shards)
            if any(Path(one.folder).name != one.folder for one in made.shards):
                raise ValueError("a shard lies elsewhere")
            if bool(made.shards) != (made.format == JOINED):
                raise ValueError(f"{len(made.shards)} shards in format {made.format}")
            if made.chunk < 1 or made.samples < 0:
                raise ValueError(f"{made.samples} samples in chunks of {made.chunk}")
            return made
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StoreError(
                f"{path} is the manifest of something else; give a folder made by `clocs prepare`"
            ) from error


def _expect_types(*several: Manifest | FileHash | ShardHash) -> None:
    """TypeError where a field is not of its type: the fields come from a file."""
    for made in several:
        for field in dataclasses.fields(made):
            kind = {"str": str, "int": int, "bool": bool}.get(str(field.type), object)
            value = getattr(made, field.name)
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise TypeError(f"{field.name} is {value!r}")
