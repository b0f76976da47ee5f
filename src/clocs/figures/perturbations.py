"""What each perturbation does to a frame, as in the paper's appendix B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import scipy.signal
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.figures.canvas import COLORS, new_figure
from clocs.kernels import keyed_random
from clocs.pretraining import perturbations
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
    "stretch": "Stretched in time",
    "noise_snr": "Noise at a fixed SNR",
}
_TINT, _ORIGINAL = "#eaf0f6", "#f0b840"


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

    One row each: the whole frame, one second of it over the original, its spectrogram. If the last
    perturbation is SpecAugment, the spectrogram is the one it masks, with the masks hatched.

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
        name = ", then ".join(_TITLES[step.name] for step in chain.steps) or "Original"
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
    grid[0, 2].set_title("spectrogram, masks hatched", loc="left", size=9)
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
    """The perturbed signal in dB; before its last step if that is SpecAugment, with the masks."""
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
