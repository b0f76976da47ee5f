"""What was quarantined or left out of a store's recordings, and the parts that are to blame."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from clocs.errors import SettingError
from clocs.explorer.pseudonyms import pseudonyms
from clocs.explorer.quarantined import SECONDS, NotDrawnError, QuarantinedFiles
from clocs.explorer.session import NotFoundError, Session
from clocs.recording import Gap, Recording
from clocs.store.flat import flat_stretches
from clocs.store.store import Store
from clocs.web.packing import pack

LOOKED_AT = 200  # recordings of a store, in which flat and clipped parts are looked for
MAX_LISTED = 200  # of each reason
DUPLICATE = "duplicate id"
CLIPPED = 0.06  # seconds at the largest or smallest value of a lead: no wave has so broad a top
WHY = {
    "truncated": "the file breaks off",
    "unreadable": "the file cannot be read",
    "nan": "there are no values, or hardly any",
    "no rate": "its file does not say its sampling rate",
    "implausible": "its rate, gain or amplitudes are those of no ECG",
    "exceeds limits": "it is larger than is read",
    "flat": "every lead is constant",
    "no known lead": "it has none of the leads that are known",
    "too short": "it is shorter than a frame",
    "no label": "it has no label",
    "unknown label": "its label is none of the dataset's",
    DUPLICATE: "another recording has the same ID",
    "gap": "a stretch of a lead has no values; frames that it touches are left out",
    "flat part": "a lead holds one value for a second or more",
    "clipped part": "a lead stays at its limit, as where an amplifier is saturated",
    "short": "it is shorter than a frame, so no embedding is made of it",
    "copy": "another recording has the same samples; copies are left out of test patients",
}


class Quality:
    """What the room shows, made when it is first asked for."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows: dict[str, tuple[Store, int]] = {}
        self._quarantined: dict[str, tuple[str, str, str, str]] = {}  # dataset, ID, reason, detail

    @cached_property
    def datasets(self) -> list[dict[str, Any]]:
        """One entry per dataset."""
        return [self._of(name, store) for name, store in self._session.stores.items()]

    @cached_property
    def _files(self) -> dict[str, QuarantinedFiles]:
        """Of the stores whose sources are known, by dataset."""
        return {name: QuarantinedFiles(at) for name, at in self._session.sources.items()}

    @cached_property
    def _patients(self) -> dict[tuple[Any, ...], str]:
        """Pseudonyms by dataset and ID."""
        everyone = self._session.embeddings.rows.select("dataset", "patient").iter_rows()
        return dict(zip(everyone, self._session.codes, strict=True))

    def _of(self, dataset: str, store: Store) -> dict[str, Any]:
        quarantine, table, found = store.quarantine, store.table, self._in_store(dataset, store)
        shown = self._session.show_ids
        listed: list[dict[str, Any]] = []
        counts: dict[str, int] = {}
        for name, reason, detail in quarantine.iter_rows():
            counts[reason] = counts.get(reason, 0) + 1
            if counts[reason] <= MAX_LISTED:
                # another recording, perhaps in the store, has the ID of a duplicate
                code = self._code(dataset, f"{name}\n{detail}" if reason == DUPLICATE else name)
                self._quarantined[code] = (dataset, name, reason, detail)
                listed.append(
                    {
                        "code": code,
                        "reason": reason,
                        "name": name if shown else f"Recording {code}",
                        "detail": detail if shown else WHY[reason],
                        "drawn": dataset in self._files,
                        "patient": None,
                    }
                )
        for reason, rows in found.items():
            for row in rows[:MAX_LISTED]:
                name, patient = table["id"][row], table["patient"][row]
                code = self._code(dataset, name)
                self._rows[code] = (store, row)
                listed.append(
                    {
                        "code": code,
                        "reason": reason,
                        "name": name if shown else f"Recording {code}",
                        "detail": WHY[reason],
                        "drawn": True,
                        "patient": self._patients.get((dataset, patient)),
                    }
                )
        reasons = [(reason, count, False) for reason, count in counts.items()]
        reasons += [(reason, len(rows), True) for reason, rows in found.items() if rows]
        return {
            "dataset": dataset,
            "recordings": len(store),
            "looked_at": min(LOOKED_AT, len(store)),
            "without_recording": len(store.rows_without_recording),
            "reasons": [
                {"reason": reason, "why": WHY[reason], "count": count, "in_store": held}
                for reason, count, held in reasons
            ],
            # in an order that says nothing about IDs
            "recordings_listed": listed if shown else sorted(listed, key=lambda one: one["code"]),
        }

    def _in_store(self, dataset: str, store: Store) -> dict[str, list[int]]:
        """Rows of the store by what is the matter with them."""
        table = store.table.with_row_index("row")
        frame = store.manifest.frame.seconds
        conditions = {
            "gap": pl.col("gaps").list.len() > 0,
            "short": pl.col("samples") / pl.col("rate") < frame,
            "copy": pl.col("row") != pl.col("row").min().over("digest"),
        }
        found = {
            reason: table.filter(condition)["row"].to_list()
            for reason, condition in conditions.items()
        }
        codes = pseudonyms([(dataset, name) for name in table["id"]], self._session.key)
        some = np.argsort(codes)[:LOOKED_AT].tolist()
        kinds: dict[str, list[int]] = {"flat part": [], "clipped part": []}
        for row in some:
            kept = {part["kind"] for part in parts_of(store.recording(row))}
            for kind, rows in kinds.items():
                if kind.removesuffix(" part") in kept:
                    rows.append(row)
        return found | kinds

    def _code(self, dataset: str, name: str) -> str:
        return str(pseudonyms([(dataset, name)], self._session.key)[0])

    def signal(self, code: str) -> bytes:
        """The start of a listed recording, with the parts that are to blame, packed."""
        _ = self.datasets
        recording, note = self._drawn(code)
        facts = {
            "leads": recording.leads,
            "rate": recording.rate,
            "unit": recording.unit,
            "seconds": recording.seconds,
            "gain": recording.gain.tolist(),
            "baseline": recording.baseline.tolist(),
            "parts": parts_of(recording),
            "note": note,
        }
        return pack(facts, {"digital": recording.digital})

    def _drawn(self, code: str) -> tuple[Recording, str]:
        """The start of a recording, and what is missing."""
        if code in self._rows:
            store, row = self._rows[code]
            whole = store.recording(row)
            return whole.between(0, min(whole.samples, round(SECONDS * whole.rate))), ""
        dataset, name, reason, detail = self._quarantined.get(code, ("", "", "", ""))
        if dataset not in self._files:
            raise NotFoundError("the store holds no samples of this recording")
        rates = self._session.stores[dataset].table["rate"].mode()
        try:
            drawn = self._files[dataset].read(name, detail=detail, rate=rates[0])
        except NotDrawnError as error:  # its details name files, which are IDs
            said = f"{error}{f' ({error.detail})' if error.detail else ''}"
            why = said if self._session.show_ids else f"{error}: {WHY[reason]}"
            raise SettingError(f"nothing of this recording can be drawn, because {why}") from None
        return drawn.recording, drawn.note


