"""The demo: the whole workflow on simulated ECGs in half a minute.

Prepare, pre-train without labels, evaluate with few labels, compare patients, write one page. A
second run reuses the recordings and encoders of the first.
"""

from __future__ import annotations

import base64
import shlex
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from clocs.evaluation.groups import evaluate_frames
from clocs.evaluation.result import Evaluation
from clocs.experiments import demo_data
from clocs.experiments.demo_data import SEEDS
from clocs.experiments.page import write_page
from clocs.figures.auc_dots import auc_dots
from clocs.figures.canvas import save
from clocs.figures.distances import distance_histograms
from clocs.figures.ecg_paper import ecg_paper
from clocs.files import PUBLIC
from clocs.frames.make import make_frames
from clocs.patients.distances import PatientDistances, frame_distances
from clocs.pretraining.pretrain import pretrain
from clocs.store.prepare import prepare
from clocs.store.store import Store
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint

DEMO_METHODS = ("random", "random-bn", "cmsc")
FRACTIONS = (0.25, 1.0)
PRETRAINING = Settings(**demo_data.PRETRAINING)
EVALUATION = Settings(epochs=150, patience=15, batch_size=128, lr=3e-3)


@dataclass(frozen=True)
class Demo:
    """What the demo found."""

    folder: Path
    patients: int
    evaluations: list[Evaluation]
    distances: dict[str, PatientDistances]
    seconds: float

    seeds = SEEDS
    methods = DEMO_METHODS
    fractions = FRACTIONS

    @property
    def page(self) -> Path:
        return self.folder / "index.html"

    @property
    def explore(self) -> str:
        """The command that shows its patients."""
        if (self.folder, self.patients) == (demo_data.DEMO, demo_data.PATIENTS):
            return "clocs explore"
        encoders = demo_data.encoder_folder(self.folder, self.patients, "cmsc")
        store = demo_data.store_folder(self.folder, self.patients)
        places = (shlex.quote(str(place)) for place in (encoders, store))
        return "clocs explore --checkpoint {} --store {}".format(*places)

    def json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "page": str(self.page),
            "patients": self.patients,
            "seconds": self.seconds,
            "evaluations": [evaluation.json() for evaluation in self.evaluations],
            "separability": {name: d.separability for name, d in self.distances.items()},
        }

    def evaluation(self, method: str, fraction: float) -> Evaluation:
        return next(e for e in self.evaluations if (e.method, e.fraction) == (method, fraction))


def run_demo(
    folder: Path,
    *,
    patients: int,
    stage: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Demo:
    """Make everything in `folder`, with `index.html`.

    Args:
        folder: Created if needed.
        patients: Number of simulated patients.
        stage: Entered with the title of each stage while it lasts.
    """
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with stage(f"Simulating {patients} patients with two ECGs each"):
        store = prepare(
            "synthetic", out=demo_data.store_folder(folder, patients), patients=patients
        )
    learned: dict[str, list[Checkpoint]] = {}
    for method in DEMO_METHODS:
        with stage(f"Pre-training {SEEDS} encoders without labels: {method}"):
            learned[method] = pretrain(
                store,
                method=method,
                out=demo_data.encoder_folder(folder, patients, method),
                seeds=SEEDS,
                settings=PRETRAINING,
                resume=True,
            )
    frames = make_frames(store)
    evaluations = []
    for method, checkpoints in learned.items():
        with stage(f"Evaluating {method} on test patients"):
            score = partial(evaluate_frames, checkpoints, frames, by="patient", resamples=500)
            evaluations += [score(fraction=f, settings=EVALUATION) for f in FRACTIONS]
    with stage("Measuring distances between patients"):
        distances = {
            method: frame_distances(learned[method][0], frames) for method in ("random-bn", "cmsc")
        }
    demo = Demo(folder, patients, evaluations, distances, time.perf_counter() - began)
    with stage("Drawing"):
        _write_page(demo, store)
    return demo


def _write_page(demo: Demo, store: Store) -> None:
    """Pictures and page, readable like a report: the patients are simulated."""
    names = []
    for label, recording in _one_of_each(store).items():
        names.append(f"ecg-{label}.png")
        figure = ecg_paper(
            recording.select(("II", "V2", "aVL", "aVR")), title=f"{label} ({recording.id})"
        )
        save(figure, demo.folder / names[-1], mode=PUBLIC)
    save(auc_dots([e.json() for e in demo.evaluations]), demo.folder / "auc.png", mode=PUBLIC)
    panels = {name: (d.intra, d.inter) for name, d in demo.distances.items()}
    save(
        distance_histograms(panels, title="Distances between embeddings of test patients"),
        demo.folder / "distances.png",
        mode=PUBLIC,
    )
    write_page(
        demo.page,
        "demo.html",
        patients=demo.patients,
        recordings=len(store),
        seeds=SEEDS,
        methods=DEMO_METHODS,
        fractions=FRACTIONS,
        evaluation=demo.evaluation,
        distances=demo.distances,
        seconds=demo.seconds,
        explore=demo.explore,
        image=lambda name: (
            "data:image/png;base64," + base64.b64encode((demo.folder / name).read_bytes()).decode()
        ),
        ecgs=names,
    )


def _one_of_each(store: Store) -> dict[str, Any]:
    """The first recording of every class."""
    first: dict[str, Any] = {}
    for row, labels in enumerate(store.table["labels"].to_list()):
        if labels and labels[0] not in first:
            first[labels[0]] = store.recording(row)
    return {label: first[label] for label in store.manifest.labels if label in first}
