"""The demo: the whole story on simulated ECGs in half a minute. Everything here is public API.

Prepare, learn without labels, evaluate with few labels, look at the patients, show it on one page.
Run twice it finds what is simulated and learned, and scores and shows it again.
"""

from __future__ import annotations

import base64
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from rich.console import Console
from rich.table import Table

from clocs._version import __version__
from clocs.evaluation.groups import evaluate_frames
from clocs.evaluation.result import Evaluation
from clocs.experiments import demo_data
from clocs.experiments.demo_data import SEEDS
from clocs.figures.auc_bars import auc_bars
from clocs.figures.canvas import save
from clocs.figures.distances import distance_histograms
from clocs.figures.ecg_paper import ecg_paper
from clocs.files import write_atomic
from clocs.frames.make import make_frames
from clocs.patients.distances import PatientDistances, frame_distances
from clocs.pretraining.pretrain import pretrain
from clocs.store.prepare import prepare
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from clocs.training.loop import Settings

DEMO_METHODS = ("random", "random-bn", "cmsc")
FRACTIONS = (0.25, 1.0)
PRETRAINING = Settings(**demo_data.PRETRAINING)
EVALUATION = Settings(epochs=150, patience=15, batch_size=128, lr=3e-3)


@dataclass(frozen=True)
class Demo:
    """What the demo found and where it lies."""

    folder: Path
    patients: int
    evaluations: list[Evaluation]
    distances: dict[str, PatientDistances]
    seconds: float

    def json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "page": str(self.folder / "index.html"),
            "patients": self.patients,
            "seconds": self.seconds,
            "evaluations": [evaluation.json() for evaluation in self.evaluations],
            "separability": {name: d.separability for name, d in self.distances.items()},
        }

    def table(self) -> Table:
        """The result, for a terminal."""
        table = Table(title=f"Test AUC, linear evaluation, {SEEDS} seeds, mean ± sd")
        table.add_column("encoder")
        for fraction in FRACTIONS:
            table.add_column(f"{fraction:.0%} of the labels", justify="right")
        table.add_column("tells patients apart", justify="right")
        for method in DEMO_METHODS:
            scores = [_score(self._of(method, fraction)) for fraction in FRACTIONS]
            apart = self.distances.get(method)
            table.add_row(method, *scores, f"{apart.separability:.2f}" if apart else "")
        return table

    def closing_words(self) -> str:
        """Where everything lies and what to try next."""
        return (
            f"Done in {self.seconds:.0f} s. The page to look at: {self.folder / 'index.html'}"
            f"\nNext, with recordings of your own choice:\n{_activation()}"
            "  clocs prepare chapman ECGDataDenoised.zip --out stores/chapman\n"
            "  clocs pretrain stores/chapman --method cmsc --seeds 5 --out runs/chapman-cmsc\n"
            "  clocs evaluate runs/chapman-cmsc stores/chapman --fraction 0.5"
        )

    def _of(self, method: str, fraction: float) -> Evaluation:
        return next(e for e in self.evaluations if (e.method, e.fraction) == (method, fraction))


def _activation() -> str:
    """The line to type first where the shell does not find `clocs`, as after `script/demo`."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("clocs") or not script.is_file():
        return ""
    here = Path.cwd()
    return f"  source {script.relative_to(here) if script.is_relative_to(here) else script}\n"


def run_demo(folder: Path, *, patients: int, console: Console) -> Demo:
    """Do everything below `folder` and write `index.html` there."""
    began = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with _stage(console, f"Simulating {patients} patients with two ECGs each"):
        store = prepare(
            "synthetic", out=demo_data.store_folder(folder, patients), patients=patients
        )
    learned: dict[str, list[Checkpoint]] = {}
    for method in DEMO_METHODS:
        with _stage(console, f"Learning {SEEDS} encoders without labels: {method}"):
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
        with _stage(console, f"Evaluating {method} on patients never seen"):
            for fraction in FRACTIONS:
                evaluations.append(
                    evaluate_frames(
                        checkpoints,
                        frames,
                        fraction=fraction,
                        by="patient",
                        settings=EVALUATION,
                        resamples=500,
                    )
                )
    with _stage(console, "Measuring how far patients lie from each other"):
        distances = {
            method: frame_distances(learned[method][0], frames) for method in ("random-bn", "cmsc")
        }
    demo = Demo(folder, patients, evaluations, distances, time.perf_counter() - began)
    with _stage(console, "Drawing"):
        _write_page(demo, store)
    return demo


def _write_page(demo: Demo, store: Store) -> None:
    examples = _one_of_each(store)
    names = []
    for label, recording in examples.items():
        names.append(f"ecg-{label}.png")
        figure = ecg_paper(
            recording.select(("II", "V2", "aVL", "aVR")), title=f"{label} ({recording.id})"
        )
        save(figure, demo.folder / names[-1])
    save(auc_bars([e.json() for e in demo.evaluations]), demo.folder / "auc.png")
    panels = {name: (d.intra, d.inter) for name, d in demo.distances.items()}
    save(
        distance_histograms(panels, title="Distances between embeddings of test patients"),
        demo.folder / "distances.png",
    )
    template = jinja2.Environment(
        loader=jinja2.PackageLoader("clocs.experiments"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    ).get_template("demo.html")
    page = template.render(
        version=__version__,
        patients=demo.patients,
        recordings=len(store),
        seeds=SEEDS,
        methods=DEMO_METHODS,
        fractions=FRACTIONS,
        score=lambda method, fraction: _score(demo._of(method, fraction)),
        interval=lambda method, fraction: demo._of(method, fraction).ci95,
        distances=demo.distances,
        seconds=demo.seconds,
        image=lambda name: _data_url(demo.folder / name),
        ecgs=names,
    )
    write_atomic(demo.folder / "index.html", page.encode())


def _one_of_each(store: Store) -> dict[str, Any]:
    """The first recording of every class."""
    first: dict[str, Any] = {}
    for row, labels in enumerate(store.table["labels"].to_list()):
        if labels and labels[0] not in first:
            first[labels[0]] = store.recording(row)
    return {label: first[label] for label in store.manifest.labels if label in first}


def _data_url(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _score(evaluation: Evaluation) -> str:
    spread = np.nan if evaluation.auc_std is None else evaluation.auc_std
    return f"{evaluation.auc_mean:.3f} ± {spread:.3f}"


@contextmanager
def _stage(console: Console, title: str) -> Iterator[None]:
    began = time.perf_counter()
    if console.is_terminal:
        with console.status(title + " …"):
            yield
    else:
        yield
    console.print(f"{title}: {time.perf_counter() - began:.1f} s")