def parts_of(recording: Recording) -> list[dict[str, Any]]:
    """Gaps, flat and clipped parts: lead, kind, start and stop in seconds."""
    gaps = set(recording.gaps)
    flat = [one for one in flat_stretches(recording) if not _inside(one, gaps)]
    clipped = [one for one in clipped_stretches(recording) if not _inside(one, {*gaps, *flat})]
    return [
        {
            "lead": one.lead,
            "kind": kind,
            "start": one.start / recording.rate,
            "stop": one.stop / recording.rate,
        }
        for kind, stretches in (("gap", recording.gaps), ("flat", flat), ("clipped", clipped))
        for one in stretches
    ]


def clipped_stretches(recording: Recording) -> list[Gap]:
    """Where a lead stays at its largest or smallest value."""
    least, found = max(3, round(CLIPPED * recording.rate)), []
    for lead, values in zip(recording.leads, recording.digital, strict=True):
        low, high = values.min(), values.max()
        if low == high:
            continue
        for limit in (low, high):
            held = np.flatnonzero(np.diff(values == limit, prepend=False, append=False))
            for start, stop in held.reshape(-1, 2).tolist():
                if stop - start >= least:
                    found.append(Gap(start, stop, lead))
    return found


def _inside(one: Gap, others: set[Gap]) -> bool:
    return any(o.lead == one.lead and o.start <= one.start and one.stop <= o.stop for o in others)
