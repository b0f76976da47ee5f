"""Figures that explain: the perturbations, the views of each method, the similarities of a batch.

They redraw the paper's appendix B and its figures 1 and 2 on real recordings and real encoders.
Made as objects, like those of `plots`, which saves them. Knows nothing about stores or training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import scipy.signal
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from clocs import keyed_random
from clocs.errors import SettingError
from clocs.figures.plots import COLOURS
from clocs.frames.views import FramesOfDataset, frame_for
from clocs.pretraining import perturbations
from clocs.pretraining.methods import find_method
from clocs.recording import FrameSpec, Recording

APPENDIX_B: Final = ("gaussian", "flip_y(always=true)", "flip_x(always=true)", "sa_t", "sa_f")
_TITLES: Final = {
    "gaussian": "Gaussian noise",
    "flip_y": "Flip$_Y$: backwards in time",
    "flip_x": "Flip$_X$: negated",
    "sa_t": "SpecAugment in time, SA$_t$",
    "sa_f": "SpecAugment in frequency, SA$_f$",
    "scaling": "Scaling",
    "permutation": "Permutation of pieces",
    "time_warp": "Time warp",
    "noise_snr": "Noise at a fixed SNR",
}
# As in the paper: green for the diagonal, yellow for the same patient, blue for negatives.
_SEGMENTS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_QUIET, _TINT, _ORIGINAL = "#b9b9b9", "#eaf0f6", "#f0b840"


def frame_of(recording: Recording, spec: FrameSpec, lead: str) -> NDArray[np.float64]:
    """(samples,) of the first frame of one lead, resampled to the frame where rates differ."""
    signal = recording.select([lead]).signal[0]
    samples = round(recording.seconds * spec.rate)
    if samples < spec.samples:
        raise SettingError(
            f"recording {recording.id} of {recording.seconds:g} s holds no frame of "
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

    A row each: the whole frame, one second of it over the original, its spectrogram. Where the
    last perturbation is SpecAugment, the spectrogram is the one that it inverts, masks hatched.

    Args:
        frame: (samples,) of one lead.
        spec: Its seconds and samples.
        chains: As `perturb.parse` reads them.
        amplitude: The unit of the values.
        title: Above the figure.
        seed: Of the draws; those of 68 mask what an ECG shows most.
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
        axes[0].plot(time, trace, color=COLOURS["trace"], linewidth=0.7)
        axes[0].axvspan(time[near.start], time[near.stop - 1], color=_TINT, zorder=0)
        axes[1].set_facecolor(_TINT)
        axes[1].plot(time[near], traces[0][near], color=_ORIGINAL, linewidth=2.4)
        axes[1].plot(time[near], trace[near], color=COLOURS["trace"], linewidth=0.8)
        image = _spectrogram(axes[2], x, chain, keys, spec)
        name = ", then ".join(_TITLES[step.name] for step in chain.steps) or "Original"
        axes[0].set_title(name, loc="left", size=10, color=COLOURS["text"])
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
    grid[0, 2].set_title("spectrogram, masks hatched", loc="left", size=9)
    for panel in grid[-1]:
        panel.set_xlabel("s", size=8)
    bar = figure.colorbar(image, ax=grid[:, 2], shrink=0.5, pad=0.02, aspect=40)
    bar.set_label("dB, relative to the original's strongest", size=8)
    bar.ax.tick_params(labelsize=8)
    figure.align_ylabels(grid[:, 0])
    figure.suptitle(title, size=11)
    return figure


def show_views(
    recording: Recording,
    *,
    dataset: FramesOfDataset,
    leads: Sequence[str],
    methods: Sequence[str] = ("cmsc", "cmlc", "cmsmlc"),
) -> Figure:
    """Draw how each method takes the views of one instance, as in the paper's figure 1.

    Each lead is drawn as high as its frame.

    Args:
        recording: A real one, at least as long as the views of every method.
        dataset: Its manifest, which has the frame of each method.
        leads: By name; where an instance is one lead, it is the first.
        methods: Of `METHODS`.
    """
    found = [find_method(name) for name in methods]
    specs = [frame_for(dataset, segments=method.views.segments) for method in found]
    seconds = max(s.seconds * m.views.segments for s, m in zip(specs, found, strict=True))
    if recording.seconds < seconds - 1e-6:
        raise SettingError(
            f"recording {recording.id} of {recording.seconds:g} s is shorter than the "
            f"{seconds:g} s that these methods look at; choose a longer one"
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
            ink = COLOURS["trace"] if lead < own else COLOURS["quiet"]
            axes.plot(time, 0.8 * trace - lead, color=ink, linewidth=0.7, zorder=2)
            for part in range(round(seconds / spec.seconds)):
                letter = chr(ord("A") + part * own + lead) if lead < own and part < count else ""
                _box(axes, spec.seconds, part, lead, letter)
        pairs = own * count * (own * count - 1) // 2
        of = "one lead" if method.of == "lead" else f"all {own} leads"
        axes.set_title(name.upper(), size=11, weight="bold", color=COLOURS["text"])
        axes.set_xlabel(
            f"seconds\n\none instance: {of}, {count} × {spec.seconds:g} s\n"
            f"{own * count} views, {pairs} pair{'s' if pairs > 1 else ''} of them",
            size=9,
        )
        axes.set_yticks([-lead for lead in range(len(leads))], list(leads))
        axes.set(xlim=(-0.15, seconds + 0.15), ylim=(0.45 - len(leads), 0.55))
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=2.5, labelsize=9)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(
        f"Views of recording {recording.id}: coloured, those of one instance; "
        "dashed, those of the patient's other instances",
        size=10,
    )
    return figure


def _spectrogram(
    axes: Axes, x: torch.Tensor, chain: perturbations.Chain, keys: torch.Tensor, spec: FrameSpec
) -> AxesImage:
    """What the chain makes of x, in dB; or what its last step, a SpecAugment, masks."""
    masks = chain.steps[-1].name in ("sa_t", "sa_f") if chain.steps else False
    shown = perturbations.Chain(chain.steps[:-1]) if masks else chain
    spectrum = perturbations.stft(shown(x, keys))[0, 0].abs().numpy()
    level = float(perturbations.stft(x).abs().max())
    second, hertz = perturbations.HOP / spec.rate, spec.rate / perturbations.WINDOW  # of a bin
    bins, columns = spectrum.shape
    image = axes.imshow(
        20 * np.log10(np.maximum(spectrum / max(level, 1e-12), 1e-6)),
        origin="lower",
        aspect="auto",
        extent=(-second / 2, (columns - 0.5) * second, -hertz / 2, (bins - 0.5) * hertz),
        vmin=-70,
        vmax=0,
        cmap="magma",
        interpolation="nearest",
    )
    if masks:
        step = chain.steps[-1]
        in_time = step.name == "sa_t"
        span, size = (axes.axvspan, second) if in_time else (axes.axhspan, hertz)
        step_keys = chain.keys_at(len(chain.steps) - 1, keys)
        options: dict[str, Any] = dict(step.options)
        hidden = perturbations.mask(step_keys, 1, columns if in_time else bins, **options)[
            0, 0
        ].numpy()
        edges = np.flatnonzero(np.diff(hidden.astype(int), prepend=0, append=0)) - 0.5
        for start, stop in edges.reshape(-1, 2) * size:
            span(start, stop, facecolor="white", edgecolor="#7a7a7a", hatch="////", linewidth=0)
    axes.set(xlim=(0, spec.seconds), ylim=(0, spec.rate / 2))
    return image


def _box(axes: Axes, seconds: float, part: int, lead: int, letter: str) -> None:
    """The frame around one view, with its letter; dashed where it is another instance's."""
    colour = _SEGMENTS[part % len(_SEGMENTS)] if letter else _QUIET
    left, low, width, height = part * seconds + 0.04, -lead - 0.46, seconds - 0.08, 0.92
    if letter:
        axes.add_patch(Rectangle((left, low), width, height, color=colour, alpha=0.1, linewidth=0))
        place: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
        spot = {"boxstyle": "square,pad=0.25", "facecolor": colour, "edgecolor": "none"}
        axes.text(left + 0.22, -lead + 0.34, letter, size=7.5, color="white", bbox=spot, **place)
    style: dict[str, Any] = {"linewidth": 1.5} if letter else {"linewidth": 0.9, "linestyle": "--"}
    frame = Rectangle((left, low), width, height, fill=False, edgecolor=colour, zorder=3, **style)
    axes.add_patch(frame)


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
