"""`clocs.similar`: the patients or recordings of an index nearest to one of its own or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import polars as pl

from clocs.errors import SettingError
from clocs.formats.base import ReadOptions
from clocs.formats.read import options_of
from clocs.patients.embeddings import Embeddings
from clocs.patients.filters import Where
from clocs.patients.index import PatientIndex, expect_same_leads
from clocs.patients.index_folder import index_encoder, open_index


def similar(
    index: Path | str,
    *,
    patient: str | None = None,
    file: Path | str | None = None,
    k: int = 10,
    level: Literal["patient", "recording"] = "patient",
    where: Where | None = None,
    leads: Sequence[str] | None = None,
    rate: float | None = None,
    unit: str | None = None,
    lead_names: Mapping[str, str] | None = None,
) -> pl.DataFrame:
    """The most similar patients or recordings of an index, nearest first, without the query itself.

    Args:
        index: Folder made by `clocs index`.
        patient: The query: an ID in the index, or 'dataset:ID'.
        file: Or a recording's file, of any format, embedded by the index's own encoder.
        k: Number of neighbours.
        level: Whether to return patients or recordings.
        where: Which patients may be returned.
        leads: Leads of the file to use; the index's by default, and no others can be compared.
        rate: Sampling rate in Hz of a file that does not give it.
        unit: Unit of the samples of such a file, such as 'mV'; µV by default.
        lead_names: Leads of the file by its unusual names, such as ECG1=II,ch2=V5.
    """
    if (patient is None) == (file is None):
        raise SettingError("the query is a patient or a file; give one of `patient` and `file`")
    folder = Path(index)
    opened = open_index(folder, level)
    if where is not None:
        where.expect_known(opened.rows)
    if file is not None:
        options = options_of(rate=rate, unit=unit, lead_names=lead_names)
        query = _embedded(folder, opened, Path(file), leads, options)
        # If the index holds the same recording, its patients are the query and are not returned.
        # Published data hold some recordings twice, under two patients.
        known = opened.rows if level == "recording" else open_index(folder, "recording").rows
        own = opened.rows_of(known.filter(pl.col("digest") == query.rows["digest"][0]))
        passing = None if where is None else where.mask(opened.rows)
        allowed = ~own if passing is None else passing & ~own
        return opened.table(opened.search(query, k, where=allowed))
    prefix, colon, rest = str(patient).partition(":")
    dataset = prefix if colon and prefix in opened.rows["dataset"] else None
    name = str(patient) if dataset is None else rest
    try:
        return opened.similar(name, k, where=where, dataset=dataset)
    except SettingError:
        if level == "patient" and name in open_index(folder, "recording").rows["recording"]:
            raise SettingError(
                f"{name!r} is a recording; search among recordings with 'recording' as `level`"
            ) from None
        raise


def _embedded(
    folder: Path,
    index: PatientIndex,
    file: Path,
    leads: Sequence[str] | None,
    options: ReadOptions,
) -> Embeddings:
    """The recording of a file, by the encoder of an index."""
    from clocs.patients.embed_files import embed_recordings, read_files
    from clocs.patients.encode import frame_of, leads_of

    encoder = index_encoder(folder)
    frame = frame_of(encoder, index.frame)
    names, recordings = read_files([file], options, frame)
    if len(names) > 1:
        raise SettingError(f"{file} holds {len(names)} recordings; give the file of one")
    if leads is not None:
        expect_same_leads(str(folder), index.leads, leads_of(encoder, leads))
    embedded = embed_recordings(encoder, recordings, spec=frame, leads=leads or index.leads)
    if embedded.problems:
        reason = embedded.problems[0][1]
        raise SettingError(reason if str(file) in reason else f"{file} cannot be used: {reason}")
    if not len(embedded):
        raise SettingError(f"{file} gives only zero vectors, which have no neighbours")
    return embedded
