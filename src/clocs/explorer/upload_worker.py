"""The process that reads an upload: files packed on stdin, one recording packed on stdout.

It has limits on memory and time of its own, so that a file made to harm harms nothing but itself.
Names are labels here, never paths: they are cut to their last part and looked up in memory. (WFDB
records of rarer layouts go through a temporary folder, see `readers.wfdb`.)
"""

from __future__ import annotations

import io
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

import numpy as np

from clocs.errors import ClocsError, SourceError
from clocs.explorer.packing import pack, unpack
from clocs.formats.csv import read_csv
from clocs.formats.irhythm import read_ecg
from clocs.formats.source import hold_files
from clocs.formats.wfdb import read_wfdb
from clocs.recording import Recording

MOST_FILES = 64  # in a zip
MOST_BYTES = 64 << 20  # of all files, unpacked
MOST_MEMORY = 2 << 30  # of the process's address space
MOST_SECONDS = 20  # of the processor's time
MOST_SAMPLES = 16_000_000  # leads × samples: twelve leads for 45 minutes at 500 Hz
SHORTEST = 1.0  # seconds
RATES = (10.0, 10_000.0)  # Hz
_KNOWN = (".hea", ".dat", ".mat", ".csv", ".ecg", ".flac")


def read_upload(files: Mapping[str, bytes], rate: float | None = None) -> Recording:
    """The one recording in these files.

    Args:
        files: By name: a WFDB header with its signal files, a CSV, an `.ecg`, or a zip of those.
        rate: Of a CSV, in Hz, which does not say it itself; 500 by default.

    Raises:
        ClocsError: One sentence that says what is wrong with them.
    """
    found = _unpacked(files)
    headers = [name for name in found if name.lower().endswith(".hea")]
    singles = [name for name in found if name.lower().endswith((".csv", ".ecg"))]
    if len(headers) + len(singles) > 1:
        several = headers + singles
        raise SourceError(
            f"there are {len(several)} recordings ({', '.join(several)[:80]}); drop one at a time"
        )
    if headers:
        recording = read_wfdb(hold_files(found), headers[0])
    elif singles:
        name = singles[0]
        stem = PurePosixPath(name).stem
        if name.lower().endswith(".ecg"):
            recording = read_ecg(found[name], name=stem)
        else:
            recording = read_csv(found[name], name=stem, rate=rate or 500.0, rows=1)
    elif any(name.lower().endswith((".dat", ".mat")) for name in found):
        raise SourceError(
            "a WFDB signal file needs its header; drop the .hea file together with it"
        )
    else:
        raise SourceError(
            f"{', '.join(found)[:80] or 'nothing'} is no recording that can be read; drop a WFDB "
            "pair (.hea and .dat or .mat) or a zip of it, a .csv, or an .ecg"
        )
    return _checked(recording)


