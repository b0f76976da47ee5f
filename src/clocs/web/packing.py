"""Packing: facts and arrays as one block of bytes, for the browser and between processes.

    4 bytes   length of the facts, little-endian
    facts     JSON; `arrays` lists name, dtype, shape and offset (from the end of the facts) of each
    arrays    little-endian, each at a multiple of eight bytes from the start

There is no pickle: unpacking bytes from a stranger yields wrong numbers at worst.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.recording import Recording

LONGEST = 600.0  # seconds of a signal at once
NO_VALUE = -32768  # in a gap; `static/packing.js` has nothing there


def pack(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """One block of bytes; `unpack` (and `static/packing.js`) restore everything."""
    listed, parts, offset = [], [], 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        listed.append(
            {"name": name, "dtype": array.dtype.name, "shape": array.shape, "offset": offset}
        )
        data += b"\0" * (-len(data) % 8)
        parts.append(data)
        offset += len(data)
    text = json.dumps(dict(facts) | {"arrays": listed}, ensure_ascii=False, allow_nan=False)
    head = text.encode()
    head += b" " * (-(len(head) + 4) % 8)
    return b"".join([len(head).to_bytes(4, "little"), head, *parts])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Facts and arrays; ValueError if the bytes were not made by `pack`."""
    size = 4 + int.from_bytes(data[:4], "little")
    if len(data) < size:
        raise ValueError("the bytes end within the facts")
    facts = json.loads(data[4:size])
    arrays = {}
    for listed in facts.pop("arrays"):
        arrays[listed["name"]] = np.frombuffer(
            data,
            np.dtype(listed["dtype"]).newbyteorder("<"),
            count=math.prod(listed["shape"]),
            offset=size + listed["offset"],
        ).reshape(listed["shape"])
    return facts, arrays


def packed_signal(recording: Recording, start: float, seconds: float, **more: Any) -> bytes:
    """Digital samples with gain and baseline, from which the page computes amplitudes, and more."""
    first = min(recording.samples, round(start * recording.rate))
    last = min(recording.samples, first + round(min(seconds, LONGEST) * recording.rate))
    facts = {
        "leads": recording.leads,
        "rate": recording.rate,
        "unit": recording.unit,
        "gain": recording.gain.tolist(),
        "baseline": recording.baseline.tolist(),
        "start": first / recording.rate,
        "seconds": recording.seconds,
    }
    digital = recording.digital[:, first:last].copy()
    for gap in recording.gaps:
        own = slice(max(gap.start - first, 0), max(gap.stop - first, 0))
        digital[recording.leads.index(gap.lead), own] = NO_VALUE
    return pack(facts | more, {"digital": digital})
