"""The table of everything that clocs reads: to fuzz something new, add its samples and a row."""

from __future__ import annotations

import hashlib
import json
import pickle
import time
import warnings
from contextlib import closing
from dataclasses import asdict, replace
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from clocs import Frames, Recording
from clocs.datasets.base import datasets
from clocs.errors import SettingError, StoreError, UnusableError
from clocs.evaluation.result import Predictions
from clocs.experiments.ledger import open_ledger
from clocs.explorer import patient_map
from clocs.formats.base import HEAD_BYTES, ReadOptions
from clocs.formats.read import FORMATS, Found, find_recordings, format_of
from clocs.formats.source import hold_files, open_source
from clocs.formats.wfdb import read_annotations
from clocs.formats.wfdb_header import parse_header
from clocs.patients.build_index import index_encoder, open_index
from clocs.patients.embed import embed_recordings
from clocs.patients.embeddings import Embeddings
from clocs.pretraining.pretrain import STATE, pretrain_frames
from clocs.registry import chosen_options
from clocs.sealed import own_hash
from clocs.service import bodies
from clocs.store import chunks
from clocs.store.assembly import Job, assemble
from clocs.store.manifest import MANIFEST
from clocs.store.prepare import prepare
from clocs.store.readers import Readers
from clocs.store.store import Store, open_store
from clocs.training.checkpoint import load_checkpoint
from clocs.training.embed import EncoderVectors
from clocs.training.replicas import Replicas
from clocs.web.uploads import read_upload
from fuzz import format_samples, samples
from fuzz.mutations import Files
from fuzz.target import Given, Target


def _sound(recording: Recording) -> Recording:
    """What every recording keeps to, however damaged its file was."""
    digital, leads = recording.digital, len(recording.leads)
    assert digital.dtype == np.int16
    assert digital.shape == (leads, recording.samples)
    assert leads
    assert recording.samples
    assert len(set(recording.leads)) == len(recording.gain) == len(recording.baseline) == leads
    assert np.isfinite(recording.rate)
    assert recording.rate > 0
    gaps = np.zeros(digital.shape, np.bool_)
    for gap in recording.gaps:
        assert 0 <= gap.start < gap.stop <= recording.samples
        gaps[recording.leads.index(gap.lead), gap.start : gap.stop] = True
    assert np.array_equal(np.isnan(recording.signal), gaps)
    assert not gaps.all(axis=1).any()
    for one in recording.episodes:
        assert 0 <= one.start < one.stop
    return recording


def _header(given: Given) -> Any:
    name = given.one(".hea")
    header = parse_header(given.files[name], name=name) if name in given.files else None
    return header and (header.fields, header.signals)


def _recording(given: Given) -> Recording:
    """As the readers of uploads, of `clocs.read` and of datasets do it."""
    name = given.one((".hea", ".csv", ".edf", ".bdf"))
    own = format_of(name, given.files.get(name, b"")[:HEAD_BYTES])
    if own is None:
        raise UnusableError("unreadable", "its name is gone")
    return _sound(own.read(hold_files(given.files), name, ReadOptions(rate=500.0)))


def _format(name: str) -> Any:
    """Whatever a file may hold, read as this format: its parts, whole and in stretches."""

    def read(given: Given) -> Any:
        own, source = FORMATS[name], hold_files(given.files)
        path, options = given.one(own.suffixes), ReadOptions(rate=500.0)
        if own.recognize is not None:
            own.recognize(given.files.get(path, b"")[:HEAD_BYTES])
        failed: UnusableError | None = None
        for part in own.parts_of(source, path, options)[:3]:
            try:
                one = replace(options, part=part.name)
                _sound(own.read(source, path, one))
                _sound(own.read(source, path, replace(one, start=0.1, stop=0.5)))
            except UnusableError as error:
                failed = error
        if failed is not None:
            raise failed

    return read


