"""How well P, QRS and T are marked in LUDB's 200 recordings, beside NeuroKit2.

    python -m benchmarks.delineation neurokit LUDB [MARKS.json ...] --out neurokit.json
    python -m benchmarks.delineation score LUDB MARKS.json ...
    python -m benchmarks.delineation speed LUDB

LUDB is its folder. `neurokit` writes the marks of `ecg_delineate` (dwt, peak) in each lead, which
takes about 10 minutes, or of the recordings of other files alone; it goes on where it stopped, and
needs neurokit2. `score` prints, for each file of marks, what was found within 150 ms of the
annotators' marks. Marks outside the stretch that was annotated in a lead do not count. Files of
several folds are scored together where their names differ in the number at the end alone. First
of all, it prints how consistent the annotators are. `speed` prints the processor time of
`clocs.measure`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
WAVES, POINTS = ("P", "QRS", "T"), ("onset", "peak", "offset")
RATE, NEAR = 500, 0.15  # Hz, s
PEAK, IGNORED = 0.012, -1  # s of a peak that a network learns
_CODES = {24: 0, 1: 1, 27: 2}  # WFDB's codes of waves
_OPENS, _CLOSES, _SKIP = 39, 40, 59
# By recording and lead: (waves, 4), which of WAVES, onset, peak and offset in s, nan if unmarked.
Marks = dict[str, dict[str, Array]]


@dataclass(frozen=True)
class Annotated:
    """A recording of LUDB: (12, 5000) at one scale, and the annotators' marks by lead."""

    name: str
    signal: Array
    marks: dict[str, Array]


def ludb(folder: Path) -> Iterator[Annotated]:
    """Its recordings. III = II - I holds in the file's steps, not with the header's gains."""
    for name in sorted((path.stem for path in (folder / "data").glob("*.dat")), key=int):
        steps = np.fromfile(folder / "data" / f"{name}.dat", "<i2").reshape(-1, 12)
        marks = {
            lead: annotated((folder / "data" / f"{name}.{lead.lower()}").read_bytes())
            for lead in LEADS
        }
        yield Annotated(name, steps.T / 1000, marks)


def annotated(data: bytes) -> Array:
    """A WFDB annotation file -> (waves, 4), as in `Marks`."""
    words, at, time = np.frombuffer(data, "<u2").tolist(), 0, 0
    found: list[list[float]] = []
    opened = np.nan
    while at < len(words) and words[at]:
        code, interval = words[at] >> 10, words[at] & 1023
        at += 1
        if code == _SKIP:
            time += (words[at] << 16) + words[at + 1]
            at += 2
            continue
        time += interval
        if code == _OPENS:
            opened = time / RATE
        elif code in _CODES:
            found.append([_CODES[code], opened, time / RATE, np.nan])
            opened = np.nan
        elif code == _CLOSES and found:
            found[-1][3] = time / RATE
    return np.array(found).reshape(-1, 4)


def matched(truth: Array, found: Array) -> list[tuple[int, int]]:
    """Pairs of times at most NEAR apart, the nearest first, each time once."""
    apart = np.abs(truth[:, None] - found[None])
    pairs, taken = [], (set[int](), set[int]())
    rows, columns = np.nonzero(apart <= NEAR)
    for place in np.argsort(apart[rows, columns], kind="stable"):
        pair = int(rows[place]), int(columns[place])
        if pair[0] not in taken[0] and pair[1] not in taken[1]:
            pairs.append(pair)
            taken[0].add(pair[0])
            taken[1].add(pair[1])
    return pairs


def scores(
    truth: Mapping[str, Mapping[str, Array]], found: Mapping[str, Mapping[str, Array]]
) -> dict[tuple[str, str], dict[str, float]]:
    """Of each wave and point: sensitivity, PPV, F1, mean and sd of the error in ms.

    An error is positive where the mark is later than the annotators'.
    """
    table = {}
    for wave, name in enumerate(WAVES):
        for column, point in enumerate(POINTS, start=1):
            hits = misses = extra = 0
            errors: list[float] = []
            for recording, leads in truth.items():
                for lead, marks in leads.items():
                    if not len(marks):
                        continue
                    low, high = np.nanmin(marks[:, 1:]), np.nanmax(marks[:, 1:])
                    waves = marks[marks[:, 0] == wave]
                    own = waves[np.isfinite(waves[:, column]), column]
                    open_ended = waves[np.isnan(waves[:, column]), 2]  # peaks of such waves
                    made = found[recording].get(lead, np.zeros((0, 4)))
                    made = made[made[:, 0] == wave, column] if len(made) else np.zeros(0)
                    made = made[np.isfinite(made)]
                    pairs = matched(own, made)
                    judged = (made >= low) & (made <= high)
                    judged &= ~(np.abs(made[:, None] - open_ended[None]) <= NEAR).any(axis=1)
                    judged[[b for _, b in pairs]] = False
                    hits, misses = hits + len(pairs), misses + len(own) - len(pairs)
                    extra += int(judged.sum())
                    errors += [float(made[b] - own[a]) * 1000 for a, b in pairs]
            sensitivity, ppv = hits / max(1, hits + misses), hits / max(1, hits + extra)
            table[name, point] = {
                "sensitivity": sensitivity,
                "ppv": ppv,
                "f1": 2 * sensitivity * ppv / max(1e-9, sensitivity + ppv),
                "mean": float(np.mean(errors)) if errors else np.nan,
                "sd": float(np.std(errors)) if errors else np.nan,
                "waves": hits + misses,
            }
    return table


