"""How many recordings with a fault made on purpose `clocs.check` finds, and how many without one.

    python -m benchmarks.electrodes pack STORE --to FOLDER
    python -m benchmarks.electrodes fit FOLDER --out src/clocs/measurements/electrodes.safetensors
    python -m benchmarks.electrodes score FOLDER
    python -m benchmarks.electrodes rules STORE --most 400
    python -m benchmarks.electrodes predict STORE --most 48

STORE is one of physionet2020, chapman or ptb, prepared with twelve leads. `pack` keeps the typical
beats. `fit` learns on the training patients of the first two and chooses limits on their validation
patients. `score` swaps the beats of test patients and of PTB Diagnostic, another hospital. `rules`
checks whole recordings of test patients and names those that are suspected, makes the other faults
in every fourth of them, and times `clocs.check`. `predict` gives a classifier the same recordings
with faults, and counts what it notices, abstains from and corrects, and how many labels change.
Copies of a recording are used once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from scipy.signal import butter, sosfiltfilt
from torch import nn

from clocs.frames.splits import assign
from clocs.measurements.beats import typical_beat
from clocs.measurements.check import (
    CHEST_FAULTS,
    LIMB_FAULTS,
    ElectrodeModel,
    check,
    fitted_electrodes,
    network_input,
)
from clocs.models.classifier import load_classifier, probability_column
from clocs.models.predict import predict_recordings
from clocs.recording import LIMB_LEADS, STANDARD_LEADS, Recording, quantize
from clocs.store.store import Store, open_store

Array = NDArray[Any]
EIGHT = [0, 1, *range(6, 12)]
LIMB, CHEST = list(LIMB_FAULTS), list(CHEST_FAULTS)
FALSE_ALARMS = (0.0025, 0.004)  # of validation recordings, by limb and chest
TOLD = 0.85  # of a fault that is worth reporting
STEPS, BATCH = 6000, 384
OFTEN = np.array([50, 14, 10, 10, 2, 2, 4, 5, 3]) / 100  # of LIMB in fitting, by how common it is


# What I and II become, in terms of I and II: as (I of I, II of I, I of II, II of II).
_LIMB = dict(
    zip(
        LIMB_FAULTS,
        (
            (1, 0, 0, 1), (-1, 0, -1, 1), (1, -1, 0, -1), (0, 1, 1, 0), (-1, 1, -1, 0),
            (0, -1, 1, -1), (1, -1, 0, 0), (0, 1, 0, 1), (-1, 0, 0, -1),
        ),
        strict=True,
    )
)  # fmt: skip
# What is taken from each chest lead, in I and II, where the right leg replaces an arm.
_CENTRAL = {
    "right arm and right leg may be swapped": (0, 1 / 3),
    "left arm and right leg may be swapped": (-1 / 3, 1 / 3),
}


def _chest() -> dict[str, Array]:
    """Sentence -> (6, 6): what V1 to V6 become."""
    right = np.eye(6)
    found = [right]
    for i, j in combinations(range(6), 2):
        swapped = right.copy()
        swapped[[i, j]] = right[[j, i]]
        found.append(swapped)
    found += [right[::-1].copy(), np.roll(right, -1, 0), np.roll(right, 1, 0)]
    for i in range(6):
        inverted = right.copy()
        inverted[i] *= -1
        found.append(inverted)
    return dict(zip(CHEST_FAULTS, [*found, -right], strict=True))


_CHEST = _chest()


def fault_matrix(limb: str, chest: str) -> Array:
    """(8, 8): what I, II and V1–V6 become; of the right leg, as if it were the left."""
    made = np.zeros((8, 8))
    made[:2, :2] = np.reshape(_LIMB[limb], (2, 2))
    made[2:, 2:] = _CHEST[chest]
    made[2:, :2] = -_CHEST[chest] @ np.tile(_CENTRAL.get(limb, (0, 0)), (6, 1))
    return made


def with_fault(signal: Array, limb: str, chest: str) -> Array:
    """(12, samples) of the standard leads -> the same, recorded with these faults."""
    derived = np.array([(1, 0), (0, 1), *LIMB_LEADS.values()])
    eight = fault_matrix(limb, chest) @ signal[[0, 1, *range(6, 12)]]
    # what file leads hold beyond I and II, such as rounding, stays out: it would give swaps away
    return np.concatenate([derived @ eight[:2], eight[2:]])


def recorded(store: Store) -> Iterator[tuple[Recording, Array]]:
    """The recordings with twelve leads, 5 s and no gaps; and the first 10 s in mV."""
    for one in store.iter_recordings():
        if one.unit == "mV" and {*STANDARD_LEADS} <= {*one.leads} and one.seconds >= 5:
            mv = one.select(STANDARD_LEADS).signal[:, : int(10 * one.rate)]
            if np.isfinite(mv).all():
                yield one, mv


def pack(store: Store, to: Path) -> None:
    dataset = store.manifest.dataset
    beats, heights, intervals, patients, seen = [], [], [], [], set()
    for whole, mv in recorded(store):
        patient, rate = whole.patient, whole.rate
        digest = hashlib.sha256(mv[:, : int(5 * rate)].tobytes()).digest()
        beat = typical_beat(mv, rate)
        if beat is None or digest in seen or (np.ptp(beat.values[EIGHT], axis=1) < 0.02).any():
            continue
        seen.add(digest)
        halves = (beat.values[EIGHT, 0::2] + beat.values[EIGHT, 1::2]) / 2
        beats.append(halves / np.sqrt((halves**2).mean()))
        heights.append(np.log(np.ptp(beat.values[6:], axis=1)))
        intervals.append(np.median(np.diff(beat.peaks)))
        patients.append(patient)
    to.mkdir(parents=True, exist_ok=True)
    part = assign(patients, dataset)
    np.savez(
        to / f"{dataset}.npz",
        beats=np.array(beats, np.float32),
        heights=np.array(heights, np.float32),
        interval=np.array(intervals, np.float32),
        part=part,
    )
    print(dataset, len(beats), "recordings; training, validation, test:", np.bincount(part))


def packed(folder: Path, dataset: str, part: int | None, *names: str) -> list[Array]:
    """Beats and intervals of a part, or what else is named."""
    found = np.load(folder / f"{dataset}.npz")
    rows = slice(None) if part is None else found["part"] == part
    return [found[name][rows] for name in names or ("beats", "interval")]


def both(folder: Path, part: int, *names: str) -> list[Array]:
    each = [packed(folder, one, part, *names) for one in ("physionet2020", "chapman")]
    return [np.concatenate(parts) for parts in zip(*each, strict=True)]


class Network(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.normal = nn.BatchNorm1d(inputs, affine=False, momentum=0.02)
        self.first, self.second = nn.Linear(inputs, 96), nn.Linear(96, 48)
        self.limb, self.chest = nn.Linear(48, len(LIMB)), nn.Linear(48, len(CHEST))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.first(self.normal(x).clamp(-5, 5)))
        x = torch.relu(self.second(self.dropout(x)))
        return self.limb(x), self.chest(x)


def fit(folder: Path, out: Path) -> None:
    beats, interval = both(folder, 0)
    matrices: Array = np.array([[fault_matrix(a, b) for b in CHEST] for a in LIMB], np.float32)
    numbers = np.random.default_rng(0)
    torch.manual_seed(0)
    network = Network(network_input(beats[:1], interval[:1]).shape[1])
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    for step in range(STEPS):
        rows = numbers.integers(0, len(beats), BATCH)
        limb = numbers.choice(len(LIMB), BATCH, p=OFTEN)
        chest = numbers.integers(0, len(CHEST), BATCH) * (numbers.random(BATCH) < 0.7)
        x: Array = matrices[limb, chest] @ np.roll(beats[rows], step % 3 - 1, axis=2)
        size = 0.03 * np.abs(numbers.standard_normal((BATCH, 8, 1), np.float32))
        x = x + size * numbers.standard_normal(x.shape, np.float32)
        given = torch.from_numpy(network_input(x, interval[rows])).float()
        a, b = network(given)
        loss = nn.functional.cross_entropy(a, torch.from_numpy(limb))
        loss = loss + nn.functional.cross_entropy(b, torch.from_numpy(chest))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 499:
            print(step + 1, f"{loss.item():.3f}", flush=True)
    model = ElectrodeModel(exported(network))
    beats, interval = both(folder, 1)
    save_file(model.weights | limits(model, beats, interval) | usual_heights(folder), out)


def usual_heights(folder: Path) -> dict[str, Array]:
    """Means and covariances of the logarithms of the chest leads' heights in mV."""
    (heights,) = both(folder, 0, "heights")
    made = {"height.mean": heights.mean(axis=0), "height.covariance": np.cov(heights.T)}
    return {name: np.ascontiguousarray(value, np.float32) for name, value in made.items()}


