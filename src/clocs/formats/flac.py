"""FLAC streams, as WFDB packs signals with: one channel per signal."""

from __future__ import annotations

import io
from collections.abc import Collection
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.limits import check_size


def decode_flac(
    data: bytes, *, signals: int, samples: int, bits: Collection[int], path: str
) -> NDArray[np.int16]:
    """(samples, signals) of a stream of 8 or 16 bits; fewer samples where the stream ends early.

    Args:
        data: The stream.
        signals: Channels that it must have.
        samples: Of each, that are wanted.
        bits: Of a sample; others are refused.
        path: Of the header, for messages.

    Raises:
        UnusableError: unreadable or beyond the limits.
    """
    import soundfile

    def unreadable(detail: str) -> UnusableError:
        return UnusableError("unreadable", f"the signals of {path}: it {detail}")

    if data[:4] != b"fLaC" or len(data) < 42:
        raise unreadable("is not a FLAC stream")
    packed = int.from_bytes(data[18:26], "big")  # rate 20, channels 3, bits 5, samples 36 bits
    held, depth = (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1
    if held != signals or depth not in bits:
        wanted = " or ".join(map(str, bits))
        raise unreadable(f"holds {held} channels of {depth} bits, not {signals} of {wanted}")
    check_size(2 * samples * signals, packed=len(data), name=path)
    try:
        with _flac_stream()(io.BytesIO(data)) as stream:
            # A damaged stream may promise any length, so the header limits what is allocated.
            count = min(samples, max(int(stream.frames), 0))
            decoded: NDArray[np.int16] = stream.read(count, dtype="int16", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        raise unreadable(f"is damaged ({error})") from None
    if decoded.shape[1] != signals:
        raise unreadable(f"changes to {decoded.shape[1]} channels")
    return decoded >> 8 if depth == 8 else decoded


@cache
def _flac_stream() -> Any:
    """Soundfile's class without seeking; soundfile is imported where FLAC is read, not before."""
    import soundfile

    class Stream(soundfile.SoundFile):  # type: ignore[misc]
        def seekable(self) -> bool:
            """No: soundfile seeks after each read, and libsndfile then decodes a block again."""
            return False

    return Stream
