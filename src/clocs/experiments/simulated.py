"""Small simulated datasets in place of the paper's four, to try the whole grid in seconds.

Twelve leads where the real dataset has twelve, one where it has one. The results show that the code
works; they say nothing about patients.
"""

from __future__ import annotations

import hashlib

import numpy as np

from clocs.datasets.synthetic import GAIN, Synthetic
from clocs.experiments import paper
from clocs.frames.frames import SEXES, Frames
from clocs.frames.splits import assign, keys_of
from clocs.recording import STANDARD_LEADS

PATIENTS = 60
BATCH_SIZE = 32


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
        batch_size=BATCH_SIZE,
        split_seed=0,
        unit="mV",
        patient_ids=tuple(patient_ids),
        recording_ids=tuple(r.id for r in recordings),
        digests=keys_of(hashlib.sha256(s.tobytes()).hexdigest() for s in signals),
        age=np.array([np.nan if r.age is None else r.age for r in recordings], np.float32),
        sex=np.array([SEXES.index(r.sex or "unknown") for r in recordings], np.int8),
        day=np.full(n, np.nan),
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
