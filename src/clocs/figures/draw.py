"""Figures that explain the methods (`clocs.figure`): views, perturbations, similarities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import scipy.signal
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.figures.canvas import COLORS, COLUMN, SUFFIXES, new_figure, save
from clocs.figures.scores import distance_histograms
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.frames.views import Instances, Views, frame_for, instances
from clocs.kernels import keyed_random
from clocs.patients.distances import PatientDistances, patient_distances
from clocs.pretraining import perturbations
from clocs.pretraining.losses import same_patient_pairs, unit
from clocs.pretraining.methods import METHODS
from clocs.pretraining.plan import find_method
from clocs.recording import FrameSpec, Recording, with_derived
from clocs.store.manifest import Manifest
from clocs.store.store import Store, open_store
from clocs.training.checkpoint import Checkpoint, load_checkpoint
from clocs.training.embed import embed_instances

_SEGMENTS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_QUIET: Final = "#b9b9b9"
APPENDIX_B: Final = ("gaussian", "flip_y(always=true)", "flip_x(always=true)", "sa_t", "sa_f")
_TINT, _ORIGINAL = "#eaf0f6", "#f0b840"
_KINDS: Final = {
    "same instance (green)": ("#eef7f2", "#007a5a"),
    "same patient (orange)": ("#fdf3dc", "#d98200"),
    "other patients (blue)": ("#f1f6fa", "#1f6fa8"),
}


def figure(
    kind: Literal["perturbations", "views", "similarity", "distances"],
    store: Path | str,
    *,
    checkpoint: Path | str | None = None,
    out: Path | str | None = None,
    recording: str | None = None,
    leads: Sequence[str] | None = None,
    perturb: Sequence[str] = (),
    seed: int = 0,
    split: Literal["train", "validation", "test", "all"] = "test",
    metric: Literal["euclidean", "cosine"] = "euclidean",
    dpi: int = 300,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Any], PatientDistances | None]:
    """Draw perturbations, views, the similarities of a batch, or distances between patients.

    The paper's appendix B, figures 1, 2 and 6. Distances are printed as well.

    Args:
        kind: What to draw.
        store: Store made by `clocs prepare`.
        checkpoint: For similarity and distances: the encoder, a file, a folder (then its first
            seed) or a name (`clocs info`).
        out: Figure to write: .png, .svg or .pdf; KIND.png by default.
        recording: For perturbations and views: recording ID; the first that is long enough by
            default.
        leads: Leads to draw, such as II,V2; of perturbations the first one.
        perturb: For perturbations: chain such as 'gaussian>sa_t'; the paper's five by default.
        seed: For perturbations and similarity: random seed.
        split: For distances: whose recordings, by patient.
        metric: For distances: Euclidean between vectors as they are, as in the paper; or cosine.
        dpi: Dots per inch of a PNG.
        progress: Called with (recordings done, recordings in total).

    Returns:
        The file and what it shows; and the distances, where those are drawn.
    """
    file = Path(out or f"{kind}.png")
    if file.suffix.lower() not in SUFFIXES or file.is_dir():
        raise SettingError(f"{file} is no figure; give a name that ends in {', '.join(SUFFIXES)}")
    if kind in ("similarity", "distances") and checkpoint is None:
        raise SettingError(f"{kind} are those of an encoder; give `checkpoint`")
    report, opened = None, open_store(store)
    if kind == "perturbations":
        drawn, facts = _perturbations(opened, recording, leads, perturb, seed)
    elif kind == "views":
        drawn, facts = _views(opened, recording, leads)
    elif kind == "similarity":
        drawn, facts = _similarity(opened, Path(str(checkpoint)), seed)
    else:
        report = patient_distances(
            str(checkpoint), opened, metric=metric, split=split, leads=leads, progress=progress
        )
        title = "{method} on {store}, {split} patients".format(**report.about)
        panels = {"": (report.intra, report.inter)}
        name = "Euclidean" if metric == "euclidean" else metric
        drawn, facts = distance_histograms(panels, title=title, metric=name), report.json()
    file.parent.mkdir(parents=True, exist_ok=True)
    save(drawn, file, dpi=dpi)
    return {"file": str(file), **facts}, report


def _perturbations(
    store: Store,
    recording: str | None,
    leads: Sequence[str] | None,
    chains: Sequence[str],
    seed: int,
) -> tuple[Figure, dict[str, Any]]:
    lead, spec = store.choose_leads(leads)[0], store.manifest.frame
    chosen = _recording(store, recording, [lead], spec.seconds)
    drawn = show_perturbations(
        first_frame(chosen, spec, lead),
        spec,
        chains=chains or APPENDIX_B,
        amplitude=chosen.unit,
        title=f"A recording, lead {lead}",
        seed=seed,
    )
    return drawn, {"recording": chosen.id, "lead": lead, "seed": seed}


def _views(
    store: Store, recording: str | None, leads: Sequence[str] | None
) -> tuple[Figure, dict[str, Any]]:
    names = store.choose_leads(leads)
    seconds = max(n * frame_for(store.manifest, segments=n).seconds for n in (1, 2))
    chosen = _recording(store, recording, names, seconds)
    drawn = show_views(chosen, dataset=store.manifest, leads=names)
    return drawn, {"recording": chosen.id, "leads": list(names)}


def _similarity(store: Store, checkpoint: Path, seed: int) -> tuple[Figure, dict[str, Any]]:
    loaded = load_checkpoint(checkpoint)
    own = METHODS.get(loaded.card.method)
    several = own is not None and (own.views.all_leads or own.views.segments > 1)
    method = loaded.card.method if several else "cmsc"
    spec = frame_for(store.manifest, segments=find_method(method).views.segments)
    has_all = set(loaded.card.leads) <= set(with_derived(store.leads))
    frames = make_frames(store, spec=spec, leads=loaded.card.leads if has_all else None)
    drawn = show_similarity(loaded, frames, method=method, batch=16, seed=seed)
    return drawn, {"method": method, "seed": seed, "leads": list(frames.leads)}


def _recording(store: Store, which: str | None, leads: Sequence[str], seconds: float) -> Recording:
    """The recording with this ID, or the first with these leads that is long enough."""
    if which is not None:
        return store.recording(which)
    lasts = (store.table["samples"] / store.table["rate"]).to_numpy()
    for row in store.rows_with(leads):
        if lasts[row] >= seconds - 1e-6:
            return store.recording(int(row))
    raise SettingError(
        f"{store.path} has no recording of {seconds:g} s or more with {', '.join(leads)}; "
        "choose other `leads`"
    )


def show_views(
    recording: Recording,
    *,
    dataset: Manifest,
    leads: Sequence[str],
    methods: Sequence[str] = ("cmsc", "cmlc", "cmsmlc"),
) -> Figure:
    """Draw how each method takes the views of one instance, as in the paper's figure 1.

    Each lead is scaled to the same height.

    Args:
        recording: At least as long as the views of every method.
        dataset: Its manifest, which has the frame of each method.
        leads: By name; where an instance is one lead, it is the first.
        methods: Names from `METHODS`.
    """
    found = [find_method(name) for name in methods]
    specs = [frame_for(dataset, segments=method.views.segments) for method in found]
    seconds = max(s.seconds * m.views.segments for s, m in zip(specs, found, strict=True))
    if recording.seconds < seconds - 1e-6:
        raise SettingError(
            f"recording {recording.id} of {recording.seconds:g} s is shorter than the "
            f"{seconds:g} s that these methods use; choose a longer one"
        )
    signal = recording.select(leads).signal[:, : round(seconds * recording.rate)]
    top, bottom = signal.max(axis=1, keepdims=True), signal.min(axis=1, keepdims=True)
    traces = (signal - (top + bottom) / 2) / np.maximum(top - bottom, 1e-9)
    time = np.arange(signal.shape[1]) / recording.rate
    figure = new_figure(4.3 * len(methods), 1.7 + 0.85 * len(leads))
    grid = figure.subplots(1, len(methods), squeeze=False, sharey=True)[0]
    for axes, name, method, spec in zip(grid, methods, found, specs, strict=True):
        count = method.views.segments
        own = len(leads) if method.of == "frame" else 1
        for lead, trace in enumerate(traces):
            ink = COLORS["trace"] if lead < own else COLORS["quiet"]
            axes.plot(time, 0.8 * trace - lead, color=ink, linewidth=0.7, zorder=2)
            for part in range(round(seconds / spec.seconds)):
                letter = chr(ord("A") + part * own + lead) if lead < own and part < count else ""
                _box(axes, spec.seconds, part, lead, letter)
        pairs = own * count * (own * count - 1) // 2
        of = "one lead" if method.of == "lead" else f"all {own} leads"
        axes.set_title(name.upper(), size=11, weight="bold", color=COLORS["text"])
        axes.set_xlabel(
            f"seconds\n\none instance: {of}, {count} × {spec.seconds:g} s\n"
            f"{own * count} views, {pairs} pair{'s' if pairs > 1 else ''}",
            size=9,
        )
        axes.set_yticks([-lead for lead in range(len(leads))], list(leads))
        axes.set(xlim=(-0.15, seconds + 0.15), ylim=(0.45 - len(leads), 0.55))
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=2.5, labelsize=9)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(
        "Views of a recording: one instance in color, the patient's other instances dashed",
        size=10,
    )
    return figure


def _box(axes: Axes, seconds: float, part: int, lead: int, letter: str) -> None:
    """A box around one view, with its letter; dashed for another instance's views."""
    color = _SEGMENTS[part % len(_SEGMENTS)] if letter else _QUIET
    left, low, width, height = part * seconds + 0.04, -lead - 0.46, seconds - 0.08, 0.92
    if letter:
        axes.add_patch(Rectangle((left, low), width, height, color=color, alpha=0.1, linewidth=0))
        place: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
        spot = {"boxstyle": "square,pad=0.25", "facecolor": color, "edgecolor": "none"}
        axes.text(left + 0.22, -lead + 0.34, letter, size=7.5, color="white", bbox=spot, **place)
    style: dict[str, Any] = {"linewidth": 1.5} if letter else {"linewidth": 0.9, "linestyle": "--"}
    frame = Rectangle((left, low), width, height, fill=False, edgecolor=color, zorder=3, **style)
    axes.add_patch(frame)


