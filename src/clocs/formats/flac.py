"""FLAC streams, as WFDB packs signals with: one channel per signal."""

from __future__ import annotations

import io
from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, UnusableError
from clocs.formats.source import Source
from clocs.limits import check_size

_HEAD = 42  # bytes of the stream's own description
_AT_ONCE = 1 << 20  # samples of all channels: libsndfile fails on blocks of more than 2**24


class _Stream(NamedTuple):
    channels: int
    bits: int
    samples: int  # of each channel, as the stream says; 0 where it does not


def decode_flac(
    data: bytes, *, channels: int, samples: int, bits: Collection[int], path: str
) -> NDArray[np.int16]:
    """(samples, channels) of a stream of 8 or 16 bits; fewer samples where the stream ends early.

    Args:
        data: The stream.
        channels: That it must have.
        samples: Of each channel, that are wanted.
        bits: Of a sample; others are refused.
        path: Of the header, for messages.

    Raises:
        UnusableError: unreadable or beyond the limits.
    """
    described = _described(data[:_HEAD], path)
    _check(described, channels, bits, path)
    check_size(2 * samples * channels, packed=len(data), name=path)
    return _read(io.BytesIO(data), described, 0, samples, path, one_way=True)  # type: ignore[return-value]


def read_flac(
    source: Source,
    name: str,
    *,
    channels: int,
    start: int,
    count: int,
    bits: Collection[int],
    path: str,
) -> NDArray[np.int16] | NDArray[np.int32]:
    """(count, channels) from sample `start` on, reading only what is needed for them.

    Args:
        source: Holds the file.
        name: Of the file in it.
        channels: That it must have.
        start: First sample.
        count: Of each channel.
        bits: Of a sample; others are refused.
        path: Of the header, for messages.

    Raises:
        UnusableError: unreadable or beyond the limits.
    """
    described = _described(source.head(name, _HEAD), path)
    _check(described, channels, bits, path)
    check_size(2 * count * channels, packed=source.size(name), name=path)
    pieces = _Pieces(source, name)
    try:
        decoded = _read(io.BufferedReader(pieces, 1 << 16), described, start, count, path)
    except UnusableError as error:
        raise pieces.error or error from None
    if pieces.error is not None:
        raise pieces.error
    return decoded


def flac_samples(source: Source, name: str, path: str) -> int:
    """Samples of each channel, as the stream says."""
    return _described(source.head(name, _HEAD), path).samples


def _described(head: bytes, path: str) -> _Stream:
    if head[:4] != b"fLaC" or len(head) < _HEAD:
        raise _unreadable(path, "is not a FLAC stream")
    packed = int.from_bytes(head[18:26], "big")  # rate 20, channels 3, bits 5, samples 36 bits
    return _Stream((packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1, packed & (1 << 36) - 1)


def _check(stream: _Stream, channels: int, bits: Collection[int], path: str) -> None:
    if stream.channels != channels or stream.bits not in bits:
        wanted = " or ".join(map(str, bits))
        found = f"{stream.channels} channels of {stream.bits} bits"
        raise _unreadable(path, f"holds {found}, not {channels} of {wanted}")


def _read(
    file: Any, described: _Stream, start: int, count: int, path: str, *, one_way: bool = False
) -> NDArray[np.int16] | NDArray[np.int32]:
    import soundfile

    kind = "int32" if described.bits == 24 else "int16"
    parts: list[NDArray[Any]] = []
    try:
        with (_one_way() if one_way else soundfile.SoundFile)(file) as stream:
            # A damaged stream may promise any length, so the header limits what is allocated.
            wanted = min(count, max(int(stream.frames) - start, 0))
            if start:
                stream.seek(start)
            step = max(_AT_ONCE // described.channels, 1)
            while wanted or not parts:
                part = stream.read(min(step, wanted), dtype=kind, always_2d=True)
                if part.shape[1] != described.channels:
                    raise _unreadable(path, f"changes to {part.shape[1]} channels")
                parts.append(part)
                wanted -= len(part)
                if not len(part):
                    break
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        raise _unreadable(path, f"is damaged ({error})") from None
    decoded = parts[0] if len(parts) == 1 else np.concatenate(parts)
    # Samples of 8 and 24 bits come shifted to the upper bits.
    return decoded if described.bits == 16 else decoded >> 8


def _unreadable(path: str, detail: str) -> UnusableError:
    return UnusableError("unreadable", f"the signals of {path}: it {detail}")


class _Pieces(io.RawIOBase):
    """A file of a source as libraries want it: read from any place.

    What goes wrong is kept as `error`: libsndfile calls this from C, where nothing can be raised.
    """

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name, self._at = source, name, 0
        self.error: ClocsError | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = (0, self._at, self._source.size(self._name))[whence]
        self._at = max(base + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._source.piece(self._name, self._at, len(buffer))
        except ClocsError as error:
            self.error, data = error, b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@cache
def _one_way() -> Any:
    """Soundfile's class without seeking; soundfile is imported where FLAC is read, not before."""
    import soundfile

    class Stream(soundfile.SoundFile):  # type: ignore[misc]
        def seekable(self) -> bool:
            """No: soundfile seeks after each read, and libsndfile then decodes a block again."""
            return False

    return Stream