def _prepared(given: Given) -> Any:
    """As `clocs prepare folder` reads a tree, with its options and its table of labels."""
    row, source = datasets()["folder"], hold_files(given.files)
    chosen: dict[str, Any] = {"rate": 500.0, "unit": "mV"}
    if table := next((n for n in given.files if n.startswith(("labels.", "wide."))), None):
        chosen["labels"] = table
        if table.startswith("labels."):
            chosen |= {"patient": "column:patient", "columns": {"fold": "fold"}}
            chosen |= {"codes": "codes.csv", "label_columns": ("label",)}
    dataset = row.open(source, **chosen_options(row, chosen))
    given.folder()
    with closing(Readers(dataset, 1, threads=True)) as readers:
        made = assemble(Job(dataset), given.scratch / "store", readers.list(), readers)
        return _store_contents(made)


def _listed(given: Given) -> Any:
    """As `clocs prepare folder` lists a tree, with these options or this table of labels."""
    row, source = datasets()["folder"], hold_files(format_samples.unlabeled() | given.files)
    table = given.one((".csv", ".xlsx"))
    chosen = {"labels": table, "codes": "codes.csv"} if table in given.files else {}
    return row.open(source, **chosen_options(row, chosen)).list() and None


def _stretches(given: Given) -> Any:
    """As recordings of days are read: what there is, and then a part of it after the other."""
    name = given.one((".hea", ".edf", ".bdf"))
    own = format_of(name, given.files.get(name, b"")[:HEAD_BYTES])
    if own is None:
        raise UnusableError("unreadable", "its name is gone")
    source = hold_files(given.files)
    (part,) = own.parts(source, name, ReadOptions())
    seconds = min(part.seconds or 0.0, 1e6)
    for number in range(3):
        start, stop = number * seconds / 3, (number + 1) * seconds / 3
        try:
            _sound(own.read(source, name, replace(ReadOptions(), start=start, stop=stop)))
        except UnusableError:
            continue


def _annotations(given: Given) -> Any:
    found = read_annotations(hold_files(given.files), given.one(".hea"), "atr")
    for one in found.rhythms:
        assert 0 <= one.start < one.stop <= found.samples
    return found.notes, found.rhythms, found.beats


def _from_folder(given: Given) -> Any:
    """As the processes of `clocs embed` read files and folders."""
    options = ReadOptions(rate=500.0)
    for one in find_recordings([given.folder()]):
        if not isinstance(one, Found):
            raise one[1]
        try:
            _sound(one.read(options))
        except UnusableError:
            continue


def _archive(given: Given) -> Any:
    source = open_source(given.folder())
    try:
        return [len(source.read(name)) for name in source.names]
    finally:
        source.close()


def _dataset(name: str) -> Any:
    def read(given: Given) -> Any:
        dataset = datasets()[name].open(hold_files(given.files))
        found = []
        for entry in dataset.list().entries:
            try:
                found.append(_sound(dataset.read(entry)).labels)
            except UnusableError as error:
                found.append((error.reason,))
        return found

    return read


def _upload(given: Given) -> Recording:
    (recording,) = read_upload(given.files, 100.0).recordings
    assert isinstance(recording, Recording)
    return _sound(recording)


def _service_body(given: Given) -> Any:
    """As the processes of `clocs serve` read what a client sends, within two seconds."""
    kind = given.files.get("type", b"").decode("latin-1")
    if bodies.plain_kind(kind) not in bodies.KINDS:
        raise SettingError("it is refused before it is read")
    query = dict(parse_qsl(given.files.get("query", b"").decode("latin-1")))
    try:
        rate = float(query["rate"]) if "rate" in query else None
    except ValueError:
        raise SettingError("it is refused before it is read") from None
    sent_query = {"leads": None, "unit": None, **query, "rate": rate}
    facts = {"type": kind, "query": sent_query, "limits": bodies.Limits()}
    began = time.process_time()
    read = bodies.read_body(facts, given.files.get("body", b""))
    sent = pickle.loads(pickle.dumps(read))  # noqa: S301 (as it comes)
    assert time.process_time() - began < 2
    assert sent.recordings
    assert len(sent.recordings) == len(read.recordings) <= bodies.Limits().recordings
    assert sent.several or len(sent.recordings) == 1
    for one in sent.recordings:
        assert str(_sound(one).id if isinstance(one, Recording) else one)


