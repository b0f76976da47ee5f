"""The demo: the whole workflow on simulated ECGs in half a minute.

Prepare, pre-train without labels, evaluate with few labels, compare patients, write one page. A
second run reuses the recordings and encoders of the first; the explorer opens them, too.
"""

from __future__ import annotations

import base64
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.errors import ClocsError
from clocs.store.manifest import MANIFEST, Manifest
from clocs.training.card import read_card

if TYPE_CHECKING:
    from clocs.evaluation.result import Evaluation
    from clocs.patients.distances import PatientDistances
    from clocs.store.store import Store
    from clocs.training.checkpoint import Checkpoint

PATIENTS = 300
DEMO = Path("demo")  # where `clocs demo` puts it by default, below the current folder
SEEDS = 3
METHODS = ("random", "random-bn", "cmsc")
FRACTIONS = (0.25, 1.0)
# Short, to take half a minute; the paper's settings are for tens of thousands of instances.
PRETRAINING: dict[str, Any] = {"epochs": 30, "patience": 15, "batch_size": 128, "lr": 1e-3}
EVALUATION: dict[str, Any] = {"epochs": 150, "patience": 15, "batch_size": 128, "lr": 3e-3}


@dataclass(frozen=True)
class Demo:
    """What the demo found."""

    folder: Path
    patients: int
    evaluations: list[Evaluation]
    distances: dict[str, PatientDistances]
    seconds: float

    @property
    def page(self) -> Path:
        return self.folder / "index.html"

    @property
    def explore(self) -> str:
        """The command that shows its patients."""
        if (self.folder, self.patients) == (DEMO, PATIENTS):
            return "clocs explore"
        encoders = encoder_folder(self.folder, self.patients, "cmsc")
        store = store_folder(self.folder, self.patients)
        places = (shlex.quote(str(place)) for place in (store, encoders))
        return "clocs explore {} --checkpoint {}".format(*places)

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
    """Run the whole workflow on simulated ECGs: prepare, pre-train, evaluate, draw.

    Args:
        folder: Created if needed.
        patients: Number of simulated patients.
        stage: Entered with the title of each stage while it lasts.
    """
    from clocs.evaluation.groups import score_groups
    from clocs.frames.make import make_frames
    from clocs.patients.distances import frame_distances
    from clocs.store.prepare import prepare
    from clocs.training import Settings

    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with stage(f"Simulating {patients} patients with two ECGs each"):
        store = prepare("synthetic", out=store_folder(folder, patients), patients=patients)
    learned = {}
    for method in METHODS:
        with stage(f"Pre-training {SEEDS} encoders without labels: {method}"):
            learned[method] = _pretrain(store, folder, patients, method)
    frames = make_frames(store)
    evaluations = []
    for method, checkpoints in learned.items():
        with stage(f"Evaluating {method} on test patients"):
            score = partial(score_groups, [checkpoints], frames, by="patient", resamples=500)
            scored = [score(fraction=f, settings=Settings(**EVALUATION)) for f in FRACTIONS]
            evaluations += [one.evaluation for (one,) in scored]
    with stage("Measuring distances between patients"):
        distances = {m: frame_distances(learned[m][0], frames) for m in METHODS[1:]}
    demo = Demo(folder, patients, evaluations, distances, time.perf_counter() - began)
    with stage("Drawing"):
        _write_page(demo, store)
    return demo


def _pretrain(
    store: Store | Path, folder: Path, patients: int, method: str, **more: Any
) -> list[Checkpoint]:
    from clocs.pretraining.pretrain import pretrain
    from clocs.training import Settings

    return pretrain(
        store,
        method=method,
        out=encoder_folder(folder, patients, method),
        seeds=SEEDS,
        settings=Settings(**PRETRAINING),
        resume=True,
        **more,
    )


def _write_page(demo: Demo, store: Store) -> None:
    """Pictures and page, readable like a report: the patients are simulated."""
    from clocs.experiments.pages import write_page
    from clocs.figures.canvas import save
    from clocs.figures.ecg import ecg_paper
    from clocs.figures.scores import auc_dots, distance_histograms
    from clocs.files import PUBLIC

    first: dict[str, Any] = {}  # recording of every class
    for row, labels in enumerate(store.table["labels"].to_list()):
        if labels and labels[0] not in first:
            first[labels[0]] = store.recording(row).select(("II", "V2", "aVL", "aVR"))
    ecgs = {
        f"ecg-{label}.png": ecg_paper(first[label], title=f"{label} ({first[label].id})")
        for label in store.manifest.labels
        if label in first
    }
    panels = {name: (d.intra, d.inter) for name, d in demo.distances.items()}
    title = "Distances between embeddings of test patients"
    figures = ecgs | {
        "auc.png": auc_dots([e.json() for e in demo.evaluations]),
        "distances.png": distance_histograms(panels, title=title),
    }
    for name, figure in figures.items():
        save(figure, demo.folder / name, mode=PUBLIC)
    write_page(
        demo.page,
        "demo.html",
        patients=demo.patients,
        recordings=len(store),
        seeds=SEEDS,
        methods=METHODS,
        fractions=FRACTIONS,
        evaluation=demo.evaluation,
        distances=demo.distances,
        seconds=demo.seconds,
        explore=demo.explore,
        image=lambda name: (
            "data:image/png;base64," + base64.b64encode((demo.folder / name).read_bytes()).decode()
        ),
        ecgs=list(ecgs),
    )


def store_folder(folder: Path, patients: int) -> Path:
    """The store below the demo's folder."""
    return folder / f"store-{patients}"


def encoder_folder(folder: Path, patients: int, method: str) -> Path:
    """The encoders of a method below the demo's folder."""
    return folder / f"encoders-{patients}" / method


def finished_demo(folder: Path, patients: int = PATIENTS) -> tuple[Path, Path] | None:
    """The demo's store and its folder of CMSC encoders, if whole and of this version."""
    store, encoders = store_folder(folder, patients), encoder_folder(folder, patients, "cmsc")
    if not ((store / MANIFEST).is_file() and (encoders / "seed-0.safetensors").is_file()):
        return None
    try:
        Manifest.read(store)
        read_card(encoders / "seed-0.json")
    except ClocsError:
        return None
    return store, encoders


def demo_store_and_encoder(
    folder: Path,
    *,
    patients: int = PATIENTS,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> tuple[Path, Path]:
    """The demo's store and its folder of CMSC encoders, made unless they exist.

    Damaged ones, and those of another version, are made anew. `clocs demo` with this folder as
    `out` keeps them there, too. `progress` is called with the current stage, the steps done and
    their total.
    """
    if found := finished_demo(folder, patients):
        return found
    store, encoders = store_folder(folder, patients), encoder_folder(folder, patients, "cmsc")
    if (store / MANIFEST).is_file() and (encoders / "seed-0.safetensors").is_file():
        shutil.rmtree(store)
        shutil.rmtree(encoders)
    from clocs.store.prepare import prepare

    folder.mkdir(parents=True, exist_ok=True)
    simulating = partial(progress, f"Simulating {patients} patients")
    prepare("synthetic", out=store, patients=patients, progress=simulating)
    learning, total = "Learning an encoder without labels", PRETRAINING["epochs"]
    _pretrain(
        store,
        folder,
        patients,
        "cmsc",
        on_epoch=lambda epoch: progress(learning, epoch.number, total),
    )
    return store, encoders