def limits(model: ElectrodeModel, beats: Array, interval: Array) -> dict[str, Array]:
    """The least certainty of each fault, from validation patients.

    One limit for all, since each one more is optimistic. Faults of which less than 85 % are found
    look like many untouched recordings: they are not reported, the worst first, so that
    the false alarms that FALSE_ALARMS allows go to the others. One that a limit of its own tells
    well comes back.
    """
    found = {}
    for place, (kind, names) in enumerate((("limb", LIMB), ("chest", CHEST))):
        clean, number = certain(model, beats, interval, place, "")
        faulty = [certain(model, beats, interval, place, name) for name in names]
        kept = set(range(1, len(names)))
        while True:
            alarms = np.where(np.isin(number, [*kept]), clean, 0)
            limit = max(0.5, np.quantile(alarms, 1 - FALSE_ALARMS[place]))
            told = {
                k: (np.isin(faulty[k][1], [*kept]) & (faulty[k][0] > limit)).mean() for k in kept
            }
            worst = min(told, key=told.__getitem__)
            if told[worst] >= TOLD:
                break
            kept.remove(worst)
        least = np.ones(len(names), np.float32)
        least[[*kept]] = limit
        for k in set(range(1, len(names))) - kept:  # one that is told well with a limit of its own
            own = max(
                0.5, np.quantile(np.where(number == k, clean, 0), 1 - FALSE_ALARMS[place] / 4)
            )
            if ((faulty[k][1] == k) & (faulty[k][0] > own)).mean() >= TOLD:
                least[k] = own
        found[f"{kind}.least"] = least
    return found