def _store_contents(store: Store) -> Any:
    return {
        "manifest": asdict(store.manifest),
        "table": store.table,
        "quarantine": store.quarantine,
        "unmatched": store.rows_without_recording,
        "recordings": list(store.iter_recordings()),
        "first": store.recording(0),
        "signals": [digital for _, digital in store.iter_signals()],
    }


def _store(given: Given) -> Any:
    return _store_contents(open_store(given.folder()))


def _seal_store(files: Files) -> Files:
    """A manifest with the hashes of the files as they are now."""
    try:
        fields = json.loads(files[MANIFEST])
        fields.pop("sha256", None)
        for name, file in fields["files"].items():
            file.update(_facts_of(files[name]))
        fields["signal_bytes"] = sum(len(d) for n, d in files.items() if n.startswith("signals/c/"))
        return files | {MANIFEST: json.dumps(fields | {"sha256": own_hash(fields)}).encode()}
    except Exception:  # damaged beyond sealing
        return files


def _facts_of(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _journal(given: Given) -> Any:
    """Finish a store that was interrupted, and read it."""
    chunks.CHUNK_SAMPLES, chunks.CHUNKS_PER_PART = samples.JOURNAL_CHUNK, samples.JOURNAL_PARTS
    store = prepare(samples.JOURNAL, out=given.folder() / "store", workers=1)
    contents = _store_contents(store)
    for sizes in ("files", "signal_bytes"):  # other bytes on disk may hold the same
        del contents["manifest"][sizes]
    return contents


def _checkpoint(given: Given) -> Any:
    return load_checkpoint(given.folder())


def _seal_checkpoint(files: Files) -> Files:
    """A card with the hashes of the weights and of itself as they are now."""
    try:
        facts = json.loads(files["seed-0.json"])
        facts.pop("sha256", None)
        facts["weights_sha256"] = _facts_of(files["seed-0.safetensors"])["sha256"]
        return files | {"seed-0.json": json.dumps(facts | {"sha256": own_hash(facts)}).encode()}
    except Exception:  # damaged beyond sealing
        return files


def _encode(given: Given) -> Any:
    """Use a checkpoint, as `clocs embed` does."""
    checkpoint = load_checkpoint(given.folder())
    return embed_recordings(checkpoint, [_recording_to_embed()], level="recording")


@cache
def _recording_to_embed() -> Recording:
    return samples.store().recording(0)


def _state(given: Given) -> Any:
    import torch

    return Replicas.load(given.folder() / STATE, torch.device("cpu"))


@cache
def _frames() -> Frames:
    return samples.frames()


def _resumed(given: Given) -> Any:
    (one,) = pretrain_frames(_frames(), samples.PLAN, given.folder(), resume=True)
    return one.weights, one.buffers, one.card.metrics.get("epochs")


def _index(given: Given) -> Any:
    folder = given.folder()
    encoder = index_encoder(folder)
    found: list[Any] = [encoder.card]
    for level in ("patient", "recording"):
        index = open_index(folder, level)
        hits = index.search(np.eye(4, dtype=np.float32), 3)
        facts = (index.level, index.encoder, index.frame, index.leads, index.kind)
        found.append(
            (np.array(index.vectors), index.rows, index.live, facts, hits.rows, hits.cosine)
        )
    return found


def _embeddings(given: Given) -> Any:
    return Embeddings.load(given.folder() / "e.parquet")


def _predictions(given: Given) -> Any:
    return Predictions.load(given.folder() / "p.safetensors")


def _frame_file(given: Given) -> Any:
    path = given.folder() / "synthetic-frame.safetensors"
    return Frames.facts(path), Frames.load(path)


def _explorer_cache(given: Given) -> Any:
    """What the explorer keeps; damaged, it is made again."""
    folder = given.folder()
    with warnings.catch_warnings(action="ignore"):
        found = EncoderVectors([folder], "vectors", samples.MAPPED, 4)
    positions = patient_map._load(folder / "map.safetensors", samples.MAPPED)
    if not found.known.any() or positions is None:
        raise StoreError("it is made again")
    return found.read(np.flatnonzero(found.known)), positions


def _ledger(given: Given) -> Any:
    ledger = open_ledger(given.folder(), create=False)
    try:
        return ledger.facts(), ledger.runs(), ledger.states()
    finally:
        ledger.close()


_ALL = (
    Target("header", samples.wfdb_plain, _header, limited=True),
    Target("wfdb", samples.wfdb_plain, _recording, limited=True),
    Target("wfdb-flac", samples.wfdb_flac, _recording, limited=True),
    Target("wfdb-rare", samples.wfdb_rare, _recording, limited=True),
    Target("wfdb-segments", samples.wfdb_segments, _recording, limited=True),
    Target("wfdb-stretches", samples.wfdb_segments, _stretches, limited=True),
    Target("wfdb-annotations", samples.wfdb_annotations, _annotations, limited=True),
    Target("edf", samples.edf, _recording, limited=True),
    Target("edf-stretches", samples.edf, _stretches, limited=True),
    Target("unnamed", samples.unnamed, _from_folder, limited=True),
    Target("csv", samples.csv, _recording, limited=True),
    *(
        Target(name, make, _format(form), limited=True)
        for name, (form, make) in format_samples.BY_TARGET.items()
    ),
    Target("folder", samples.wfdb_plain, _from_folder, limited=True),
    Target("zip", samples.archives, _archive, limited=True),
    Target("zip-recordings", samples.archives, _from_folder, limited=True),
    Target("chapman", samples.chapman, _dataset("chapman"), limited=True),
    Target("physionet2017", samples.physionet2017, _dataset("physionet2017"), limited=True),
    Target("physionet2020", samples.physionet2020, _dataset("physionet2020"), limited=True),
    Target("cardiology", samples.irhythm, _dataset("cardiology"), limited=True),
    Target("ptbxl", format_samples.ptbxl, _dataset("ptbxl"), limited=True),
    Target("mitbih", format_samples.mitbih, _dataset("mitbih"), limited=True),
    Target("physionet2021", format_samples.physionet2021, _dataset("physionet2021"), limited=True),
    Target("label-tables", format_samples.labeled_folders, _prepared, limited=True),
    Target("label-csv", format_samples.csv_labels, _listed, limited=True),
    Target("label-xlsx", format_samples.xlsx_labels, _listed, limited=True),
    Target("upload", samples.uploads, _upload, limited=True),
    Target("service-body", samples.service_bodies, _service_body, limited=True),
    Target("store", samples.stores, _store, checked=True),
    Target("store-hostile", samples.stores, _store, seal=_seal_store),
    Target("journal", samples.journals, _journal, checked=True),
    Target("checkpoint", samples.checkpoints, _checkpoint, checked=True),
    Target("checkpoint-hostile", samples.checkpoints, _encode, seal=_seal_checkpoint),
    Target("state", samples.single_states, _state, checked=True),
    Target("resume", samples.states, _resumed, checked=True),
    Target("index", samples.indexes, _index, checked=True),
    Target("embeddings", samples.embeddings, _embeddings, checked=True),
    Target("predictions", samples.prediction_files, _predictions, checked=True),
    Target("frames", samples.frame_files, _frame_file, checked=True),
    Target("explorer-cache", samples.explorer_caches, _explorer_cache, checked=True),
    Target("ledger", samples.ledgers, _ledger),  # a run whose row is lost runs again
)
TARGETS = {target.name: target for target in _ALL}
