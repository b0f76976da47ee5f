"""The experiments' data: frames of each dataset, from its store or from saved Frames files.

A machine without polars needs `NAME-frame.safetensors` and, where segments have another length,
`NAME-pair.safetensors` (`clocs export --to frames` writes them); one file works for every split and
every choice of its leads. Small simulated datasets stand in for the paper's four, to try the grid
in seconds: twelve leads where the real dataset has twelve, one where it has one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

import numpy as np

from clocs.datasets.synthetic import GAIN, Synthetic
from clocs.errors import SettingError
from clocs.experiments import paper
from clocs.experiments.grid import Cell
from clocs.files import private_folder
from clocs.frames.frames import SEXES, Frames
from clocs.frames.splits import assign, keys_of
from clocs.frames.views import frame_for
from clocs.recording import PAPER_LEADS, STANDARD_LEADS, FrameSpec
from clocs.store.manifest import MANIFEST

PATIENTS, _BATCH_SIZE = 60, 32  # of simulated datasets


def leads_for(count: int, present: tuple[str, ...]) -> tuple[str, ...] | None:
    """The paper's four leads, or all twelve, if they are present; else None.

    A single-lead recording is used with that lead, whatever the encoder was trained on.
    """
    if len(present) == 1:
        return present
    wanted = PAPER_LEADS if count == len(PAPER_LEADS) else STANDARD_LEADS
    return wanted if set(wanted) <= set(present) else None


@dataclass(frozen=True, kw_only=True)
class FramesSource:
    """The source of one dataset's frames."""

    dataset: str
    leads: tuple[str, ...]  # all of its recordings
    frame: FrameSpec  # to evaluate with
    content: str  # the hash of its recordings
    has_pairs: bool
    # how many patients its training part has and how many segments a recording, where that is
    # known without loading it; the paper's datasets have what the experiments need
    patients: int | None = None
    segments: int | None = None
    load: Callable[[bool, tuple[str, ...]], Frames]


class Library:
    """Frames by dataset, kept in memory once loaded."""

    def __init__(self, sources: dict[str, FramesSource]) -> None:
        self.sources = sources
        self._loaded: dict[tuple[str, bool, tuple[str, ...]], Frames] = {}
        self._one_at_a_time = Lock()

    def why_not(self, cell: Cell) -> str | None:
        """Which data a cell needs and the library lacks; None if it can run."""
        p = cell.pretraining
        why = self.lacks(p.dataset, p.leads) or self.lacks(cell.downstream, p.leads)
        if why is not None:
            return why
        patients = self.sources[cell.downstream].patients
        if patients is not None and patients < (cell.patients or 0):
            return f"needs {cell.patients:,} labeled patients"
        segments = self.sources[p.dataset].segments
        if segments is not None and segments < p.segments:
            return f"needs recordings of {p.segments} segments"
        return None

    def lacks(self, dataset: str, leads: int) -> str | None:
        """Why frames of this dataset in so many leads are not available; None if they are."""
        if dataset not in self.sources:
            return f"needs a store of {dataset}"
        if leads_for(leads, self.sources[dataset].leads) is None:
            return f"needs a {leads}-lead store"
        return None

    def frames(
        self, dataset: str, *, leads: int, pair: bool = False, split_seed: int = 0
    ) -> Frames:
        """All frames of a dataset in 4 or 12 leads; a dataset of a single lead has that one.

        With `pair`, they are cut for methods whose views are consecutive segments.
        """
        lacks = self.lacks(dataset, leads)
        names = leads_for(leads, self.sources[dataset].leads) if lacks is None else None
        if names is None:
            raise SettingError(
                f"this experiment {lacks}; prepare one in the folder given as `stores`"
            )
        source = self.sources[dataset]
        key = (dataset, pair and source.has_pairs, names)
        with self._one_at_a_time:
            if key not in self._loaded:
                self._loaded[key] = source.load(key[1], names)
            frames = self._loaded[key]
        return frames if frames.split_seed == split_seed else frames.with_split_seed(split_seed)


def open_library(folder: Path) -> Library:
    """The stores and saved Frames files of a folder, named by dataset.

    Stores take precedence, where polars is installed to read them.
    """
    if not folder.is_dir():
        raise SettingError(f"{folder} is not a folder; give the one that holds the prepared stores")
    sources = {}
    for name in paper.DATASET_TITLES:
        saved = folder / f"{name}-frame.safetensors"
        if (folder / name / MANIFEST).is_file() and find_spec("polars") is not None:
            sources[name] = _from_store(folder / name)
        elif saved.is_file():
            sources[name] = _from_files(saved)
        else:
            continue
        if sources[name].dataset != name:
            raise SettingError(
                f"{folder} holds {sources[name].dataset} under the name of {name}; rename it"
            )
    if not sources:
        raise SettingError(
            f"{folder} holds neither stores (chapman, physionet2020, …) nor saved frames "
            "(chapman-frame.safetensors, …); make them with `clocs prepare` or "
            "`clocs export --to frames`"
        )
    return Library(sources)


def library_from_frames(frames: dict[str, Frames]) -> Library:
    """Frames that are already in memory."""
    return Library({name: _from_frames(own) for name, own in frames.items()})


def _from_frames(frames: Frames) -> FramesSource:
    return FramesSource(
        dataset=frames.dataset,
        leads=frames.leads,
        frame=frames.spec,
        content=frames.content,
        has_pairs=False,
        patients=len(frames.patients_of(0)),
        segments=int(frames.segment.max()) + 1,
        load=lambda pair, leads: frames.with_leads(leads),
    )


