"""FLAC streams of 8 or 16 bits per sample, decoded in memory by libsndfile."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


class FlacError(ValueError):
    """The bytes are no FLAC stream of 8 or 16 bits, or a damaged one."""


@cache
def _stream_class() -> Any:
    """Soundfile's class without seeking; soundfile is imported where FLAC is read, not before."""
    import soundfile

    class Stream(soundfile.SoundFile):  # type: ignore[misc]
        def seekable(self) -> bool:
            """No: soundfile seeks after each read, and libsndfile then decodes a block again."""
            return False

    return Stream


def decode_flac(data: bytes, *, channels: int, most: int) -> tuple[NDArray[np.int16], bool]:
    """(samples, channels) of at most `most` samples, and whether the stream is of 8 bits.

    Eight-bit values come in the upper half of each sample. Fewer samples than the stream promises
    may come back where it breaks off.
    """
    import soundfile

    held, bits = _stream_info(data)
    if held != channels or bits not in (8, 16):
        raise FlacError(f"it holds {held} channels of {bits} bits, not {channels} of 8 or 16")
    try:
        with _stream_class()(io.BytesIO(data)) as stream:
            # A damaged stream may promise any length, so `most` limits what is allocated.
            count = min(most, max(int(stream.frames), 0))
            samples: NDArray[np.int16] = stream.read(count, dtype="int16", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, MemoryError, ValueError) as error:
        raise FlacError(f"it is damaged ({error})") from None
    if samples.shape[1] != channels:
        raise FlacError(f"it changes to {samples.shape[1]} channels")
    return samples, bits == 8


def _stream_info(data: bytes) -> tuple[int, int]:
    """Channels and bits per sample, from the fixed fields at the start of every stream."""
    if data[:4] != b"fLaC" or len(data) < 42:
        raise FlacError("it is not a FLAC stream")
    packed = int.from_bytes(data[18:26], "big")  # rate 20, channels 3, bits 5, samples 36 bits
    return (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1
