"""A flat int16 array on disk, chunk by chunk, in the zarr v3 layout.

Any zarr 3 library opens the folder as an array. Chunks are nevertheless written and read here one
file at a time: zarr's own path cannot say when a chunk is written, which resuming needs, and
takes half as long again for each, besides a quarter of a second to import.

LZ4 on shuffled bytes compresses 12-lead ECGs 1.75× at about 900 MB/s per core; Zstandard on
shuffled bits gives 2.2× at about 220 MB/s and would dominate the preparing of a dataset.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from numcodecs import blosc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from clocs.files import file_error, write_atomic
from clocs.store.manifest import damaged

CHUNK_SAMPLES = 1 << 20  # 2 MiB
CHUNKS_PER_PART = 16  # between two commits: an interruption costs at most 32 MiB of samples

_COMPRESSOR, _LEVEL = b"lz4", 1  # as in zarr.json, beside this file


def decompress(encoded: bytes, samples: int) -> NDArray[np.int16]:
    """The samples in a chunk's file; ValueError where the bytes cannot be a chunk of that size."""
    # Its own two sizes first, before that much memory is asked for.
    size, compressed = (int.from_bytes(encoded[at : at + 4], "little") for at in (4, 12))
    if size != 2 * samples or compressed != len(encoded):
        raise ValueError(f"it does not hold {2 * samples} bytes")
    try:
        decoded: bytes = blosc.decompress(encoded)
    except (RuntimeError, ValueError) as error:
        raise ValueError("it is not a compressed chunk") from error
    return np.frombuffer(decoded, dtype="<i2")


def write_header(folder: Path, *, samples: int, chunk: int) -> None:
    """Write the array's metadata, once its length is known."""
    header = json.loads((files("clocs.store") / "zarr.json").read_bytes())
    header["shape"] = [samples]
    header["chunk_grid"]["configuration"]["chunk_shape"] = [chunk]
    write_atomic(folder / "zarr.json", json.dumps(header, indent=2).encode())


def write_chunk(folder: Path, index: int, samples: NDArray[np.int16]) -> None:
    """Compress one whole chunk and write its file; compressing releases the GIL.

    Without waiting for the disk: a killed process loses nothing that it has written, and what a
    power cut loses, a store's sizes and digests show.
    """
    encoded = blosc.compress(samples, _COMPRESSOR, _LEVEL, blosc.SHUFFLE, 0, 2)
    (folder / "c" / str(index)).write_bytes(encoded)


def bytes_on_disk(folder: Path, chunks: int) -> int:
    """The size of all chunks together; FileNotFoundError where one is missing."""
    return sum((folder / "c" / str(index)).stat().st_size for index in range(chunks))


class SampleReader:
    """Reads stretches of arrays that follow one another; consecutive ones decode a chunk once.

    Args:
        arrays: Of each its first sample among all, its folder, and its samples per chunk.
    """

    def __init__(self, arrays: Sequence[tuple[int, Path, int]]) -> None:
        self._arrays = arrays
        self._starts = [first for first, _, _ in arrays]
        self._path, self._decoded = Path(), np.zeros(0, dtype=np.int16)

    def read(self, start: int, stop: int) -> NDArray[np.int16]:
        """(stop - start,) a fresh, writeable array; the stretch lies in one of the arrays."""
        origin, folder, size = self._arrays[bisect_right(self._starts, start) - 1]
        out = np.empty(stop - start, dtype=np.int16)
        for index in range((start - origin) // size, -((origin - stop) // size)):
            first = origin + index * size
            low, high = max(start, first), min(stop, first + size)
            chunk = self._load(folder / "c" / str(index), size)
            out[low - start : high - start] = chunk[low - first : high - first]
        return out

    def _load(self, path: Path, size: int) -> NDArray[np.int16]:
        if path != self._path:
            try:
                self._decoded = decompress(path.read_bytes(), size)
            except PermissionError as error:
                raise file_error(error, path, doing="read") from error
            except (OSError, ValueError) as error:
                raise damaged(path, str(error), path.parents[2]) from error
            self._path = path
        return self._decoded