def _from_files(path: Path) -> FramesSource:
    pair_path = path.with_name(path.name.replace("-frame.", "-pair."))
    facts = Frames.facts(path)
    has_pairs = pair_path.is_file()
    if has_pairs and Frames.facts(pair_path)["content"] != facts["content"]:
        raise SettingError(
            f"{pair_path.name} and {path.name} come from different stores; write both again with "
            "`clocs export --to frames`"
        )

    def load(pair: bool, leads: tuple[str, ...]) -> Frames:
        return Frames.load(pair_path if pair else path).with_leads(leads)

    return FramesSource(
        dataset=facts["dataset"],
        leads=facts["leads"],
        frame=facts["spec"],
        content=facts["content"],
        has_pairs=has_pairs,
        load=load,
    )


def _from_store(path: Path) -> FramesSource:
    from clocs.frames.make import make_frames
    from clocs.store.store import open_store

    store = open_store(path)
    manifest = store.manifest

    def load(pair: bool, leads: tuple[str, ...]) -> Frames:
        spec = frame_for(manifest, segments=2 if pair else 1)
        return make_frames(store, spec=spec, leads=leads)

    return FramesSource(
        dataset=manifest.dataset,
        leads=store.leads,
        frame=manifest.frame,
        content=manifest.content_hash,
        has_pairs=manifest.segment_frame != manifest.frame,
        load=load,
    )


def simulated_frames(name: str, seed: int, patients: int = PATIENTS) -> Frames:
    """Frames of simulated patients under the name of a dataset."""
    dataset = Synthetic(patients=patients, seed=seed)
    recordings = [dataset.read(entry) for entry in dataset.list().entries]
    width = dataset.frame.samples
    count = recordings[0].samples // width
    per_lead = count * width
    signals = np.stack([recording.digital[:, :per_lead] for recording in recordings])
    n, leads = signals.shape[:2]
    row = np.arange(n * count)
    recording, segment = row // count, row % count
    starts = (recording[:, None] * leads + np.arange(leads)) * per_lead + segment[:, None] * width
    patient_ids = list(dict.fromkeys(r.patient for r in recordings))
    patient = np.array([patient_ids.index(r.patient) for r in recordings], np.int32)[recording]
    target = np.array([[r.labels[0] == label for label in dataset.labels] for r in recordings])
    frames = Frames(
        dataset=name,
        content=hashlib.sha256(signals.tobytes()).hexdigest(),
        spec=dataset.frame,
        leads=STANDARD_LEADS,
        labels=dataset.labels,
        multilabel=False,
        batch_size=_BATCH_SIZE,
        split_seed=0,
        unit="mV",
        patient_ids=tuple(patient_ids),
        recording_ids=tuple(r.id for r in recordings),
        digests=keys_of(hashlib.sha256(s.tobytes()).hexdigest() for s in signals),
        age=np.array([np.nan if r.age is None else r.age for r in recordings], np.float32),
        sex=np.array([SEXES.index(r.sex or "unknown") for r in recordings], np.int8),
        signals=signals.ravel(),
        starts=starts.astype(np.int64),
        scale=np.full((n * count, leads), 1 / GAIN, np.float32),
        recording=recording.astype(np.int32),
        patient=patient,
        segment=segment.astype(np.int32),
        split=assign(patient_ids, name)[patient],
        target=target[recording].astype(np.uint8),
    )
    return frames.with_leads(("II",)) if name in paper.SINGLE_LEAD else frames


def simulated_datasets(patients: int = PATIENTS) -> dict[str, Frames]:
    """All four, each with its own patients."""
    return {
        name: simulated_frames(name, seed, patients)
        for seed, name in enumerate(paper.DATASET_TITLES)
    }


@lru_cache(maxsize=1)
def simulated_library() -> Library:
    """The simulated datasets, made once."""
    return library_from_frames(simulated_datasets())


def save_frames(
    store: Path,
    out: Path,
    *,
    seconds: float | None = None,
    rate: float | None = None,
    leads: Sequence[str] | None = None,
    step: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Write a store's Frames files into the folder `out`.

    Args:
        store: Prepared recordings.
        out: The folder of the files.
        seconds: Of a frame; the dataset's own where None.
        rate: Of a frame, in Hz; the dataset's own where None.
        leads: By name; all of the store's where None.
        step: The size of a step of the signals in mV; as fine as the recordings allow where None.
        progress: Called with the number of files written, and of all.

    Returns:
        The files: one, or two where segments have another length and no frame was chosen.
    """
    from clocs.frames.make import make_frames
    from clocs.store.store import open_store

    opened = open_store(store)
    manifest = opened.manifest
    specs = {"frame": manifest.frame}
    if seconds is not None or rate is not None:
        seconds = manifest.frame.seconds if seconds is None else seconds
        samples = round(seconds * (manifest.frame.rate if rate is None else rate))
        specs["frame"] = FrameSpec(seconds, samples, manifest.frame.filters)
    elif manifest.segment_frame != manifest.frame:
        specs["pair"] = manifest.segment_frame
    private_folder(out)
    written = []
    for done, (kind, spec) in enumerate(specs.items()):
        progress(done, len(specs))
        written.append(out / f"{manifest.dataset}-{kind}.safetensors")
        frames = make_frames(opened, spec=spec, leads=leads or opened.leads)
        if step is not None:
            frames = frames.with_step(step)
        frames.save(written[-1])
    progress(len(specs), len(specs))
    return written
