"""The process that reads an upload: files packed on stdin, one recording packed on stdout.

It limits its own memory and time, so that a malicious file harms nothing else. File names are never
used as paths: they are cut to their last part and looked up in memory.
"""

from __future__ import annotations

import io
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import PurePosixPath

import numpy as np

from clocs.errors import ClocsError, SourceError, UnknownRateError
from clocs.formats.base import FileFormat, ReadOptions
from clocs.formats.read import FORMATS, format_beside, options_of, recordings_in
from clocs.formats.source import Source, hold_files
from clocs.limits import end_after, limit_process
from clocs.recording import Gap, Recording, notes_of
from clocs.web.packing import pack, unpack
from clocs.web.upload_unit import GivenUnit, UnitQuestionError, in_given_unit

MOST_FILES = 64  # in a zip
MOST_BYTES = 64 << 20  # of all files, uncompressed
MOST_MEMORY = 2 << 30  # bytes
MOST_SECONDS = 20  # of processor time
MOST_SAMPLES = 16_000_000  # leads × samples: twelve leads for 45 minutes at 500 Hz
SHORTEST = 1.0  # seconds
_MOST_NOTICE = 300  # characters


def read_upload(
    files: Mapping[str, bytes], rate: float | None = None, unit: GivenUnit | None = None
) -> Recording:
    """The one recording in these files, or a ClocsError with a sentence for the visitor.

    Args:
        files: By name: those of one recording, in any format that clocs knows, or a zip of them.
        rate: Sampling rate in Hz of a file that does not give it.
        unit: What the visitor says about the unit of its numbers.

    Raises:
        UnitQuestionError: Its amplitudes are those of no ECG, and the visitor was not asked yet.
        UnknownRateError: Its rate is missing.
    """
    found = _unpacked(files)
    source, options = hold_files(found), options_of(rate=rate)
    recordings = [
        (name, own, part.name)
        for name, own in recordings_in(source)
        for part in own.parts_of(source, name, options)
    ]
    if len(recordings) > 1:
        names = ", ".join(name for name, _, _ in recordings)[:80]
        raise SourceError(f"found {len(recordings)} recordings ({names}); upload one at a time")
    if recordings:
        name, own, part = recordings[0]
        read = partial(_read_as, own, source, name, replace(options, part=part))
        recording = in_given_unit(read, unit or GivenUnit())
    elif incomplete := next(filter(None, map(format_beside, found)), None):
        raise SourceError(
            f"a {incomplete.name} signal file needs its header; upload the {incomplete.suffix} "
            "file together with it"
        )
    else:
        known = [
            f"{own.suffix} with {' or '.join(own.companions)}" if own.companions else own.suffix
            for own in FORMATS.values()
        ]
        raise SourceError(
            f"cannot read {', '.join(found)[:80] or 'an empty upload'} as a recording; upload one "
            f"of {', '.join(dict.fromkeys(known))}, or a zip of it"
        )
    return _checked(recording)


def _read_as(
    own: FileFormat, source: Source, name: str, options: ReadOptions, unit: str | None
) -> Recording:
    return own.read(source, name, replace(options, unit=unit))


