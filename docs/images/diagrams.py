"""Charts and diagrams of the docs that no command of clocs draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import clocs
from clocs.figures.canvas import COLORS, hide_frame, new_figure
from clocs.recording import Recording

DOCS = Path(__file__).resolve().parents[1]
BLUE, SKY, INK = "#0072b2", "#9db8cc", COLORS["text"]


def dataset_ecgs(stores: Path) -> Figure:
    """The first recording of each label that is shown, of the datasets whose license allows it."""
    shown = {
        "chapman": ("Chapman: 10,646 patients, 12 leads, 10 s", "AFIB", "II"),
        "physionet2020": ("PhysioNet 2020: 6,877 patients, 12 leads, 6 to 144 s", "RBBB", "V2"),
        "physionet2017": ("PhysioNet 2017: 8,528 patients, 1 lead, 9 to 61 s", "N", "ECG"),
    }
    figure = new_figure(8, 4.6)
    rows = figure.subplots(len(shown), 1)
    for axes, (name, (title, label, lead)) in zip(rows, shown.items(), strict=True):
        store = clocs.open_store(stores / name)
        one = next(found for found in store.iter_recordings() if found.labels == (label,))
        strip(axes, one, lead, seconds=8.0)
        axes.set_title(f"{title}: one labeled {label}, lead {lead}", loc="left", fontsize=9)
    return figure


def strip(axes: Axes, recording: Recording, lead: str, *, seconds: float) -> None:
    """A stretch of one lead over ECG paper."""
    signal = recording.select([lead]).signal[0][: round(seconds * recording.rate)]
    signal = signal - np.nanmedian(signal)
    low, high = min(-0.5, float(np.nanmin(signal))), max(1.0, float(np.nanmax(signal)))
    for step, color in ((0.1, "#fdf0f0"), (0.5, COLORS["minor"])):
        for x in np.arange(0, seconds + 0.01, step * 0.4):
            axes.axvline(x, color=color, linewidth=0.5)
        for y in np.arange(np.floor(2 * low) / 2, high + 0.5, step):
            axes.axhline(y, color=color, linewidth=0.5)
    axes.plot(np.arange(len(signal)) / recording.rate, signal, color=INK, linewidth=0.8)
    axes.set(xlim=(0, seconds), ylim=(low - 0.2, high + 0.2), xticks=(), yticks=())
    axes.spines[:].set_visible(False)


def same_ecg(work: Path) -> Figure:
    """The sample, written by the libraries of six formats and read by clocs."""
    sample = clocs.read("sample")
    figure = new_figure(8, 4.2)
    places = figure.subplots(3, 2).flat
    for axes, (name, (suffix, write)) in zip(places, WRITERS.items(), strict=True):
        path = work / f"{name.lower()}{suffix}"
        write(path, sample)
        given: dict[str, Any] = {"rate": sample.rate} if name in RATE_GIVEN else {}
        found = clocs.read(path, **given).select(sample.leads)
        apart = 1000 * float(np.nanmax(np.abs(found.signal - sample.signal)))
        strip(axes, found, "V5", seconds=4.0)
        size = sum(one.stat().st_size for one in work.glob(f"{path.stem}.*")) / 1000
        text = f"{name}   {size:,.0f} kB, differs by at most {apart:.2g} µV"
        axes.set_title(text, loc="left", fontsize=9)
    return figure


def _wfdb(path: Path, one: Recording) -> None:
    import wfdb

    wfdb.wrsamp(
        path.stem,
        fs=one.rate,
        units=["mV"] * len(one.leads),
        sig_name=list(one.leads),
        d_signal=one.digital.T.astype(np.int64),
        fmt=["16"] * len(one.leads),
        adc_gain=[float(gain) for gain in one.gain],
        baseline=[int(base) for base in one.baseline],
        write_dir=str(path.parent),
    )


def _edf(path: Path, one: Recording) -> None:
    import edfio

    rows = zip(one.leads, one.signal, strict=True)
    kept = [
        edfio.EdfSignal(row, one.rate, label=lead, physical_dimension="mV") for lead, row in rows
    ]
    edfio.Edf(kept).write(path)


def _csv(path: Path, one: Recording) -> None:
    times = np.arange(one.samples) / one.rate
    head = ",".join(["time [s]", *(f"{lead} [mV]" for lead in one.leads)])
    np.savetxt(path, np.c_[times, one.signal.T], "%.4f", ",", header=head, comments="")


def _npy(path: Path, one: Recording) -> None:
    np.save(path, one.signal.astype(np.float32))


def _hdf5(path: Path, one: Recording) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["signals"] = one.signal.astype(np.float32)


def _mat(path: Path, one: Recording) -> None:
    from scipy.io import savemat

    savemat(path, {"ecg": one.signal}, do_compression=True)


WRITERS: dict[str, tuple[str, Callable[[Path, Recording], None]]] = {
    "WFDB": (".hea", _wfdb),
    "EDF": (".edf", _edf),
    "CSV": (".csv", _csv),
    "NumPy": (".npy", _npy),
    "HDF5": (".h5", _hdf5),
    "MATLAB": (".mat", _mat),
}
RATE_GIVEN = ("NumPy", "HDF5", "MATLAB")  # plain arrays, which do not state it


def three_lines(work: Path) -> Path:
    """What the first block of docs/python.md draws."""
    page = (DOCS / "python.md").read_text("utf-8")
    block = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    with chdir(work):
        exec(block[1], {})
    return work / "ecg.png"


def million(page: Path = DOCS / "scaling.md") -> Figure:
    """Processor time and memory of each step on a million recordings, as the page has them."""
    rows = re.findall(
        r"^(\w+) +1,000,000 +[\d,.]+ +([\d.]+) +([\d.]+)", page.read_text("utf-8"), re.MULTILINE
    )
    figure = new_figure(8, 2.9)
    left, right = figure.subplots(1, 2, sharey=True)
    names = [name for name, *_ in rows][::-1]
    for axes, column, label in (
        (left, 1, "processor seconds, a million recordings"),
        (right, 2, "peak memory, GiB"),
    ):
        values = [float(row[column]) for row in rows][::-1]
        bars = axes.barh(names, values, color=BLUE if column == 1 else SKY)
        axes.bar_label(bars, fmt="%.0f" if column == 1 else "%.2f", padding=3, fontsize=9)
        axes.set_xlabel(label, fontsize=9)
        axes.set_xlim(0, 1.15 * max(values))
        hide_frame(axes)
    right.axvline(3, color="gray", linestyle="--")
    right.set_xlim(0, 3.4)
    right.text(2.96, 0, "3 GiB", ha="right", fontsize=9, color="gray")
    return figure


def box(
    axes: Axes, x: float, y: float, title: str, lines: Sequence[str], *, size: tuple[float, float],
    color: str = "#eef3f7",
) -> None:  # fmt: skip
    """A box with a title and lines, x and y its middle."""
    width, height = size
    corner = (x - width / 2, y - height / 2)
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            corner, width, height, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=color, edgecolor="#7f95a6", linewidth=0.8,
        )
    )  # fmt: skip
    text = "\n".join(lines)
    top = y + height / 2 - 0.16
    axes.text(x, top, title, ha="center", va="top", fontsize=9.5, weight="bold", color=INK)
    axes.text(x, top - 0.3, text, ha="center", va="top", fontsize=8.5, color=INK, linespacing=1.35)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "#5b6f7e"})


def _sheet(width: float, height: float) -> tuple[Figure, Axes]:
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def exported() -> Figure:
    """What is inside an exported model, and what stays outside."""
    figure, axes = _sheet(8, 2.3)
    inside = ["cut into frames · normalize", "network", "mean over frames and leads"]
    title = "one file: module, ONNX, .pt2, hub"
    box(axes, 4.0, 1.3, title, [*inside, "temperature of a classifier"], size=(3.0, 1.6))
    outside = (
        (1.1, "before it", ["read, scale to mV", "resample to rate", "leads by name"]),
        (6.95, "after it", ["encoder: a vector", "classifier: calibrated", "probabilities"]),
    )
    for x, title, lines in outside:
        box(axes, x, 1.3, title, lines, size=(1.9, 1.3), color="#ffffff")
    between = (
        (2.05, 2.5, "(batch, leads, samples)\nfloat32, mV"),
        (5.5, 6.0, "(batch, dimension)\nor (batch, classes)"),
    )
    for start, end, text in between:
        arrow(axes, (start, 1.3), (end, 1.3))
        x = (start + end) / 2
        axes.text(x, 0.32, text, ha="center", va="top", fontsize=8, color=INK)
    return figure


def extended() -> Figure:
    """Where each kind of addition has its one place."""
    figure, axes = _sheet(8, 2.5)
    steps = (
        ("files", "a file format", "formats/"),
        ("dataset", "a dataset", "datasets/"),
        ("network", "an encoder", "encoders/"),
        ("pre-training", "a method", "pretraining/methods/"),
        ("scores", "a protocol", "evaluation/protocols/"),
    )
    for place, (stage, added, folder) in enumerate(steps):
        x = 0.82 + 1.59 * place
        box(axes, x, 1.75, stage, (), size=(1.2, 0.6), color="#ffffff")
        box(axes, x, 0.6, added, [folder], size=(1.5, 0.75))
        arrow(axes, (x, 0.98), (x, 1.44))
        if place + 1 < len(steps):
            arrow(axes, (x + 0.6, 1.75), (x + 0.99, 1.75))
    axes.text(0.07, 2.32, "from files to scores", fontsize=8.5, color=INK)
    axes.text(0.07, 0.06, "one module in src/clocs/, and its test", fontsize=8.5, color=INK)
    return figure