def _unpacked(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """All files by the last part of their names; the members of zips counted and sized first."""
    found: dict[str, bytes] = {}
    for name, data in files.items():
        zipped = data[:4] == b"PK\x03\x04" or name.lower().endswith(".zip")
        more = _members(name, data) if zipped else {_last(name): data}
        if twice := found.keys() & more.keys():
            raise SourceError(f"two files are called {min(twice)}; drop one recording at a time")
        found |= more
        if sum(map(len, found.values())) > MOST_BYTES:
            raise SourceError(
                f"the files hold more than {MOST_BYTES >> 20} MiB unpacked; drop one recording"
            )
    return found


def _members(name: str, data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = [i for i in archive.infolist() if not i.is_dir() and _is_wanted(i.filename)]
            if len(archive.infolist()) > 10 * MOST_FILES or len(infos) > MOST_FILES:
                raise SourceError(f"{_last(name)} holds too many files; zip one recording")
            if sum(info.file_size for info in infos) > MOST_BYTES:
                raise SourceError(
                    f"{_last(name)} unpacks to more than {MOST_BYTES >> 20} MiB; zip one recording"
                )
            found: dict[str, bytes] = {}
            for info in infos:
                if info.flag_bits & 1:
                    raise SourceError(f"{_last(name)} is encrypted; zip it without a password")
                with archive.open(info) as member:
                    content = member.read(info.file_size + 1)  # a size that lies stops here
                if len(content) != info.file_size or _last(info.filename) in found:
                    raise SourceError(f"{_last(name)} is damaged, or holds two files of one name")
                found[_last(info.filename)] = content
            return found
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, OSError) as error:
        raise SourceError(f"{_last(name)} is no zip that can be read ({error})") from None
    except (NotImplementedError, RuntimeError, LookupError) as error:
        raise SourceError(f"{_last(name)} is packed in an unknown way ({error})") from None


def _is_wanted(name: str) -> bool:
    last = _last(name)
    junk = last.startswith(".") or "__MACOSX" in name
    return not junk and last.lower().endswith(_KNOWN)


def _last(name: str) -> str:
    last = PurePosixPath(name.replace("\\", "/")).name
    return "".join(c for c in last if c.isprintable())[-100:] or "file"


def _checked(recording: Recording) -> Recording:
    name = recording.id
    if not recording.samples or recording.digital.size > MOST_SAMPLES:
        raise SourceError(
            f"{name} holds {recording.digital.size:,} samples; send a shorter stretch"
        )
    if not RATES[0] <= recording.rate <= RATES[1]:
        raise SourceError(f"{name} has {recording.rate:g} samples a second; 10 to 10,000 are read")
    if recording.seconds < SHORTEST:
        raise SourceError(
            f"{name} lasts {recording.seconds:.2f} s; at least {SHORTEST:g} s are needed"
        )
    if not np.isfinite(recording.gain).all() or not (recording.gain != 0).all():
        raise SourceError(f"{name} has a gain of zero, so that its samples have no size")
    flat = [
        lead
        for lead, row in zip(recording.leads, recording.digital, strict=True)
        if row.min() == row.max()
    ]
    if len(flat) == len(recording.leads):
        raise SourceError(f"{name} is flat in every lead; check the recording")
    leads = tuple(lead[:24] for lead in recording.leads)
    return replace(recording, id=name[:60], leads=leads)


def packed(recording: Recording) -> bytes:
    """A recording as bytes; `unpacked` reads them."""
    facts = {
        "id": recording.id,
        "leads": recording.leads,
        "rate": recording.rate,
        "unit": recording.unit,
        "gain": recording.gain.tolist(),
        "baseline": recording.baseline.tolist(),
    }
    return pack(facts, {"digital": recording.digital})


def unpacked(data: bytes) -> Recording:
    """The recording that `packed` packed."""
    facts, arrays = unpack(data)
    return Recording(
        id=facts["id"],
        patient=facts["id"],
        leads=tuple(facts["leads"]),
        rate=facts["rate"],
        digital=np.asarray(arrays["digital"], np.int16),
        gain=np.array(facts["gain"], np.float64),
        baseline=np.array(facts["baseline"], np.int32),
        unit=facts["unit"],
    )


def _limit() -> None:
    """Bound this process, where the system knows how."""
    try:
        import resource
    except ImportError:  # Windows: the parent's clock is the limit
        return
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Read stdin, write stdout: a recording, or `{"error": …}`."""
    _limit()
    facts, arrays = unpack(sys.stdin.buffer.read())
    files = {name: arrays[key].tobytes() for key, name in facts["names"].items()}
    try:
        answer = packed(read_upload(files, facts["rate"]))
    except ClocsError as error:
        answer = pack({"error": str(error)}, {})
    except MemoryError:
        answer = pack({"error": "the files need too much memory to read"}, {})
    except Exception as error:  # a stranger's file: whatever it sets off is the file's fault
        answer = pack({"error": f"the files cannot be read ({type(error).__name__})"}, {})
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()