def _unpacked(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """All files by the last part of their names, including the members of zip files."""
    found: dict[str, bytes] = {}
    for name, data in files.items():
        zipped = data[:4] == b"PK\x03\x04" or name.lower().endswith(".zip")
        more = _members(name, data) if zipped else {_last(name): data}
        if twice := found.keys() & more.keys():
            raise SourceError(f"two files are called {min(twice)}; upload one recording at a time")
        found |= more
        if sum(map(len, found.values())) > MOST_BYTES:
            raise SourceError(
                f"the files exceed {MOST_BYTES >> 20} MiB uncompressed; upload one recording"
            )
    return found


def _members(name: str, data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = [i for i in archive.infolist() if not i.is_dir() and _is_wanted(i.filename)]
            if len(archive.infolist()) > 10 * MOST_FILES or len(infos) > MOST_FILES:
                raise SourceError(f"{_last(name)} contains too many files; zip one recording")
            if sum(info.file_size for info in infos) > MOST_BYTES:
                raise SourceError(
                    f"{_last(name)} exceeds {MOST_BYTES >> 20} MiB uncompressed; zip one recording"
                )
            found: dict[str, bytes] = {}
            for info in infos:
                if info.flag_bits & 1:
                    raise SourceError(f"{_last(name)} is encrypted; zip it without a password")
                with archive.open(info) as member:
                    content = member.read(info.file_size + 1)  # no more than its stated size
                if len(content) != info.file_size or _last(info.filename) in found:
                    raise SourceError(
                        f"{_last(name)} is damaged, or has two files of the same name"
                    )
                found[_last(info.filename)] = content
            return found
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, OSError) as error:
        raise SourceError(f"{_last(name)} is not a readable zip file ({error})") from None
    except (NotImplementedError, RuntimeError, LookupError) as error:
        raise SourceError(
            f"{_last(name)} uses an unsupported kind of compression ({error})"
        ) from None


def _is_wanted(name: str) -> bool:
    last = _last(name)
    return not last.startswith(".") and "__MACOSX" not in name


def _last(name: str) -> str:
    last = PurePosixPath(name.replace("\\", "/")).name
    return "".join(c for c in last if c.isprintable())[-100:] or "file"


def _checked(recording: Recording) -> Recording:
    name, digital, problem = recording.id, recording.digital, ""
    if not recording.samples or digital.size > MOST_SAMPLES:
        problem = f"has {digital.size:,} samples; upload a shorter recording"
    elif recording.seconds < SHORTEST:
        problem = f"lasts {recording.seconds:.2f} s; at least {SHORTEST:g} s is needed"
    elif (digital == digital[:, :1]).all():
        problem = "is flat in every lead; check the recording"
    if problem:
        raise SourceError(f"{name} {problem}")
    short = {lead: lead[:24] for lead in recording.leads}
    gaps = tuple(replace(gap, lead=short[gap.lead]) for gap in recording.gaps)
    return replace(recording, id=name[:60], leads=tuple(short.values()), gaps=gaps)


def packed_recording(recording: Recording) -> bytes:
    facts = {
        "id": recording.id,
        "leads": recording.leads,
        "rate": recording.rate,
        "unit": recording.unit,
        "gain": recording.gain.tolist(),
        "baseline": recording.baseline.tolist(),
        "gaps": [asdict(gap) for gap in recording.gaps],
        "notice": "; ".join(notes_of(recording.extra))[:_MOST_NOTICE],
    }
    return pack(facts, {"digital": recording.digital})


def unpacked_recording(data: bytes) -> Recording:
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
        gaps=tuple(Gap(**gap) for gap in facts["gaps"]),
        extra={"notice": facts["notice"]} if facts["notice"] else {},
    )


def main() -> None:
    """Read stdin, write stdout: a recording, or `{"error": …}`."""
    limit_process(MOST_MEMORY, os.getppid())
    end_after(MOST_SECONDS)
    facts, arrays = unpack(sys.stdin.buffer.read())
    files = {name: arrays[key].tobytes() for key, name in facts["names"].items()}
    try:
        given = GivenUnit(**(facts["unit"] or {}))
        answer = packed_recording(read_upload(files, facts["rate"], given))
    except UnitQuestionError as question:
        answer = pack({"error": str(question), "question": question.facts}, {})
    except UnknownRateError as question:
        answer = pack({"error": str(question), "no rate": question.detail}, {})
    except ClocsError as error:
        answer = pack({"error": str(error)}, {})
    except MemoryError:
        answer = pack({"error": "reading the files takes too much memory"}, {})
    except Exception as error:  # whatever a stranger's file causes is the file's fault
        answer = pack({"error": f"the files cannot be read ({type(error).__name__})"}, {})
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()