def certain(
    model: ElectrodeModel, beats: Array, interval: Array, place: int, fault: str
) -> tuple[Array, Array]:
    """Of each recording with a fault: the likeliest, and the certainty of it rather than none."""
    made = fault_matrix(*((fault, "") if place == 0 else ("", fault)))
    matrix: Array = made.astype(np.float32)
    chances = model(network_input(matrix @ beats, interval))[place]
    number = 1 + chances[:, 1:].argmax(axis=1)
    likeliest = chances[np.arange(len(chances)), number]
    return likeliest / (chances[:, 0] + likeliest), number


def exported(network: Network) -> dict[str, NDArray[np.float32]]:
    network.eval()
    state = {name: value.numpy() for name, value in network.state_dict().items()}
    found = {name: value for name, value in state.items() if name.split(".")[0] != "normal"}
    found["mean"] = state["normal.running_mean"]
    found["scale"] = 1 / np.sqrt(state["normal.running_var"] + network.normal.eps)
    return {name: np.ascontiguousarray(value, np.float32) for name, value in found.items()}


def score(folder: Path, part: int) -> None:
    model = fitted_electrodes()
    least = [model.weights[f"{name}.least"] for name in ("limb", "chest")]
    named = ("training", "validation", "test")[part]
    for dataset in ("physionet2020", "chapman", "ptb"):
        beats, interval = packed(folder, dataset, None if dataset == "ptb" else part)
        false = []
        for place in (0, 1):
            certainty, number = certain(model, beats, interval, place, "")
            false.append(certainty > least[place][number])
        print(f"\n{dataset}, {'all' if dataset == 'ptb' else named}: {len(beats)} recordings; "
              f"untouched: limb {false[0].mean():.2%}, chest {false[1].mean():.2%}, "
              f"either {(false[0] | false[1]).mean():.2%}")  # fmt: skip
        for place, names in ((0, LIMB), (1, CHEST)):
            for k, name in enumerate(names[1:], 1):
                certainty, number = certain(model, beats, interval, place, name)
                alarm = certainty > least[place][number]
                print(
                    f"{name}: found {alarm.mean():.1%}, named {(alarm & (number == k)).mean():.1%}"
                )


def as_recording(mv: Array, rate: float) -> Recording:
    digital, gain = quantize(mv)
    return Recording("one", "one", STANDARD_LEADS, rate, digital, gain, np.zeros(len(mv), np.int32))