def first_frame(recording: Recording, spec: FrameSpec, lead: str) -> NDArray[np.float64]:
    """(samples,) of the first frame of one lead, resampled to the frame's rate."""
    signal = recording.select([lead]).signal[0]
    samples = round(recording.seconds * spec.rate)
    if samples < spec.samples:
        raise SettingError(
            f"recording {recording.id} of {recording.seconds:g} s is shorter than a frame of "
            f"{spec.seconds:g} s; choose a longer one"
        )
    if samples != signal.size:
        signal = scipy.signal.resample(signal, samples)
    return np.asarray(signal[: spec.samples])


def show_perturbations(
    frame: NDArray[np.floating],
    spec: FrameSpec,
    *,
    chains: Sequence[str] = APPENDIX_B,
    amplitude: str = "mV",
    title: str = "",
    seed: int = 68,
) -> Figure:
    """Draw a frame and what each perturbation makes of it, as in the paper's appendix B.

    One row each: the whole frame, one second of it over the original, its spectrogram.

    Args:
        frame: (samples,) of one lead.
        spec: Its seconds and samples.
        chains: As `perturbations.parse` reads them.
        amplitude: The unit of the signal.
        title: Above the figure.
        seed: Random seed; with 68 the masks cover typical parts of an ECG.
    """
    x = torch.from_numpy(np.asarray(frame, np.float64))[None, None]
    keys = keyed_random.member_keys([seed])
    rows = [perturbations.Chain(()), *map(perturbations.parse, chains)]
    traces = [chain(x, keys)[0, 0].numpy() for chain in rows]
    figure = new_figure(11, 0.8 + 1.5 * len(rows))
    grid = figure.subplots(len(rows), 3, sharex="col", squeeze=False, width_ratios=(5, 2.2, 2.8))
    time = np.arange(spec.samples) / spec.rate
    middle = round(0.45 * spec.samples)
    near = slice(middle, min(middle + round(spec.rate), spec.samples))
    low, high = min(map(np.min, traces)), max(map(np.max, traces))
    margin = max(0.06 * (high - low), 1e-3)
    image: Any = None
    for axes, chain, trace in zip(grid, rows, traces, strict=True):
        axes[0].plot(time, trace, color=COLORS["trace"], linewidth=0.7)
        axes[0].axvspan(time[near.start], time[near.stop - 1], color=_TINT, zorder=0)
        axes[1].set_facecolor(_TINT)
        axes[1].plot(time[near], traces[0][near], color=_ORIGINAL, linewidth=2.4)
        axes[1].plot(time[near], trace[near], color=COLORS["trace"], linewidth=0.8)
        image = _spectrogram(axes[2], x, chain, keys, spec)
        name = " > ".join(step.name for step in chain.steps) or "original"
        axes[0].set_title(name, loc="left", size=10, color=COLORS["text"])
        axes[0].set_ylabel(amplitude, size=8)
        axes[2].set_ylabel("Hz", size=8)
        for panel in axes:
            panel.tick_params(labelsize=8, length=2.5)
            panel.spines[["top", "right"]].set_visible(False)
            panel.set_xlim(0, spec.seconds)
        axes[1].set_xlim(time[near.start], time[near.stop - 1])
        for panel in axes[:2]:
            panel.set_ylim(low - margin, high + margin)
    grid[0, 1].set_title("one second, original in yellow", loc="left", size=9)
    grid[0, 2].set_title("spectrogram", loc="left", size=9)
    for panel in grid[-1]:
        panel.set_xlabel("s", size=8)
    bar = figure.colorbar(image, ax=grid[:, 2], shrink=0.5, pad=0.02, aspect=40)
    bar.set_label("dB, relative to the original's strongest", size=8)
    bar.ax.tick_params(labelsize=8)
    figure.align_ylabels(grid[:, 0])
    figure.suptitle(title, size=11)
    return figure


