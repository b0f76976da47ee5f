"""Signal quality on the recordings of CinC 2011 (set-a), which people accepted or not.

    python -m benchmarks.signal_quality GIT [--out src/clocs/measurements/quality.json] [--only 998]

GIT is a git directory of LinusKra/ECGAssess. Its set-a holds 998 twelve-lead recordings with a
verdict; its lists hold verdicts on every lead of 450 of them. Printed are AUROCs with 95 %
intervals over recordings: of quality, in ten folds by recording; of NeuroKit2's quality (the mean
over leads of `averageQRS`), where it is installed; and of a plain rule, how many leads are flat or
have a range outside of 0.1 to 10 mV. `--out` writes coefficients fitted on all of them.

Few leads of set-a have mains or clipped tops. So that these count, the fit also sees good leads
that were spoiled on purpose, as bad ones; none of them is scored.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from clocs.measurements.quality import MEASURES, QualityModel, mean_log, measure_leads
from research.encoder_data import blobs, cinc2011

Array = NDArray[Any]
COMMIT = "2386190e84e8759d9795622320dee1f81b8f60a0"
RATE, FOLDS, DRAWS = 500.0, 10, 2000


def verdicts(git: str) -> tuple[dict[str, int], dict[str, list[int]]]:
    """By recording: 1 where it was not accepted; and, of some, the same of each lead."""
    lists = {path: data.decode() for path, data in blobs(git, COMMIT, r"^Lists/.*\.txt$")}
    groups = {"I": 0, "II": 1}
    whole = {
        name: verdict
        for group, verdict in groups.items()
        for name in lists[f"Lists/RECORDS-Group {group}.txt"].split()
    }
    leads: dict[str, list[int]] = {}
    for part, count in (("Testing", 175), ("Training", 50)):
        for group in groups:
            folder = f"Lists/{part} Data Set"
            names = lists[f"{folder}/{part} {count} Group {group} recording names.txt"].split()
            rows = lists[f"{folder}/Annotation {part} Set Group {group}.txt"].split()
            for number, name in enumerate(names):
                leads[name] = [int(one) for one in rows[12 * number : 12 * number + 12]]
    return whole, leads


def spoil(mv: Array, numbers: np.random.Generator) -> tuple[Array, Array]:
    """With four leads under mains, wander or noise, or clipped; and which."""
    made, seconds = mv.copy(), np.arange(mv.shape[1]) / RATE
    chosen = numbers.permutation(len(mv))[:4]
    for lead in chosen:
        own = mv[lead] - np.median(mv[lead])
        size = np.percentile(np.abs(own), 99)
        mains = np.sin(2 * np.pi * numbers.choice((50, 60)) * seconds)
        wave = np.sin(2 * np.pi * (numbers.uniform(0.1, 0.5) * seconds + numbers.random()))
        top = numbers.uniform(0.1, 0.3) * size
        made[lead] = numbers.choice(
            np.array(
                [
                    own + size * numbers.uniform(1, 4) * mains,
                    own + size * numbers.uniform(4, 20) * wave,
                    own + size * numbers.uniform(0.5, 2) * numbers.standard_normal(mv.shape[1]),
                    np.clip(own, -top, top),
                ]
            )
        )
    return made, np.isin(np.arange(len(mv)), chosen)


def fit(measured: Array, spoiled: Array, bad: Array, bad_leads: Array, rows: Array) -> QualityModel:
    """measured, spoiled: (recordings, leads, MEASURES), nan; bad_leads: -1 where unknown."""
    own = rows[bad_leads[rows, 0] >= 0]
    changed = np.isfinite(spoiled[own]).all(axis=2) & (bad_leads[own] == 0)
    x = np.concatenate([measured[own].reshape(-1, len(MEASURES)), spoiled[own][changed]])
    y = np.concatenate([bad_leads[own].ravel(), np.ones(changed.sum(), int)])
    mean, scale = x.mean(axis=0), x.std(axis=0)
    found = LogisticRegression(C=0.3, max_iter=5000).fit((x - mean) / scale, y)
    weight = found.coef_[0] / scale
    good = x[y == 0]
    typical, spread = np.median(good, axis=0), good.std(axis=0)
    bias = float(found.intercept_[0] - mean @ weight)
    model = QualityModel(weight, bias, typical, spread, (0.0, 1.0))
    means = np.array([[mean_log(model.leads(measured[i]))] for i in rows])
    line = LogisticRegression(C=100).fit(means, 1 - bad[rows])
    return QualityModel(
        weight, bias, typical, spread, (float(line.intercept_[0]), float(line.coef_[0, 0]))
    )


def interval(y: Array, score: Array, groups: Array) -> tuple[float, float, float]:
    """AUROC, and the middle 95 % of draws of groups."""
    numbers, names = np.random.default_rng(0), np.unique(groups)
    members = [np.flatnonzero(groups == name) for name in names]
    draws = []
    for _ in range(DRAWS if len(y) < 2000 else 200):
        rows = np.concatenate([members[i] for i in numbers.integers(0, len(names), len(names))])
        draws.append(roc_auc_score(y[rows], score[rows]))
    return (roc_auc_score(y, score), *np.quantile(draws, (0.025, 0.975)))


def neurokit(signal: Array) -> float:
    """The mean over leads; 0 for a lead in which NeuroKit2 finds no beats."""
    import neurokit2

    found = []
    for lead in signal:
        try:
            cleaned = neurokit2.ecg_clean(lead, sampling_rate=int(RATE))
            quality = neurokit2.ecg_quality(cleaned, sampling_rate=int(RATE))
            found.append(float(np.nanmean(quality)))
        except (ValueError, IndexError, ZeroDivisionError, KeyError):
            found.append(0.0)
    return float(np.nanmean(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("git")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", type=int, help="so many recordings by NeuroKit2")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    whole, leads = verdicts(given.git)
    recorded = [(name, mv) for name, _, mv, _, _ in cinc2011(given.git, COMMIT) if name in whole]
    bad = np.array([whole[name] for name, _ in recorded])
    bad_leads = np.array([leads.get(name, [-1] * 12) for name, _ in recorded])
    start = time.process_time()
    measured = np.array([measure_leads(mv, RATE) for _, mv in recorded])
    spent = (time.process_time() - start) / len(recorded)
    numbers = np.random.default_rng(0)
    spoiled = np.full(measured.shape, np.nan)
    for i in np.flatnonzero(bad_leads[:, 0] >= 0):
        made, which = spoil(recorded[i][1], numbers)
        spoiled[i, which] = measure_leads(made, RATE)[which]
    print(f"{len(bad)} recordings, {bad.sum()} not accepted; {1000 * spent:.0f} ms each")

    fold = np.random.default_rng(0).permutation(len(bad)) % FOLDS
    quality, of_leads = np.zeros(len(bad)), np.zeros(bad_leads.shape)
    for number in range(FOLDS):
        model = fit(measured, spoiled, bad, bad_leads, np.flatnonzero(fold != number))
        for i in np.flatnonzero(fold == number):
            of_leads[i] = model.leads(measured[i])
            quality[i] = model.recording(of_leads[i])
    everyone = np.arange(len(bad))
    ranges = np.array([np.ptp(mv, axis=1) for _, mv in recorded])
    scores = {
        "quality": 1 - quality,
        "plain rule": ((ranges < 0.1) | (ranges > 10)).sum(axis=1).astype(float),
    }
    for name, score in scores.items():
        print("{}: AUROC {:.3f} ({:.3f} to {:.3f})".format(name, *interval(bad, score, everyone)))
    known = bad_leads >= 0
    groups = np.repeat(everyone, 12).reshape(-1, 12)
    found = interval(bad_leads[known], 1 - of_leads[known], groups[known])
    print("quality, {} leads: AUROC {:.3f} ({:.3f} to {:.3f})".format(known.sum(), *found))
    accepted = (quality >= 0.5) == (bad == 0)
    print(f"right at 0.5: {accepted.mean():.1%}")
    if importlib.util.find_spec("neurokit2"):
        some = everyone[: given.only]
        theirs = np.array([neurokit(recorded[i][1]) for i in some])
        found = interval(bad[some], 1 - theirs, some)
        print("NeuroKit2, {}: AUROC {:.3f} ({:.3f} to {:.3f})".format(len(some), *found))
        ours = interval(bad[some], 1 - quality[some], some)
        print("quality, the same: AUROC {:.3f} ({:.3f} to {:.3f})".format(*ours))
    else:
        print("NeuroKit2 is not installed, and was left out")
    if given.out:
        model = fit(measured, spoiled, bad, bad_leads, everyone)
        facts = {
            "made by": "python -m benchmarks.signal_quality",
            "from": "CinC 2011 set-a, LinusKra/ECGAssess " + COMMIT,
            "measures": MEASURES,
            **{name: np.round(getattr(model, name), 6).tolist()
               for name in ("weight", "typical", "spread")},
            "bias": round(model.bias, 6),
            "whole": [round(one, 6) for one in model.whole],
        }  # fmt: skip
        text = json.dumps(facts, indent=1)
        given.out.write_text(re.sub(r"\s+(?=[-\d\]])", " ", text) + "\n")


if __name__ == "__main__":
    main()
