"""Checks of files that come from elsewhere: room on the disk, and zips that are whole."""

from __future__ import annotations

import shutil
import struct
import zipfile
import zlib
from pathlib import Path

from clocs.errors import FileError, UnusableError
from clocs.limits import check_size

_SPARE = 64 << 20  # bytes of the disk that are left to others
_BLOCK = 256 << 10
_PLAIN_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAX_UNPACKED = 1 << 40


def check_space(folder: Path, size: int) -> None:
    """Refuse to write more than the disk has room for.

    Raises:
        FileError: With both numbers.
    """
    free = shutil.disk_usage(folder).free - _SPARE
    if size > free:
        raise FileError(
            f"{folder} has room for {max(free, 0) / 1e9:,.2f} GB, and {size / 1e9:,.2f} GB are to "
            "be written; free some space, or give a folder on another disk as `out`"
        )


def zip_problem(path: Path) -> str:
    """What is wrong with a zip, all of whose members are compared with their checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            check_size(sum(i.file_size for i in infos), packed=path.stat().st_size, name="it",
                       most=_MAX_UNPACKED)  # fmt: skip
            if any(info.compress_type not in _PLAIN_METHODS for info in infos):
                return "it is packed in an unusual way"
            for info in infos:
                with archive.open(info) as member:
                    while member.read(_BLOCK):
                        pass
    except UnusableError as error:
        return error.detail
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, struct.error):
        return "it is no whole zip"
    return ""
