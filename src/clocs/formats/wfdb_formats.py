"""Sample formats of WFDB signal files: bytes to integers, as the published format says.

Each equals what the wfdb package gives, sample by sample, also from the middle of a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int16] | NDArray[np.int32]

FLAC_BITS: Final = {"508": (8,), "516": (8, 16), "524": (8, 16, 24)}
# What a missing sample is, in each format.
MISSING: Final[dict[str, int]] = {
    **dict.fromkeys(("80", "508"), -128),
    **dict.fromkeys(("310", "311"), -512),
    "212": -2048,
    **dict.fromkeys(("16", "61", "160", "516"), -32768),
    **dict.fromkeys(("24", "524"), -8388608),
    "32": -2147483648,
}
# Bytes that the first 0, 1, 2 … samples of a group take; a whole group takes the last of them.
_BYTES: Final[dict[str, tuple[int, ...]]] = {
    "8": (0, 1),
    "80": (0, 1),
    "16": (0, 2),
    "61": (0, 2),
    "160": (0, 2),
    "24": (0, 3),
    "32": (0, 4),
    "212": (0, 2, 3),
    "310": (0, 2, 4, 4),
    "311": (0, 2, 3, 4),
}
FORMATS: Final = frozenset({*_BYTES, *FLAC_BITS})


def bytes_of(form: str, samples: int) -> int:
    """Bytes that so many samples take in a format that is not packed."""
    sizes = _BYTES[form]
    groups, rest = divmod(samples, len(sizes) - 1)
    return groups * sizes[-1] + sizes[rest]


def samples_in(form: str, size: int) -> int:
    """Whole samples in so many bytes of a format that is not packed."""
    sizes = _BYTES[form]
    groups, rest = divmod(size, sizes[-1])
    return groups * (len(sizes) - 1) + max(i for i, held in enumerate(sizes) if held <= rest)


def decode(form: str, piece: Callable[[int, int], bytes], start: int, count: int) -> Integers:
    """`count` samples of a signal file from sample `start` on, of all its signals in turn.

    Args:
        form: The format's number.
        piece: Bytes of the file from a place on, counted from its first sample.
        start: First sample.
        count: Samples; all of them must be in the file.
    """
    sizes = _BYTES[form]
    per_group = len(sizes) - 1
    first = start // per_group
    groups = -(-(start + count) // per_group) - first
    data = piece(first * sizes[-1], groups * sizes[-1])
    if len(data) < groups * sizes[-1]:
        data = data.ljust(groups * sizes[-1], b"\0")  # the file ends within a group
    skipped = start - first * per_group
    return _DECODERS[form](data)[skipped : skipped + count]


def _decode_8(data: bytes) -> NDArray[np.int16]:
    """Differences, still."""
    return np.frombuffer(data, np.int8).astype(np.int16)


def _decode_80(data: bytes) -> NDArray[np.int16]:
    return np.frombuffer(data, np.uint8).astype(np.int16) - np.int16(128)


def _decode_16(data: bytes) -> NDArray[np.int16]:
    return np.frombuffer(data, "<i2").astype(np.int16, copy=False)


def _decode_61(data: bytes) -> NDArray[np.int16]:
    return np.frombuffer(data, ">i2").astype(np.int16)


def _decode_160(data: bytes) -> NDArray[np.int16]:
    return (np.frombuffer(data, "<u2") ^ np.uint16(0x8000)).astype(np.uint16).view(np.int16)


def _decode_24(data: bytes) -> NDArray[np.int32]:
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return (wide.reshape(-1).view("<i4") >> 8).astype(np.int32, copy=False)


def _decode_32(data: bytes) -> NDArray[np.int32]:
    return np.frombuffer(data, "<i4").astype(np.int32, copy=False)


def _decode_212(data: bytes) -> NDArray[np.int16]:
    """Two samples of 12 bits in three bytes: the middle one holds the upper bits of both."""
    triple = np.frombuffer(data, np.uint8).reshape(-1, 3)
    samples = np.empty((len(triple), 2), np.int16)
    upper = triple[:, 1].astype(np.int16)
    samples[:, 0] = triple[:, 0]
    samples[:, 0] |= upper << 8
    samples[:, 1] = triple[:, 2]
    samples[:, 1] |= upper >> 4 << 8
    samples <<= 4  # the sign of 12 bits becomes that of 16
    samples >>= 4
    return samples.reshape(-1)


def _decode_310(data: bytes) -> NDArray[np.int16]:
    """Three samples of 10 bits in two words; the third is in the upper five bits of both."""
    words = np.frombuffer(data, "<u2").reshape(-1, 2)
    samples = np.empty((len(words), 3), np.uint16)
    samples[:, :2] = words >> 1 & 0x3FF
    samples[:, 2] = (words[:, 0] >> 11) | (words[:, 1] >> 11 << 5)
    return _signed_10(samples)


def _decode_311(data: bytes) -> NDArray[np.int16]:
    """Three samples of 10 bits in the lower bits of four bytes."""
    words = np.frombuffer(data, "<u4")
    samples = np.empty((len(words), 3), np.uint16)
    for i in range(3):
        samples[:, i] = words >> 10 * i & 0x3FF
    return _signed_10(samples)


def _signed_10(samples: NDArray[np.uint16]) -> NDArray[np.int16]:
    return (samples << 6).view(np.int16).reshape(-1) >> 6


_DECODERS: Final[dict[str, Callable[[bytes], Integers]]] = {
    "8": _decode_8,
    "80": _decode_80,
    "16": _decode_16,
    "61": _decode_61,
    "160": _decode_160,
    "24": _decode_24,
    "32": _decode_32,
    "212": _decode_212,
    "310": _decode_310,
    "311": _decode_311,
}
