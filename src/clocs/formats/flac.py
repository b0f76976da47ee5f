"""FLAC streams of 8 or 16 bits a sample, decoded in memory. Knows nothing about ECGs.

miniaudio's decoder takes two thirds of libsndfile's time; libsndfile serves for the unusual: a
stream that does not say how long it is, or is longer than what is asked for.
"""

from __future__ import annotations

import io
from typing import NamedTuple

import miniaudio
import numpy as np
from numpy.typing import NDArray


class FlacError(ValueError):
    """The bytes are no FLAC stream of 8 or 16 bits, or a damaged one."""


class _StreamInfo(NamedTuple):
    channels: int
    bits: int
    samples: int  # 0 where unknown


def decode_flac(data: bytes, *, channels: int, most: int) -> tuple[NDArray[np.int16], bool]:
    """(samples, channels) of at most `most` samples, and whether the stream is of 8 bits.

    Eight-bit values come in the upper half of each sample. Fewer samples than the stream promises
    may come back where it breaks off.
    """
    info = _stream_info(data)
    if info.channels != channels or info.bits not in (8, 16):
        raise FlacError(
            f"it holds {info.channels} channels of {info.bits} bits, not {channels} of 8 or 16"
        )
    # A damaged stream may promise any length: nothing is allocated by its word alone.
    decode = _by_miniaudio if 0 < info.samples <= most else _by_soundfile
    return decode(data, channels, most), info.bits == 8


def _stream_info(data: bytes) -> _StreamInfo:
    """The fixed fields that every stream begins with."""
    if data[:4] != b"fLaC" or len(data) < 42:
        raise FlacError("it is not a FLAC stream")
    packed = int.from_bytes(data[18:26], "big")  # rate 20, channels 3, bits 5, samples 36 bits
    return _StreamInfo(
        channels=(packed >> 41 & 7) + 1,
        bits=(packed >> 36 & 31) + 1,
        samples=packed & ((1 << 36) - 1),
    )


def _by_miniaudio(data: bytes, channels: int, most: int) -> NDArray[np.int16]:
    try:
        decoded = miniaudio.flac_read_s16(data)
    except miniaudio.MiniaudioError as error:
        raise FlacError(f"it is damaged ({error})") from None
    if decoded.nchannels != channels:
        raise FlacError(f"it changes to {decoded.nchannels} channels")
    return np.frombuffer(decoded.samples, np.int16).reshape(-1, channels)


def _by_soundfile(data: bytes, channels: int, most: int) -> NDArray[np.int16]:
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as stream:
            count = min(most, max(int(stream.frames), 0))
            samples: NDArray[np.int16] = stream.read(count, dtype="int16", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, MemoryError, ValueError) as error:
        raise FlacError(f"it is damaged ({error})") from None
    if samples.shape[1] != channels:
        raise FlacError(f"it changes to {samples.shape[1]} channels")
    return samples