def _spectrogram(
    axes: Axes, x: torch.Tensor, chain: perturbations.Chain, keys: torch.Tensor, spec: FrameSpec
) -> AxesImage:
    """The perturbed signal in dB, relative to the original's strongest."""
    spectrum = perturbations.stft(chain(x, keys))[0, 0].abs().numpy()
    level = max(float(perturbations.stft(x).abs().max()), 1e-12)
    image = axes.imshow(
        20 * np.log10(np.maximum(spectrum / level, 1e-6)),
        origin="lower",
        aspect="auto",
        extent=(0, spec.seconds, 0, spec.rate / 2),
        vmin=-70,
        vmax=0,
        cmap="magma",
        interpolation="nearest",
    )
    return image


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
    patient. The hue shows the kind of pair, the shade and the number, in hundredths, its
    similarity. It is as wide as a column of a journal, 89 mm.

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
        str(number[patient]) + ("" if views.all_leads else f", {frames.leads[lead]}")
        for patient, lead in zip(patients.tolist(), rows.lead, strict=True)
    ]
    seen = [
        f"segment {segment + 1}" + (f", {frames.leads[lead]}" if views.all_leads else "")
        for segment, lead in _pair(views, frames)
    ]
    of = "patient" if views.all_leads else "patient, lead"

    figure = new_figure(COLUMN, 1.18 * COLUMN)
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 5), height_ratios=(1, 5))
    _matrix(figure.add_subplot(grid[1, 1]), similarity, kind)
    left, above = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[0, 1])
    _edge(left, frames, rows, view=0)
    left.set_xticks([])
    left.set_ylabel(f"view A, {seen[0]} ({of})", size=6.5)
    left.set_yticks(range(batch), names, size=6)
    _edge(above, frames, rows, view=1)
    above.xaxis.tick_top()
    above.set_yticks([])
    above.set_title(f"view B, {seen[1]} ({of})", size=6.5)
    above.set_xticks(range(batch), names, size=6, rotation=90)
    for axes in (left, above):
        axes.tick_params(length=0, pad=1)
    words = [f"{name}: mean {similarity[kind == i].mean():.2f}" for i, name in enumerate(_KINDS)]
    about = (
        f"{method.upper()}, {batch} instances of {len(patients.unique())} "
        f"{('training', 'validation', 'test')[split]} patients; encoder {checkpoint.card.method}, "
        f"seed {checkpoint.card.seed}"
    )
    figure.supxlabel("\n".join([*words, about]), size=6.5)
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
    if len(kind) <= 16:  # in hundredths: two digits can be read in the width of a column
        for (i, k), value in np.ndenumerate(similarity):
            ink = "white" if shade[i, k] > 0.6 else COLORS["text"]
            axes.text(k, i, f"{100 * value:.0f}", ha="center", va="center", size=5, color=ink)
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
