"""Small files that would take gigabytes or hours to read, for tests."""

from __future__ import annotations

import io
import zipfile
import zlib
from functools import cache

GIB = 1 << 30
HEADER = b"r 1 500 5000\nr.dat 16 200/mV 16 0 0 0 0 II\n#Dx: 426783006\n"


@cache
def deflated_zeros(size: int, value: bytes = b"\0") -> bytes:
    """A raw deflate stream of so many bytes, made from one of 64 MiB, many times over."""
    step = 64 << 20
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    once = packer.compress(value * step) + packer.flush(zlib.Z_FULL_FLUSH)
    return once * (size // step) + b"\x03\x00"  # an empty last block


def zip_of(files: dict[str, bytes], bombs: dict[str, tuple[int, int]]) -> bytes:
    """A zip with honest files, and bombs by their true and their stated size."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        for name, (size, stated) in bombs.items():
            archive.writestr(name, deflated_zeros(size))
            info = archive.filelist[-1]
            info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, stated
    return held.getvalue()
