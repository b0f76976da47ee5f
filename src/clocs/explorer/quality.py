"""What was quarantined or left out of a store's recordings, and the parts that are to blame."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import polars as pl

from clocs.explorer.measured import measurements_of
from clocs.explorer.session import NotFoundError, Session, pseudonyms
from clocs.measurements.quality import READABLE, clipped_stretches
from clocs.recording import Gap, Recording, flat_stretches
from clocs.store.store import Store
from clocs.web.packing import packed_signal

SECONDS = 60.0  # drawn
MAX_LISTED = 200  # of each reason
DUPLICATE = "duplicate id"


class Quality:
    """What the tab shows, made when it is first asked for."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows: dict[str, tuple[Store, int]] = {}  # of listed recordings, by pseudonym

    @cached_property
    def datasets(self) -> list[dict[str, Any]]:
        """One entry per dataset."""
        return [self._of(name, store) for name, store in self._session.stores.items()]

    @cached_property
    def _patients(self) -> dict[tuple[Any, ...], str]:
        """Pseudonyms by dataset and ID."""
        everyone = self._session.embeddings.rows.select("dataset", "patient").iter_rows()
        return dict(zip(everyone, self._session.codes, strict=True))

    def _of(self, dataset: str, store: Store) -> dict[str, Any]:
        table, found, shown = store.table, self._in_store(store), self._session.show_ids
        listed: list[dict[str, Any]] = []
        counts: dict[str, int] = {}

        def add(reason: str, name: str, detail: str = "", patient: str | None = None) -> str:
            # another recording, perhaps in the store, has the ID of a duplicate
            own = f"{name}\n{detail}" if reason == DUPLICATE else name
            code = pseudonyms([(dataset, own)], self._session.key)[0]
            listed.append(
                {
                    "code": code,
                    "reason": reason,
                    "name": name if shown else f"Recording {code}",
                    "detail": detail if shown else "",
                    "patient": patient,
                }
            )
            return code

        for name, reason, detail in store.quarantine.iter_rows():
            counts[reason] = counts.get(reason, 0) + 1
            if counts[reason] <= MAX_LISTED:
                add(reason, name, detail)
        for reason, rows in found.items():
            for row in rows[:MAX_LISTED]:
                patient = self._patients.get((dataset, table["patient"][row]))
                self._rows[add(reason, table["id"][row], patient=patient)] = (store, row)
        held = {reason: len(rows) for reason, rows in found.items() if rows}
        return {
            "dataset": dataset,
            "recordings": len(store),
            "without_recording": len(store.rows_without_recording),
            "reasons": [
                {"reason": one, "count": count, "in_store": one in held}
                for one, count in (counts | held).items()
            ],
            # in an order that says nothing about IDs
            "recordings_listed": listed if shown else sorted(listed, key=lambda one: one["code"]),
        }

    def _in_store(self, store: Store) -> dict[str, list[int]]:
        """Rows of the store by what is the matter with them."""
        table = store.table.with_row_index("row")
        conditions = {
            "gap": pl.col("gaps").list.len() > 0,
            "short": pl.col("samples") / pl.col("rate") < store.manifest.frame.seconds,
            "copy": pl.col("row") != pl.col("row").min().over("digest"),
        }
        found = {reason: table.filter(own)["row"].to_list() for reason, own in conditions.items()}
        if (measured := measurements_of(store)) is not None:
            low = measured.with_row_index("row").filter(pl.col("quality") < READABLE)
            for reason, own in low.group_by("quality_reason", maintain_order=True):
                found[f"hard to read: {reason[0] or 'several'}"] = own["row"].to_list()
        return found

    def signal(self, code: str) -> bytes:
        """The start of a listed recording, with the parts that are to blame, packed."""
        _ = self.datasets
        if code not in self._rows:
            raise NotFoundError("the store holds no samples of this recording")
        store, row = self._rows[code]
        whole = store.recording(row)
        shown = whole.between(0, min(whole.samples, round(SECONDS * whole.rate)))
        return packed_signal(shown, 0, SECONDS, parts=parts_of(shown))


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


def _inside(one: Gap, others: set[Gap]) -> bool:
    return any(o.lead == one.lead and o.start <= one.start and one.stop <= o.stop for o in others)
