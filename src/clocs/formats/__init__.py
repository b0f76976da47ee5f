"""A file format each; `read` picks one by a file's suffix. Knows nothing about datasets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from clocs.errors import SourceError
from clocs.formats.csv import read_csv
from clocs.formats.irhythm import read_ecg
from clocs.formats.source import Source, open_files
from clocs.formats.wfdb import read_wfdb
from clocs.formats.wfdb_header import parse_header
from clocs.recording import Recording

__all__ = ["read", "read_csv", "read_ecg", "read_wfdb"]


def read(path: str | os.PathLike[str], leads: Sequence[str] | None = None) -> Recording:
    """Read one recording from a file.

    Args:
        path: A WFDB header (.hea) or its signal file (.mat, .dat) with the header beside it,
            a table (.csv), or an iRhythm file (.ecg).
        leads: Keep these, in this order.

    Raises:
        SourceError: The file is missing or of no known format.
        UnusableError: Its content cannot be used.
        SettingError: It has no such lead.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if not file.is_file():
        raise SourceError(f"{file} does not exist or is no file; give a recording's file")
    if suffix in (".hea", ".mat", ".dat"):
        header = file.with_suffix(".hea")
        if not header.is_file():
            raise SourceError(f"{file} has no header {header.name} beside it; put it there")
        return read_wfdb(beside(header), header.name, leads)
    if suffix not in (".csv", ".ecg"):
        raise SourceError(f"{file} is of no known format; known are .hea, .mat, .dat, .csv, .ecg")
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SourceError(f"{file} cannot be read ({error.strerror}); check its rights") from None
    decode = read_csv if suffix == ".csv" else read_ecg
    recording = decode(data, name=file.stem)
    return recording if leads is None else recording.select(leads)


def beside(header: Path) -> Source:
    """A header and the files it names; its whole folder only where segments name yet others."""
    parsed = parse_header(header.read_bytes(), name=header.name)
    if parsed.parts:
        return open_files(header.parent)
    files = {signal.file for signal in parsed.signals if "/" not in signal.file}
    return open_files(header.parent, {header.name, *files})
