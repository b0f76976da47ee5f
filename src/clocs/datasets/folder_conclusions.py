"""What follows from the recordings of a folder once they are read: classes, the frame, notices."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clocs.datasets.folder_options import FolderOptions
from clocs.datasets.pseudonyms import PSEUDONYM
from clocs.errors import first_of
from clocs.recording import STANDARD_LEADS, FrameSpec

if TYPE_CHECKING:
    import polars as pl

SAMPLES = 2500
_SECONDS = (5.0, 2.5, 1.0)  # of a frame: the longest of which nearly all recordings hold two
_NEARLY_ALL = 0.9
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class Conclusions:
    """See `conclude`."""

    labels: tuple[str, ...]
    multilabel: bool
    frame: FrameSpec
    notices: tuple[str, ...]


def conclude(table: pl.DataFrame, options: FolderOptions, whose: Path | None = None) -> Conclusions:
    """Classes by frequency, a frame that fits the recordings' durations, and what to tell the user.

    Args:
        table: A store's table.
        options: What the user has said.
        whose: The folder that says whose pseudonyms there are.
    """
    counts, multilabel = _classes(table, options)
    labels = options.classes or tuple(sorted(counts, key=lambda one: (-counts[one], one)))
    frame, notices = _frame(table, options)
    unused = [one for one in labels if one not in counts]
    if unused:
        named = first_of(unused, _MAX_NAMED)
        notices.append(f"no recording has the label {named} of `classes`")
    notices += _patients(table, options, whose) + _leads(table) + _said_by_readers(table)
    return Conclusions(labels, multilabel, frame, tuple(notices))


def _classes(table: pl.DataFrame, options: FolderOptions) -> tuple[Counter[str], bool]:
    """How many recordings have each label, and whether one has several."""
    counts: Counter[str] = Counter()
    several = False
    for labels, episodes in table.select("labels", "episodes").iter_rows():
        counts.update({*labels, *(one["label"] for one in episodes)})
        used = [one for one in labels if options.classes is None or one in options.classes]
        several = several or len(used) > 1
    return counts, several


def _frame(table: pl.DataFrame, options: FolderOptions) -> tuple[FrameSpec, list[str]]:
    samples = options.frame_samples or SAMPLES
    if options.frame_seconds is not None:
        return FrameSpec(options.frame_seconds, samples), []
    seconds = table["samples"] / table["rate"]
    fits = [one for one in _SECONDS if (seconds >= 2 * one).sum() >= _NEARLY_ALL * len(seconds)]
    chosen = fits[0] if fits else _SECONDS[-1]
    short = int((seconds < chosen).sum())
    typical = float(np.median(seconds.to_numpy()))
    notice = (
        f"frames are {chosen:g} s as {samples:,} samples, because the median recording has "
        f"{typical:,.4g} s; `frame_seconds` changes it"
    )
    if short:
        notice += f"; {short:,} recordings are shorter and have no frame"
    return FrameSpec(chosen, samples), [notice]


def _patients(table: pl.DataFrame, options: FolderOptions, whose: Path | None) -> list[str]:
    import polars as pl

    if options.patient == "header":
        return [
            "`patient` is 'header': what the files' patient fields hold, which may be names, birth "
            "dates and numbers, is kept unchanged, in the store and in tables made from it"
        ]
    if options.patient is not None:
        return []
    named = table.filter(pl.col("patient").str.contains(PSEUDONYM))["patient"].n_unique()
    notices = []
    if named:
        notices.append(
            f"the headers of files name {named:,} patients, who have pseudonyms in the store; "
            f"{whose or 'a folder beside the store'} says whose they are, for you alone, and "
            '`patient="header"` keeps what the headers say'
        )
    own = table.select(
        (pl.col("patient") == pl.col("id").str.replace(r"@\d+:\d\d:\d\d$", "")).sum()
    )
    count = int(own.item())
    if not count:
        return notices
    return [
        *notices,
        f"no patient ID was found for {count:,} recordings, so each file counts as its own "
        "patient; if patients may have several recordings, say with `patient` whose they are, or "
        "the same person may be both trained and tested on",
    ]


def _leads(table: pl.DataFrame) -> list[str]:
    counts: Counter[str] = Counter()
    for leads in table["leads"].to_list():
        counts.update(leads)
    unknown = [lead for lead in counts if lead not in STANDARD_LEADS]
    if not unknown:
        return []
    named = first_of([f"{one} ({counts[one]:,})" for one in unknown], _MAX_NAMED)
    return [
        f"leads with unknown names keep them: {named}; `lead_names` maps them, such "
        f'as `lead_names="{unknown[0]}=II"`'
    ]


def _said_by_readers(table: pl.DataFrame) -> list[str]:
    """What readers guessed, each sentence once."""
    said: Counter[str] = Counter()
    for text in table["extra"]:
        if '"notice"' in text:
            said[str(json.loads(text).get("notice", ""))] += 1
    del said[""]
    most = said.most_common(_MAX_NAMED)
    shown = [f"{text} ({count:,} recordings)" if count > 1 else text for text, count in most]
    more = said.total() - sum(count for _, count in most)
    return [*shown, f"readers had to guess in {more:,} more recordings"] if more else shown
