"""How much better is what remains when a classifier abstains; and from what it abstains.

    PYTHONPATH=. python benchmarks/abstention.py MODEL STORE [--other STORE ...] [--plot curves.png]

Test recordings of STORE, which must have the classifier's labels, are ranked by the ECG's share of
the power of their signals, by the distance of their embeddings from those of training recordings,
by both, and at random (the mean of 50 draws); the scores are those of the best-ranked share. Beside
them, as the measure to beat: the distance to the fifth nearest training recording (kNN), which a
file that ships cannot hold, and the probability of the predicted label, which needs no measure at
all. Then the limits in the classifier's card are applied to the same recordings with noise added,
and to stores that it was not trained on: too noisy, too far or unsure.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import clocs
from clocs.evaluation import metrics
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.models.classifier import Classifier, load_classifier, probability_column
from clocs.models.scores import ScoredPart, labeled_part, score_part
from clocs.training.checkpoint import TEST
from research.noise import kinds_at, with_noise

COVERAGE = (1.0, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
SNR_DB = (12.0, 6.0, 0.0)
NEIGHBOR = 5
ABSTAINED = "too noisy | too far | unsure | any"
COLORS = {
    "ECG share": "#0072b2",
    "distance": "#e69f00",
    "both": "#009e73",
    "random": "#8a8a8a",
    "kNN distance": "#d55e00",
    "probability": "#cc79a7",
}


class Scored:
    """Recordings with their probabilities, targets, ECG shares and distances."""

    def __init__(self, model: Classifier, part: ScoredPart, train: torch.Tensor) -> None:
        vectors = torch.from_numpy(part.vectors)
        self.model, self.targets, self.ecg_share = model, part.targets, part.ecg_share
        self.chances = model.probabilities(torch.from_numpy(part.logits)).numpy()
        doubts = model.doubts(self.chances, vectors, part.ecg_share)
        self.beyond = model.beyond(doubts, part.part.lead_counts.tolist())
        self.distance = doubts["distance"]
        self.knn = knn(train, vectors)

    def scores(self, kept: NDArray[np.bool_]) -> tuple[float, float]:
        """Macro AUC and accuracy."""
        card, p, y = self.model.card, self.chances[kept], self.targets[kept]
        limits = np.array([np.nan if t is None else t for t in card.thresholds])
        auc = metrics.macro(metrics.auc_per_class(p, y))
        return auc, metrics.accuracy(p, y, limits, multilabel=card.multilabel)

    def ranks(self) -> dict[str, NDArray[np.float64]]:
        """The higher, the sooner it is abstained from."""
        share, away, near = (_rank(x) for x in (-self.ecg_share, self.distance, self.knn))
        p = self.chances
        sure = np.abs(p - 0.5).mean(axis=1) if self.model.card.multilabel else p.max(axis=1)
        return {
            "ECG share": share,
            "distance": away,
            "both": np.maximum(share, away),
            "kNN distance": near,
            "probability": _rank(-sure),
        }


def _rank(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.argsort(np.argsort(x)).astype(np.float64)


def knn(train: torch.Tensor, vectors: torch.Tensor) -> NDArray[np.float64]:
    """The distance to the fifth nearest training recording, mean over the members."""
    made = [
        torch.cdist(own, near).topk(NEIGHBOR, largest=False).values[:, -1]
        for own, near in zip(vectors, train, strict=True)
    ]
    return torch.stack(made).mean(dim=0).double().numpy()


def curves(scored: Scored) -> dict[str, list[tuple[float, float]]]:
    """(AUC, accuracy) at each coverage, by each rank."""
    n = len(scored.targets)
    made = {}
    for name, rank in scored.ranks().items():
        order = np.argsort(rank, kind="stable")
        made[name] = [scored.scores(np.isin(np.arange(n), order[: round(c * n)])) for c in COVERAGE]
    random = np.random.default_rng(0)
    draws = [
        [scored.scores(random.permutation(n) < round(c * n)) for c in COVERAGE] for _ in range(50)
    ]
    made["random"] = [(float(a), float(b)) for a, b in np.mean(draws, axis=0)]
    return made


def auroc(less: NDArray[np.float64], more: NDArray[np.float64]) -> float:
    """The chance that one of `more` exceeds one of `less`."""
    both = np.concatenate([less, more])
    target = np.repeat([0, 1], [len(less), len(more)])[:, None].astype(np.uint8)
    return float(metrics.auc_per_class(both[:, None], target)[0])


def print_curves(made: dict[str, list[tuple[float, float]]]) -> None:
    for which, name in enumerate(("macro AUC", "accuracy")):
        print(f"\n| {name}, recordings kept | " + " | ".join(f"{c:.0%}" for c in COVERAGE) + " |")
        print("| --- " * (len(COVERAGE) + 1) + "|")
        for kind, values in made.items():
            print(f"| {kind} | " + " | ".join(f"{v[which]:.4f}" for v in values) + " |")


def shares(beyond: dict[str, NDArray[np.bool_]]) -> str:
    """Cells of a row: the share beyond each limit, and beyond any."""
    each = [*beyond.values(), np.any(list(beyond.values()), axis=0)]
    return " | ".join(f"{own.mean():.1%}" for own in each)


def print_noise(model: Classifier, frames: Frames, clean: Scored, train: torch.Tensor) -> None:
    print(f"\n| test recordings | {ABSTAINED} | AUC of all | of the rest | "
          "accuracy of all | of the rest | told by ECG share | by distance | by kNN |")  # fmt: skip
    print("| --- " * 12 + "|")
    rate = frames.spec.rate
    kinds = [kind for kind in kinds_at(rate) if kind != "mains-60"]  # like 50 Hz
    settings = [(kind, db) for kind in kinds for db in SNR_DB]
    for kind, db in [("", 0.0), *settings]:
        some = clean
        if kind:
            noisy = with_noise(frames, kind, db)
            some = Scored(model, score_part(model, labeled_part(model, noisy, TEST)), train)
        kept = ~np.any(list(some.beyond.values()), axis=0)
        auc, right = some.scores(np.ones(len(kept), bool))
        rest = some.scores(kept) if kept.sum() > 50 else (float("nan"), float("nan"))
        told = (
            auroc(-clean.ecg_share, -some.ecg_share),
            auroc(clean.distance, some.distance),
            auroc(clean.knn, some.knn),
        )
        print(
            f"| {f'{kind}, {db:g} dB' if kind else 'as recorded'} | {shares(some.beyond)} | "
            f"{auc:.3f} | {rest[0]:.3f} | {right:.3f} | {rest[1]:.3f} | "
            + " | ".join(f"{t:.3f}" for t in told)
            + " |",
            flush=True,
        )


def print_others(model: Classifier, stores: list[Path]) -> None:
    print(f"\n| test patients of another dataset | recordings | {ABSTAINED} |")
    print("| --- " * 6 + "|")
    for path in stores:
        card, own = model.encoders[0].card, None
        if not card.encoder.get("leads"):  # one lead at a time: those of the store if need be
            there = clocs.open_store(path).leads
            own = [lead for lead in there if lead in card.leads] or there
        table = clocs.predict(model, path, leads=own, split="test")
        table = table.filter(table["ecg_share"].is_not_null())
        chances = table.select(map(probability_column, model.card.labels)).to_numpy()
        share, far = (table[name].to_numpy() for name in ("ecg_share", "distance"))
        unplaced = replace(model, reference={})  # the distance is in the table
        doubts = unplaced.doubts(chances, torch.empty(0), share) | {"distance": far}
        beyond = model.beyond(doubts, table["leads_used"].list.len().to_list())
        print(f"| {path.name} | {table.height:,} | {shares(beyond)} |", flush=True)


def plot(made: dict[str, list[tuple[float, float]]], path: Path, title: str) -> None:
    from clocs.figures.canvas import hide_frame, new_figure, save
    from clocs.files import PUBLIC

    figure = new_figure(8.6, 3.2)
    for which, name in enumerate(("macro AUC", "accuracy")):
        axes = figure.add_subplot(1, 2, which + 1)
        hide_frame(axes)
        for kind, values in made.items():
            style = "--" if kind in ("random", "kNN distance", "probability") else "-"
            own = [v[which] for v in values]
            axes.plot([100 * c for c in COVERAGE], own, style, color=COLORS[kind], label=kind)
        axes.set_xlabel("recordings kept, %")
        axes.set_ylabel(name)
        axes.invert_xaxis()
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.suptitle(title, fontsize=10)
    save(figure, path, mode=PUBLIC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--other", type=Path, nargs="*", default=[])
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--no-noise", action="store_true")
    chosen = parser.parse_args()
    model, store = load_classifier(chosen.model), clocs.open_store(chosen.store)
    card = model.encoders[0].card
    frames = make_frames(store, spec=card.frame, leads=card.encoder.get("leads") or card.leads)
    parts = [score_part(model, labeled_part(model, frames, split)) for split in (0, TEST)]
    train = torch.from_numpy(parts[0].vectors)
    print(f"{model.card.name}, {len(parts[1].targets):,} test recordings of {store.path.name}; "
          f"limits {model.card.limits}")  # fmt: skip
    clean = Scored(model, parts[1], train)
    made = curves(clean)
    print_curves(made)
    if chosen.plot:
        plot(made, chosen.plot, f"{model.card.name}, test recordings of {store.path.name}")
    if not chosen.no_noise:
        print_noise(model, frames, clean, train)
    print_others(model, chosen.other)


if __name__ == "__main__":
    main()