def paced(mv: Array, rate: float, numbers: np.random.Generator) -> Array | None:
    """With a spike of 2 ms before every beat, of 1 to 4 mV in its largest lead, up to 150 Hz."""
    beat = typical_beat(mv, rate)
    if beat is None:
        return None
    spikes = np.zeros(mv.shape[1])
    width = max(1, round(0.002 * rate))
    for peak in beat.peaks - numbers.uniform(0.06, 0.2):
        at = round(peak * rate)
        if at > 0:
            spikes[at : at + width] = 1
    band = butter(2, min(150, 0.4 * rate), fs=rate, output="sos")
    spikes = np.asarray(sosfiltfilt(band, spikes))
    spikes /= max(np.abs(spikes).max(), 1e-9)
    direction = numbers.standard_normal(12)
    size = numbers.uniform(1, 4) / np.abs(direction).max()
    return np.asarray(mv + size * direction[:, None] * spikes)


def predict(store: Store, part: int, most: int, model: str) -> None:
    """What a classifier makes of test patients' recordings with faults."""
    numbers, classifier = np.random.default_rng(0), load_classifier(model)
    labels, limits = classifier.card.labels, np.array(classifier.card.thresholds, float)
    given: list[tuple[Array, float]] = []
    dataset = store.manifest.dataset
    for whole, mv in recorded(store):
        if assign([whole.patient], dataset)[0] == part and len(given) < most:
            given.append((mv, whole.rate))
        elif len(given) == most:
            break

    def changed(mv: Array, lead: int, make: Callable[[Array], Array]) -> Array:
        made = mv.copy()
        made[lead] = make(made[lead])
        return made

    def third(mv: Array, rate: float) -> Array:
        return changed(mv, 2, lambda one: np.roll(one, round(0.3 * rate)) - 0.5 * mv[0])

    limb, chest = "left and right arm may be swapped", "V1 and V5 may be swapped"
    faults: dict[str, Callable[[Array, float], Array | None]] = {
        "untouched": lambda mv, _: mv,
        "arms swapped": lambda mv, _: with_fault(mv, limb, ""),
        "right arm and left leg swapped": lambda mv, _: with_fault(mv, LIMB[2], ""),
        "V1 and V5 swapped": lambda mv, _: with_fault(mv, "", chest),
        "leads shuffled": lambda mv, _: mv[numbers.permutation(12)],
        "II inverted": lambda mv, _: changed(mv, 1, np.negative),
        "V3 inverted": lambda mv, _: changed(mv, 8, np.negative),
        "all inverted": lambda mv, _: -mv,
        "all times 10": lambda mv, _: 10 * mv,
        "all times 0.1": lambda mv, _: mv / 10,
        "all times 0.001": lambda mv, _: mv / 1000,
        "V2 times 10": lambda mv, _: changed(mv, 7, lambda one: 10 * one),
        "V5 also as V6": lambda mv, _: changed(mv, 11, lambda _: mv[10]),
        "II twelve times": lambda mv, _: np.tile(mv[1], (12, 1)),
        "III is not II - I": third,
        "V3 flat": lambda mv, _: changed(mv, 8, lambda one: 0 * one),
        "pacing spikes": lambda mv, rate: paced(mv, rate, numbers),
    }

    def chosen(table: Any) -> tuple[list[set[str]], Array]:
        """Labels by their probabilities, and whether it abstains but for faults."""
        chances = np.stack([table[probability_column(one)].to_numpy() for one in labels], axis=1)
        rows = [{labels[k] for k in np.flatnonzero(row)} for row in chances >= limits]
        words = [one or "" for one in table["abstained"]]
        others = ("too noisy", "no signal", "unlike the training")
        return rows, np.array([any(one in text for one in others) for text in words])

    right: list[set[str]] = []
    first: Array = np.zeros(0, np.bool_)
    print(f"{dataset}: {len(given)} recordings of test patients; {model}")
    print("| | before: predicted | labels changed | now: noticed | predicted | labels changed | "
          "corrected: predicted | labels changed |")  # fmt: skip
    print("| --- |" + " --- |" * 7)
    for name, make in faults.items():
        made = [make(mv, rate) for mv, rate in given]
        some = [as_recording(mv, rate) for mv, (_, rate) in zip(made, given, strict=True)
                if mv is not None]  # fmt: skip
        table = predict_recordings(classifier, some)
        rows, abstained = chosen(table)
        if not right:
            right, first = rows, abstained
        told = [any("may" in note or "flat" in note or "are the same" in note
                    or "is not" in note or "does not" in note for note in notes)
                for notes in table["notes"]]  # fmt: skip
        cells = [f"{int((~abstained).sum())}", _differ(rows, right, ~abstained & ~first)]
        now = np.array([one is None for one in table["abstained"]])
        cells += [f"{sum(told)}", f"{int(now.sum())}", _differ(rows, right, now & ~first)]
        fixed = predict_recordings(classifier, some, correct=True)
        after, _ = chosen(fixed)
        left = np.array([one is None for one in fixed["abstained"]])
        cells += [f"{int(left.sum())}", _differ(after, right, left & ~first)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    os._exit(0)  # a thread still waits to name the recordings that nobody reads


def _differ(rows: list[set[str]], right: list[set[str]], some: Array) -> str:
    pairs = zip(rows, right, some.tolist(), strict=True)
    return str(sum(a != b for a, b, counts in pairs if counts))


def rules(store: Store, part: int, most: int) -> None:
    """Untouched recordings by kind of finding; and faults that rules find."""
    numbers = np.random.default_rng(0)
    untouched: Counter[str] = Counter()
    found: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    count, spent = 0, 0.0

    def times(mv: Array, lead: int, factor: float) -> Array:
        made = mv.copy()
        made[lead] *= factor
        return made

    def twice(mv: Array) -> Array:
        made, pair = mv.copy(), numbers.permutation(12)[:2]
        made[pair[0]] = made[pair[1]]
        return made

    makes: dict[str, tuple[str, Callable[[Array], Array]]] = {
        "a limb lead inverted": ("inverted", lambda mv: times(mv, int(numbers.integers(6)), -1)),
        "a lead given twice": ("twice", twice),
        "leads shuffled": ("equations", lambda mv: mv[numbers.permutation(12)]),
        "all × 10 or more": ("gain", lambda mv: mv * 10 ** numbers.integers(1, 4)),
        "all ÷ 10 or more": ("gain", lambda mv: mv / 10 ** numbers.integers(1, 4)),
        "a lead × 10": ("gain", lambda mv: times(mv, int(numbers.integers(12)), 10)),
        "a lead ÷ 10": ("gain", lambda mv: times(mv, int(numbers.integers(12)), 0.1)),
    }
    dataset = store.manifest.dataset
    for whole, mv in recorded(store):
        rate = whole.rate
        if dataset != "ptb" and assign([whole.patient], dataset)[0] != part:
            continue
        if count >= most:
            break
        count += 1
        one = as_recording(mv, rate)
        start = time.process_time()
        findings = check(one)
        spent += time.process_time() - start
        kinds = {finding.kind for finding in findings}
        for finding in findings:
            print(f"{whole.patient} {whole.id}: {finding.sentence}", flush=True)
        untouched.update([*kinds, *(["any but flat"] if kinds - {"flat"} else [])])
        if count % 4:
            continue
        for name, (kind, make) in makes.items():
            kinds = {finding.kind for finding in check(as_recording(make(mv), rate))}
            tried[name] += 1
            found[f"{name}: as {kind}"] += kind in kinds
            found[f"{name}: as anything"] += bool(kinds)
        spiked = paced(mv, rate, numbers)
        if spiked is not None:
            tried["paced"] += 1
            found["paced: as paced"] += any(
                f.kind == "paced" for f in check(as_recording(spiked, rate))
            )
    print(f"{dataset}: {count} recordings, {1000 * spent / count:.0f} ms each")
    print("untouched:", {kind: f"{n / count:.2%}" for kind, n in untouched.items()})
    for name, n in found.items():
        print(f"{name}: {n / tried[name.split(':')[0]]:.1%}", flush=True)
    os._exit(0)  # a thread still waits to name the recordings that nobody reads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("pack", "fit", "score", "rules", "predict"))
    parser.add_argument("what", help="a store, or the folder of packed ones")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", type=int, default=2, help="0 training, 1 validation, 2 test")
    parser.add_argument("--most", type=int, default=100_000)
    parser.add_argument("--model", default="diagnoses-physionet2020")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.step == "pack":
        pack(open_store(given.what), given.to)
    elif given.step == "fit":
        fit(Path(given.what), given.out)
    elif given.step == "score":
        score(Path(given.what), given.part)
    elif given.step == "predict":
        predict(open_store(given.what), given.part, given.most, given.model)
    else:
        rules(open_store(given.what), given.part, given.most)


if __name__ == "__main__":
    main()