def print_scores(title: str, table: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
    """As rows of a Markdown table."""
    print(f"\n| {title} | sensitivity | PPV | F1 | error, ms |\n|{' --- |' * 5}")
    for (wave, point), one in table.items():
        cells = " | ".join(f"{100 * one[name]:.2f}" for name in ("sensitivity", "ppv", "f1"))
        print(f"| {wave} {point} | {cells} | {one['mean']:+.1f} ± {one['sd']:.1f} |")


def print_intervals(truth: Marks, found: Marks) -> None:
    """How much intervals of these marks differ from intervals of the annotators' marks."""
    from clocs.measurements.intervals import find_beats, measure_beats
    from clocs.measurements.waves import Waves

    def values(marks: Mapping[str, Array], low: float, high: float) -> dict[str, Any]:
        waves = {}
        for lead, rows in marks.items():
            inside = rows[(rows[:, 2] >= low) & (rows[:, 2] <= high)]
            waves[lead] = Waves(*(inside[inside[:, 0] == kind][:, 1:] for kind in range(3)))
        return measure_beats(find_beats(waves), np.zeros((len(marks), 5000)), RATE)

    pairs = []
    for name, own in truth.items():
        rows = np.concatenate([*own.values()])
        ends = np.nanmin(rows[:, 1:]), np.nanmax(rows[:, 1:])
        pairs.append((values(own, *ends), values(found[name], *ends)))
    print("\n| interval | recordings | error, median (10 to 90 %) |\n| --- | --- | --- |")
    for name in ("heart_rate", "pr", "qrs", "qt", "qtc_bazett"):
        apart = [b[name].value - a[name].value for a, b in pairs if a[name].value and b[name].value]
        low, middle, high = np.percentile(apart, (10, 50, 90))
        print(f"| {name} | {len(apart)} | {middle:+.1f} ({low:+.1f} to {high:+.1f}) |")
    known = [(a["pr"].value is None, b["pr"].value is None) for a, b in pairs]
    print(
        f"| no PR | {sum(a for a, _ in known)} | found in {sum(a and b for a, b in known)}, ",
        end="",
    )
    print(f"and in {sum(b and not a for a, b in known)} others |")


def print_consistency(truth: Marks) -> None:
    """How much the annotators' widths of a wave differ from beat to beat within a lead."""
    print("\n| annotators, within a lead | sd of the width, ms |\n| --- | --- |")
    for wave, name in enumerate(WAVES):
        total, count = 0.0, 0
        for rows in (rows for leads in truth.values() for rows in leads.values()):
            widths = 1000 * (rows[:, 3] - rows[:, 1])[rows[:, 0] == wave]
            widths = widths[np.isfinite(widths)]
            if len(widths) > 2:
                total, count = total + len(widths) * widths.var(), count + len(widths) - 1
        print(f"| {name} | {(total / count) ** 0.5:.1f} |")


def print_speed(folder: Path, most: int = 20) -> None:
    """Processor time per recording, reading included, in one thread."""
    import clocs

    paths = sorted((folder / "data").glob("*.hea"))[: most + 1]
    clocs.measure(clocs.read(paths[0]))
    began = time.process_time()
    for path in paths[1:]:
        clocs.measure(clocs.read(path))
    each = (time.process_time() - began) / most
    print(
        f"{1000 * each:.0f} ms of processor time per recording, "
        f"{60 / each:,.0f} recordings per minute and core"
    )


def neurokit(one: Annotated, method: str) -> dict[str, Array]:
    """Marks by lead of one of NeuroKit2's methods; none in a lead where it fails."""
    import neurokit2

    warnings.simplefilter("ignore")
    marks = {}
    for lead, signal in zip(LEADS, one.signal, strict=True):
        marks[lead] = np.zeros((0, 4))
        try:
            clean = neurokit2.ecg_clean(signal, sampling_rate=RATE)
            peaks = neurokit2.ecg_peaks(clean, sampling_rate=RATE)[1]["ECG_R_Peaks"]
            _, told = neurokit2.ecg_delineate(clean, peaks, RATE, method=method)
        except (ValueError, IndexError, ZeroDivisionError, KeyError, TypeError) as error:
            print(one.name, lead, method, error, file=sys.stderr)
            continue
        told = {"ECG_R_Peaks": peaks, **told}
        marks[lead] = np.concatenate([_columns(told, wave) for wave in range(3)])
    return marks


def _columns(told: Mapping[str, Any], wave: int) -> Array:
    """(points, 4): NeuroKit's lists of a wave; points of one beat are not kept together."""
    rows = []
    for column, name in enumerate(("Onsets", "Peaks", "Offsets"), start=1):
        times = np.asarray(told.get(f"ECG_{'PRT'[wave]}_{name}", ()), float) / RATE
        own = np.full((int(np.isfinite(times).sum()), 4), np.nan)
        own[:, 0], own[:, column] = wave, times[np.isfinite(times)]
        rows.append(own)
    return np.concatenate(rows)


def targets(one: Annotated, steps: int, rate: float) -> tuple[Array, Array]:
    """What a network learns: (12, steps) none or the wave, (12, 3, steps) nearness to peaks.

    IGNORED outside of what was annotated, and around waves without an onset or offset.
    """
    label = np.full((len(LEADS), steps), IGNORED, np.int8)
    peaks = np.zeros((len(LEADS), len(WAVES), steps), np.float16)
    at = np.arange(steps) / rate
    for place, lead in enumerate(LEADS):
        waves, own = one.marks[lead], label[place]
        own[(at >= np.nanmin(waves[:, 1:])) & (at < np.nanmax(waves[:, 1:]))] = 0
        for wave, onset, peak, offset in waves:
            if np.isnan(onset + offset):
                own[np.abs(at - peak) < NEAR] = IGNORED
            else:
                own[(at >= onset) & (at < offset)] = 1 + int(wave)
            near = np.exp(-0.5 * ((at - peak) / PEAK) ** 2)
            peaks[place, int(wave)] = np.maximum(peaks[place, int(wave)], near)
    return label, peaks


def as_marks(waves: Iterable[tuple[str, Any]]) -> dict[str, Array]:
    """Leads and their `Waves` -> as in `Marks`."""
    return {
        lead: np.concatenate(
            [
                np.column_stack([np.full(len(rows), kind), rows])
                for kind, rows in enumerate((own.p, own.qrs, own.t))
            ]
        )
        for lead, own in waves
    }


def save_marks(path: Path, marks: Marks) -> None:
    """As JSON, times in ms."""
    rows = {
        name: {lead: _as_ms(own) for lead, own in leads.items()} for name, leads in marks.items()
    }
    path.write_text(json.dumps(rows), encoding="utf-8")


def _as_ms(marks: Array) -> list[list[float | None]]:
    times = np.round(marks * [1, 1000, 1000, 1000], 1).tolist()
    return [[None if np.isnan(value) else value for value in row] for row in times]


def load_marks(path: Path) -> Marks:
    """What `save_marks` wrote."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: {
            lead: np.array(own, float).reshape(-1, 4) / [1, 1000, 1000, 1000]
            for lead, own in leads.items()
        }
        for name, leads in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("neurokit", "score", "speed"))
    parser.add_argument("ludb", type=Path)
    parser.add_argument("marks", type=Path, nargs="*")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.what == "neurokit":
        only = {name for path in given.marks for name in load_marks(path)}
        chosen = (one for one in ludb(given.ludb) if not only or one.name in only)
        for one, method in itertools.product(chosen, ("dwt", "peak")):
            path = given.out.with_stem(f"{given.out.stem}-{method}")
            made = load_marks(path) if path.exists() else {}
            if one.name not in made:
                save_marks(path, made | {one.name: neurokit(one, method)})
        return
    if given.what == "speed":
        print_speed(given.ludb)
        return
    truth = {one.name: one.marks for one in ludb(given.ludb)}
    print_consistency(truth)
    for title, paths in itertools.groupby(given.marks, lambda path: path.stem.rstrip("0123456789")):
        found: Marks = {}
        for path in paths:
            found |= load_marks(path)
        known = {name: truth[name] for name in found}
        print_scores(f"{title.rstrip('-')}, {len(known)} recordings", scores(known, found))
        if np.isfinite(np.concatenate([*next(iter(found.values())).values()])).all():
            print_intervals(known, found)


if __name__ == "__main__":
    main()
