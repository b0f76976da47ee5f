"""Similarities between the views of a batch, as in the paper's figure 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.figures.canvas import COLORS, new_figure
from clocs.frames.frames import Frames
from clocs.frames.views import Instances, Views, instances
from clocs.kernels import keyed_random
from clocs.pretraining.losses import same_patient_pairs, unit
from clocs.pretraining.methods import find_method
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import embed_instances

_KINDS: Final = {
    "same instance": ("#eef7f2", "#007a5a"),
    "same patient": ("#fdf3dc", "#d98200"),
    "other patients": ("#f1f6fa", "#1f6fa8"),
}


def show_similarity(
    checkpoint: Checkpoint,
    frames: Frames,
    *,
    method: str = "cmsc",
    batch: int = 16,
    split: int = 2,
    seed: int = 0,
) -> Figure:
    """Draw the cosine similarities of a batch between two views, as in the paper's figure 2.

    The batch has fewer patients than instances, so that some patients repeat, and is sorted by
    patient. The hue shows the kind of pair, the shade its similarity.

    Args:
        checkpoint: The encoder.
        frames: Cut as the method needs them.
        method: Defines an instance and its views. The first view is compared with the one that
            differs from it in everything that the method varies: segment, lead or both.
        batch: Number of instances.
        split: 0 train, 1 validation, 2 test.
        seed: Random seed for the choice of the batch.
    """
    if checkpoint.encoder.leads:
        raise SettingError(
            "this figure compares views of one lead, and the encoder sees "
            f"{', '.join(checkpoint.encoder.leads)} at once; use an encoder of one lead"
        )
    rows = _choose(frames, method, batch, split, seed)
    both = replace(rows, windows=rows.windows.T.reshape(-1, 1))  # view A of all, then B
    a, b = unit(embed_instances([checkpoint], frames, both)[0].double()).chunk(2)
    similarity = (a @ b.T).numpy()
    patients = torch.from_numpy(frames.patient[rows.frame].astype("int64"))
    again = same_patient_pairs(patients[None])[0].numpy()
    kind = np.where(np.eye(batch, dtype=bool), 0, np.where(again, 1, 2))
    views = find_method(method).views
    number = {patient: i for i, patient in enumerate(dict.fromkeys(patients.tolist()), 1)}
    names = [
        f"patient {number[patient]}" + ("" if views.all_leads else f", {frames.leads[lead]}")
        for patient, lead in zip(patients.tolist(), rows.lead, strict=True)
    ]
    seen = [
        f"segment {segment + 1}" + (f", {frames.leads[lead]}" if views.all_leads else "")
        for segment, lead in _pair(views, frames)
    ]

    figure = new_figure(11.6, 7.8)
    grid = figure.add_gridspec(2, 3, width_ratios=(1.2, 6, 2.4), height_ratios=(1.2, 6))
    _matrix(figure.add_subplot(grid[1, 1]), similarity, kind)
    left, above = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[0, 1])
    _edge(left, frames, rows, view=0)
    left.set_xticks([])
    left.set_xlabel(f"view A: {seen[0]}", size=9)
    left.set_yticks(range(batch), names, size=7)
    _edge(above, frames, rows, view=1)
    above.xaxis.tick_top()
    above.set_yticks([])
    above.set_ylabel(f"view B: {seen[1]}", size=9)
    above.set_xticks(range(batch), names, size=7, rotation=90)
    for axes in (left, above):
        axes.tick_params(length=0)
    _spread(figure.add_subplot(grid[1, 2]), similarity, kind)
    figure.suptitle(
        f"{method.upper()}: similarities in a batch of {batch} instances of "
        f"{len(patients.unique())} {('training', 'validation', 'test')[split]} patients "
        f"(encoder: {checkpoint.card.method}, seed {checkpoint.card.seed})",
        size=11,
    )
    return figure


def _choose(frames: Frames, method: str, batch: int, split: int, seed: int) -> Instances:
    """A batch with two views each, some patients repeated, sorted by patient."""
    found = find_method(method)
    rows = instances(frames, of=found.of, views=found.views, split=split)
    if rows.windows.shape[1] < 2:
        raise SettingError(f"{method} has one view; choose a method with several, such as cmsc")
    if not 2 <= batch <= len(rows):
        raise SettingError(f"`batch` is {batch}; give 2 to {len(rows)}, the instances available")
    key = keyed_random.fold(keyed_random.member_keys([seed]), keyed_random.stream("show"))
    order = keyed_random.permutation(key, len(rows))[0].numpy()
    patient = frames.patient[rows.frame[order]]
    _, first, which = np.unique(patient, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))[which]  # patients in order of first appearance
    few = rank < round(0.6 * batch)
    # one instance of each of these patients, then more of them, then the rest
    urgency = np.where(few, np.where(first[which] == np.arange(len(order)), 0, 1), 2)
    take = np.argsort(urgency, kind="stable")[:batch]
    take = order[take[np.argsort(patient[take], kind="stable")]]
    width = len(frames.leads) if found.views.all_leads else 1
    a, b = (segment * width + lead for segment, lead in _pair(found.views, frames))
    windows, scale = rows.windows[take][:, [a, b]], rows.scale[take][:, [a, b]]
    return Instances(windows, scale, rows.frame[take], rows.lead[take])


def _pair(views: Views, frames: Frames) -> tuple[tuple[int, int], tuple[int, int]]:
    """(segment, lead) of view A and of view B, which differs in everything the method varies."""
    return (0, 0), (int(views.segments > 1), int(views.all_leads and len(frames.leads) > 1))


def _matrix(axes: Axes, similarity: NDArray[np.float64], kind: NDArray[np.int64]) -> None:
    low = float(similarity.min())
    shade = (similarity - low) / max(1.0 - low, 1e-9)
    maps = [LinearSegmentedColormap.from_list(name, ends) for name, ends in _KINDS.items()]
    pixels = np.choose(kind[..., None], [np.asarray(colors(shade)) for colors in maps])
    axes.imshow(pixels, aspect="auto", interpolation="nearest")
    if len(kind) <= 24:
        for (i, k), value in np.ndenumerate(similarity):
            ink = "white" if shade[i, k] > 0.6 else COLORS["text"]
            text = f"{value:.2f}".replace("0.", ".", 1)
            axes.text(k, i, text, ha="center", va="center", size=7, color=ink)
    for i, k in np.argwhere(kind < 2):
        edge = list(_KINDS.values())[kind[i, k]][1]
        axes.add_patch(Rectangle((k - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=edge))
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[])


def _edge(axes: Axes, frames: Frames, rows: Instances, *, view: int) -> None:
    """Two fifths of each view along an edge of the matrix: A to the left, B above, time upwards."""
    samples = frames.spec.samples * 2 // 5
    along = np.linspace(0, 1, samples)
    ends = (len(rows) - 0.5, -0.5)
    for i, start in enumerate(rows.windows[:, view]):
        trace = frames.signals[start : start + samples].astype(np.float64)
        middle, reach = (trace.max() + trace.min()) / 2, max(float(np.ptp(trace)), 1.0)
        across = i - 0.8 * (trace - middle) / reach
        points = (along, across) if view == 0 else (across, along)
        axes.plot(*points, color=COLORS["trace"], linewidth=0.6)
    if view == 0:
        axes.set(xlim=(0, 1), ylim=ends)
    else:
        axes.set(xlim=ends[::-1], ylim=(0, 1))
    axes.spines[:].set_visible(False)


def _spread(axes: Axes, similarity: NDArray[np.float64], kind: NDArray[np.int64]) -> None:
    """Every similarity as a dot, by kind of pair, and the means."""
    labels = []
    for row, (name, (_, color)) in enumerate(_KINDS.items()):
        values = similarity[kind == row]
        beside = 0.56 * (np.arange(values.size) * 0.618034 % 1) - 0.28
        axes.plot(row + beside, values, "o", color=color, markersize=3, alpha=0.6)
        if values.size:
            mean = float(values.mean())
            axes.plot([row - 0.36, row + 0.36], [mean, mean], color=COLORS["text"], linewidth=1.6)
            axes.text(row, 1.02, f"mean {mean:.2f}", ha="center", size=8)
        labels.append(f"{name.replace(' ', chr(10))}\n({values.size})")
    axes.set_xticks(range(len(labels)), labels)
    axes.set(xlim=(-0.5, 2.5), ylim=(min(0.0, float(similarity.min())) - 0.02, 1.06))
    axes.set_ylabel("cosine similarity", size=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, length=2.5)
    for label, (_, color) in zip(axes.get_xticklabels(), _KINDS.values(), strict=True):
        label.set_color(color)
