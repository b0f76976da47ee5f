"""Draws of results: what a paired test needs of each, kept small and apart from the scores.

A result's draws follow one plan (`clocs.evaluation.resampling`), so any two results on the same
patients can be compared later. Each vector is kept as 16-bit steps between its lowest and highest
value: 4 kB for 2,000 draws, exact to about 1e-5. While runs are made they lie in the ledger; a
report writes them to one file, `draws.safetensors`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clocs.errors import StoreError
from clocs.files import PUBLIC
from clocs.sealed import ArrayFile

FILE = "draws.safetensors"
_KIND = ArrayFile(
    "a file of draws", key="clocs", format=1, remedy="write it again with `clocs report`"
)
_HEAD = struct.Struct("<II")  # vectors, and values in each
_SCALE = struct.Struct("<dd")  # the lowest value, and one step
_NAN = 65535
_Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Draws:
    """(draws,) of one result: of its AUC, and of that of logits (the same where none is kept)."""

    auc: _Vector
    of_logits: _Vector | None = None

    @property
    def logits(self) -> _Vector:
        return self.auc if self.of_logits is None else self.of_logits

    def packed(self) -> bytes:
        """For a row of the ledger."""
        vectors = self._vectors()
        parts = [_HEAD.pack(len(vectors), len(self.auc))]
        for vector in vectors:
            scale, codes = _encode(vector)
            parts += [_SCALE.pack(*scale), codes.astype("<u2").tobytes()]
        return b"".join(parts)

    @classmethod
    def unpack(cls, content: bytes) -> Draws:
        """What `packed` gave."""
        count, size = _HEAD.unpack_from(content) if len(content) >= _HEAD.size else (0, 0)
        each = _SCALE.size + 2 * size
        if count not in (1, 2) or len(content) != _HEAD.size + count * each:
            raise StoreError("the draws of a run have an unknown form; run it again")
        vectors = []
        for start in range(_HEAD.size, len(content), each):
            codes = np.frombuffer(content, "<u2", size, start + _SCALE.size)
            vectors.append(_decode(_SCALE.unpack_from(content, start), codes))
        return cls(*vectors)

    def _vectors(self) -> list[_Vector]:
        return [self.auc] if self.of_logits is None else [self.auc, self.of_logits]


def write_draws(draws: Mapping[str, Draws], path: Path) -> None:
    """Write the draws of runs, by name; one row per vector."""
    rows = [(name, vector) for name, own in sorted(draws.items()) for vector in own._vectors()]
    encoded = [_encode(vector) for _, vector in rows]
    longest = max((len(codes) for _, codes in encoded), default=0)
    codes = np.full((len(rows), longest), _NAN, np.uint16)
    for row, (_, own) in zip(codes, encoded, strict=True):
        row[: len(own)] = own
    scale = np.array([scale for scale, _ in encoded], np.float64).reshape(-1, 2)
    facts = {"runs": [name for name, _ in rows]}
    _KIND.write(path, facts, {"codes": codes, "scale": scale}, mode=PUBLIC)


def read_draws(path: Path) -> dict[str, Draws]:
    """What `write_draws` wrote; nothing where there is no file."""
    if not path.is_file():
        return {}
    facts, arrays = _KIND.read(path)
    vectors: dict[str, list[_Vector]] = {}
    try:
        for name, scale, codes in zip(facts["runs"], arrays["scale"], arrays["codes"], strict=True):
            vectors.setdefault(name, []).append(_decode(scale, codes))
        return {name: Draws(*own) for name, own in vectors.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is not {_KIND.what} ({error!r}); {_KIND.remedy}") from error


def _encode(vector: _Vector) -> tuple[tuple[float, float], NDArray[np.uint16]]:
    """((lowest, step), codes); steps are powers of two, so that what was read is written alike."""
    known = vector[~np.isnan(vector)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    step = 2.0 ** math.ceil(math.log2((high - low) / (_NAN - 2))) if high > low else 2.0**-40
    low = math.floor(low / step) * step
    steps = np.rint((vector - low) / step)
    return (low, step), np.where(np.isnan(steps), _NAN, steps).astype(np.uint16)


def _decode(scale: tuple[float, float], codes: NDArray[np.uint16]) -> _Vector:
    low, step = (float(value) for value in scale)
    return np.where(codes == _NAN, np.nan, low + step * codes.astype(np.float64))
