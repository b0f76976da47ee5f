"""Chapman–Shaoxing (Zheng et al. 2020): 12 leads, 500 Hz, 10 s, four rhythm groups.

Reads the published `ECGDataDenoised` tables with `Diagnostics.xlsx`, and WFDB records whose
headers hold `#Rhythm:`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from clocs.datasets import base, table_files
from clocs.datasets.base import DatasetRow, Entry, Listing, PublishedDataset
from clocs.datasets.label_names import label_name
from clocs.errors import SourceError, UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.source import Source, stem
from clocs.formats.text_table import read_table
from clocs.formats.wfdb import read_wfdb, refuse_missing
from clocs.recording import STANDARD_LEADS, FrameSpec, Recording, check_signal

TABLE = "Diagnostics.xlsx"
_STATED = ReadOptions(rate=500.0, unit="µV")  # by the publication; the tables hold numbers alone
_ROWS = 5000  # 10 s
GROUPS = {  # of published rhythms, and what `label_names` calls these
    "AFIB": {"AFIB": "AF", "AF": "AFL"},
    "GSVT": {one: one for one in ("SVT", "SAAWR", "AVNRT", "AVRT")}
    | {"AT": "ATach", "ST": "STach"},
    "SB": {"SB": "SB"},
    "SR": {"SR": "NSR", "SA": "SA", "SI": "SA"},
}
_GROUP_OF = {rhythm: group for group, rhythms in GROUPS.items() for rhythm in rhythms}
RHYTHMS = {own: label_name(one).name for each in GROUPS.values() for own, one in each.items()}
_COLUMNS = {"Rhythm": "rhythm", "Beat": "beat", "PatientAge": "age", "Gender": "sex"}
_NOT_RECORDINGS = {"diagnostics", "rhythmnames", "conditionnames", "attributesdictionary"}


@dataclass(frozen=True, eq=False)
class Chapman(PublishedDataset):
    """The dataset in a source."""

    name = "chapman"
    labels = tuple(GROUPS)
    frame = FrameSpec(10.0, 2500)
    segment_frame = FrameSpec(5.0, 2500)

    def list(self) -> Listing:
        tables = base.label_tables(self.source, TABLE)
        rows = _rows(tables, self.source)
        entries, lost = base.wfdb_entries(self.source, rows)
        texts = _texts(self.source)
        entries += [Entry(n, n, path, rows.get(n, {})) for path in texts if (n := stem(path))]
        self.require(len(entries), "ECGDataDenoised/*.csv or *.hea with #Rhythm")
        if texts and not tables:
            raise SourceError(
                f"{self.source.path} holds recordings but no {TABLE}, which has their labels; "
                f"put {TABLE} into the folder (beside the zip, if you give a zip)"
            )
        fingerprint = base.fingerprint_of(self.source, tables)
        return base.complete_listing(entries, lost, rows=rows, fingerprint=fingerprint)

    def read(self, entry: Entry) -> Recording:
        if entry.path.lower().endswith(".csv"):
            recording = read_table(self.source.read(entry.path), name=entry.id, options=_STATED)
            if recording.samples < _ROWS:
                detail = f"{entry.id} has {recording.samples} of {_ROWS} rows"
                raise UnusableError("truncated", detail)
        else:
            recording = read_wfdb(self.source, entry.path)
        refuse_missing(recording)
        check_signal(recording, frame=self.frame, known_leads=STANDARD_LEADS)
        extra = base.header_extra(recording)
        extra.pop("notice", None)  # about what the publication states
        label = _label(entry, header=extra.get("rhythm", ""))
        for key in ("rhythm", "beat"):
            if entry.info.get(key):
                extra[key] = entry.info[key]
        return replace(
            recording,
            labels=(label,),
            age=base.parse_age(entry.info.get("age", recording.extra.get("Age"))),
            sex=base.parse_sex(entry.info.get("sex", recording.extra.get("Sex"))),
            extra=extra,
            recorded_at=_recorded_at(entry.id) or recording.recorded_at,
        )


def _recorded_at(name: str) -> str | None:
    """The device names its files by date and time: 'MUSE_20180111_155115_19000'."""
    if not name.startswith("MUSE_") or name[13:14] != "_":
        return None
    try:  # `strptime` would take a tenth of the time of reading a recording
        return datetime.fromisoformat(f"{name[5:13]}T{name[14:20]}").isoformat()
    except ValueError:
        return None


def _texts(source: Source) -> list[str]:
    """CSV recordings; where there are raw and denoised ones, the denoised."""
    texts = [
        path
        for path in base.with_suffix(source, ".csv")
        if stem(path).lower() not in _NOT_RECORDINGS and not stem(path).startswith("REFERENCE")
    ]
    denoised = [path for path in texts if "denoised" in path.lower()]
    return denoised or texts


def _label(entry: Entry, *, header: str) -> str:
    """The rhythm group, on which the table and the header must agree where both give one."""
    named = {TABLE: entry.info.get("rhythm", ""), "the header": header}
    named = {where: rhythm for where, rhythm in named.items() if rhythm}
    if not named:
        detail = f"{entry.id} has no row in {TABLE} and no #Rhythm in a header"
        raise UnusableError("no label", detail)
    given = " and ".join(f"{rhythm!r} in {where}" for where, rhythm in named.items())
    groups = {_GROUP_OF.get(rhythm.upper(), "") for rhythm in named.values()}
    if len(groups) > 1 or "" in groups:
        raise UnusableError("unknown label", f"the rhythm of {entry.id} is {given}")
    return groups.pop()


def _rows(tables: list[bytes], source: Source) -> dict[str, dict[str, str]]:
    """Rows of the published tables by file name; where rhythms differ, two of them are kept."""
    rows: dict[str, dict[str, str]] = {}
    unclear: set[str] = set()
    for table in tables:
        try:
            columns = table_files.read_table(table, name=TABLE)
            cells = zip(*(columns[one] for one in ("FileName", *_COLUMNS)), strict=True)
        except (SourceError, KeyError) as error:
            raise SourceError(
                f"{TABLE} of {source.path} is not the published table with the columns "
                f"{', '.join(('FileName', *_COLUMNS))} ({error}); download it again"
            ) from None
        for name, *values in cells:
            row = dict(zip(_COLUMNS.values(), values, strict=True))
            known = rows.setdefault(name.removesuffix(".csv"), row)
            if known["rhythm"] != row["rhythm"] and name not in unclear:
                unclear.add(name)
                known["rhythm"] += f" or {row['rhythm']}"
    rows.pop("", None)
    return rows


def _recognize(source: Source) -> bool:
    names = base.with_suffix(source, (".hea", ".csv"))
    return any(stem(name).startswith("MUSE_") for name in names) or any(
        "Rhythm" in header.fields for header in base.first_headers(source)
    )


CHAPMAN = DatasetRow("chapman", Chapman, _recognize)
