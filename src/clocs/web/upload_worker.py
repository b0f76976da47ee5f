"""The process that reads bodies of requests: one after another on stdin, recordings on stdout.

It limits its own memory and time, so that a malicious file harms nothing else. File names are never
used as paths: they are cut to their last part and looked up in memory.

A request is two lengths, facts in JSON and the body; an answer is its length, whether the process
goes on, and packed recordings.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from clocs.errors import ClocsError, SourceError, UnknownRateError
from clocs.formats.base import HEAD_BYTES, FileFormat, ReadOptions
from clocs.formats.read import FORMATS, format_beside, format_of, options_of, recordings_in
from clocs.formats.source import Source, hold_files, stem
from clocs.limits import end_after, keep_memory, limit_process
from clocs.recording import Gap, Recording, notes_of
from clocs.web.packing import pack, unpack
from clocs.web.upload_form import MAX_FILES, read_form
from clocs.web.upload_unit import GivenUnit, UnitQuestionError, in_given_unit

MAX_BYTES = 64 << 20  # of all files, uncompressed
MAX_MEMORY = 2 << 30  # bytes
MAX_SECONDS = 20  # of processor time
MAX_SAMPLES = 16_000_000  # leads × samples: twelve leads for 45 minutes at 500 Hz
SHORTEST = 1.0  # seconds
REQUEST = struct.Struct("<QQ")  # bytes of the facts and of the body
ANSWER = struct.Struct("<Q?")  # bytes of the answer, and whether the process goes on
_MAX_NOTICE = 300  # characters


@dataclass(frozen=True)
class Posted:
    """The recordings of a body, or why one cannot be used.

    Attributes:
        recordings: In order.
        several: Whether they were sent as a batch, which gets a list of results.
        names: Of a batch of files, the name of each recording.
    """

    recordings: Sequence[Recording | ClocsError]
    several: bool = False
    names: Sequence[str] = ()


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
    ((_, read),) = _recordings(_unpacked(files), options_of(rate=rate))
    return _read(read, unit or GivenUnit())


def read_posted(body: bytes, kind: str, *, most: int = 1) -> Posted:
    """The recordings in a form of at most `most` of them; `kind` is its content type."""
    sent = read_form(body, kind, most_files=max(MAX_FILES, 2 * most))
    options = options_of(rate=sent.rate)
    found = list(_recordings(_unpacked(sent.files), options, most=most))
    if len(found) == 1:
        return Posted([_read(found[0][1], sent.unit)])
    made = [_read_or_why(read, sent.unit) for _, read in found]
    return Posted(made, several=True, names=[name for name, _ in found])


def read_arrays(data: bytes, options: ReadOptions, *, most: int) -> Posted:
    """The recordings in the bytes of an `.npz` file."""
    found = list(_recordings({"arrays.npz": data}, options, most=most))
    made = [_read_or_why(read, GivenUnit(options.unit)) for _, read in found]
    return Posted(made, several=len(made) > 1)


def _recordings(
    found: Mapping[str, bytes], options: ReadOptions, *, most: int = 1
) -> Iterator[tuple[str, Callable[[str | None], Recording]]]:
    """The name of each recording in these files, and what reads it for a unit."""
    source = hold_files(found)
    recordings = [
        (name, own, part.name)
        for name, own in recordings_in(source)
        for part in own.parts_of(source, name, options)
    ]
    if len(recordings) > most:
        names = ", ".join(name for name, _, _ in recordings)[:80]
        few = "one at a time" if most == 1 else f"at most {most} at once"
        raise SourceError(f"found {len(recordings)} recordings ({names}); upload {few}")
    if recordings:
        for name, own, part in recordings:
            read = partial(_read_as, own, source, name, replace(options, part=part))
            yield f"{stem(name)} {part}".rstrip(), read
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


def _read(read: Callable[[str | None], Recording], unit: GivenUnit) -> Recording:
    return _checked(in_given_unit(read, unit))


def _read_or_why(
    read: Callable[[str | None], Recording], unit: GivenUnit
) -> Recording | ClocsError:
    try:
        return _read(read, unit)
    except ClocsError as error:
        return error


def _read_as(
    own: FileFormat, source: Source, name: str, options: ReadOptions, unit: str | None
) -> Recording:
    return own.read(source, name, replace(options, unit=unit))


def _unpacked(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """All files by the last part of their names, including the members of zip files."""
    found: dict[str, bytes] = {}
    for name, data in files.items():
        zipped = data[:4] == b"PK\x03\x04" or name.lower().endswith(".zip")
        zipped &= format_of(name, data[:HEAD_BYTES]) is None  # .npz is a zip, too
        more = _members(name, data) if zipped else {_last(name): data}
        if twice := found.keys() & more.keys():
            raise SourceError(f"two files are called {min(twice)}; upload one recording at a time")
        found |= more
        if sum(map(len, found.values())) > MAX_BYTES:
            raise SourceError(
                f"the files exceed {MAX_BYTES >> 20} MiB uncompressed; upload one recording"
            )
    return found


def _members(name: str, data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = [i for i in archive.infolist() if not i.is_dir() and _is_wanted(i.filename)]
            if len(archive.infolist()) > 10 * MAX_FILES or len(infos) > MAX_FILES:
                raise SourceError(f"{_last(name)} contains too many files; zip one recording")
            if sum(info.file_size for info in infos) > MAX_BYTES:
                raise SourceError(
                    f"{_last(name)} exceeds {MAX_BYTES >> 20} MiB uncompressed; zip one recording"
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
    if not recording.samples or digital.size > MAX_SAMPLES:
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


def pack_posted(posted: Posted) -> bytes:
    """For `unpack_posted`."""
    arrays = {
        str(at): one.digital
        for at, one in enumerate(posted.recordings)
        if isinstance(one, Recording)
    }
    listed = [
        _facts(one) if isinstance(one, Recording) else {"error": str(one)}
        for one in posted.recordings
    ]
    facts = {"several": posted.several, "names": posted.names, "recordings": listed}
    return pack(facts, arrays)


def _facts(recording: Recording) -> dict[str, Any]:
    return {
        "id": recording.id,
        "leads": recording.leads,
        "rate": recording.rate,
        "unit": recording.unit,
        "gain": recording.gain.tolist(),
        "baseline": recording.baseline.tolist(),
        "gaps": [asdict(gap) for gap in recording.gaps],
        "notice": "; ".join(notes_of(recording.extra))[:_MAX_NOTICE],
    }


def unpack_posted(data: bytes) -> Posted:
    """What was packed; ValueError, KeyError or TypeError if it was not.

    Raises:
        ClocsError: The body could not be read.
    """
    facts, arrays = unpack(data)
    if asked := facts.get("question"):
        raise UnitQuestionError(**asked)
    if detail := facts.get("no rate"):
        raise UnknownRateError("no rate", str(detail))
    if "error" in facts:
        raise SourceError(str(facts["error"]))
    recordings: list[Recording | ClocsError] = []
    for at, one in enumerate(facts["recordings"]):
        if "error" in one:
            recordings.append(SourceError(str(one["error"])))
            continue
        notice = {"notice": one["notice"]} if one["notice"] else {}
        recordings.append(
            Recording(
                id=one["id"],
                patient=one["id"],
                leads=tuple(one["leads"]),
                rate=one["rate"],
                digital=np.asarray(arrays[str(at)], np.int16),
                gain=np.array(one["gain"], np.float64),
                baseline=np.array(one["baseline"], np.int32),
                unit=one["unit"],
                gaps=tuple(Gap(**gap) for gap in one["gaps"]),
                extra=notice,
            )
        )
    return Posted(recordings, bool(facts["several"]), tuple(facts["names"]))


def read_one(facts: dict[str, Any], body: bytes) -> Posted:
    """The one recording in a form."""
    return read_posted(body, facts["type"])


def main() -> None:
    """Answer until stdin ends; the argument is `module:function`, which reads a body."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    module, _, name = sys.argv[1].partition(":")
    read = getattr(importlib.import_module(module), name)
    keep_memory()
    limit_process(MAX_MEMORY, os.getppid())
    sound = True
    while sound and (head := requests.read(REQUEST.size)):
        end_after(MAX_SECONDS)
        sound, answer = _answer(read, requests, *REQUEST.unpack(head))
        end_after(0)
        answers.write(ANSWER.pack(len(answer), sound))
        answers.write(answer)
        answers.flush()


def _answer(
    read: Callable[[dict[str, Any], bytes], Posted], requests: Any, facts: int, body: int
) -> tuple[bool, bytes]:
    """The answer, and whether this process can go on."""
    try:
        said = json.loads(requests.read(facts))
        return True, pack_posted(read(said, requests.read(body)))
    except UnitQuestionError as question:
        return True, pack({"error": str(question), "question": question.facts}, {})
    except UnknownRateError as question:
        return True, pack({"error": str(question), "no rate": question.detail}, {})
    except ClocsError as error:
        return True, pack({"error": str(error)}, {})
    except MemoryError:
        return False, pack({"error": "reading the files takes too much memory"}, {})
    except Exception as error:  # whatever a stranger's file causes is the file's fault
        return False, pack({"error": f"the files cannot be read ({type(error).__name__})"}, {})


if __name__ == "__main__":
    main()
