"""Which encoder of many leads keeps voltage? Trials on one GPU, scored on validation patients.

Reads what `encoder_data.py` packed. Every trial is pre-trained for the same number of steps without
labels; logistic regressions on its frozen embeddings are fitted on training patients and scored on
validation patients. The first trials compare how voltage enters the network; each later one changes
one thing of the best so far; the best two are then trained for the full number of steps. A trial
leaves a JSON file, a failed one too, and is not run again. Test patients are never read.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clocs.kernels.gpu import Compiled
from research.encoder_network import FeatureMap, Net, Variant, feature_map, pretrain
from research.encoder_recordings import DATASETS, Dataset, Pool, load, synthetic
from research.encoder_scores import choice, scores


@dataclass(frozen=True)
class Trial:
    name: str
    intent: str
    change: dict[str, Any]  # of the shipped design; later, of the best so far


FIRST = (
    Trial("0-standard", "The shipped design: each lead standardized, voltage lost.", {}),
    Trial("1-raw", "Leads in mV at one fixed scale, so that voltage stays.", {"input": "raw"}),
    Trial("3-amplitudes", "Standardized leads and a small branch for their amplitudes.",
          {"amplitudes": True}),
    Trial("4b-raw-amplitudes", "Raw mV and the branch for amplitudes.",
          {"input": "raw", "amplitudes": True}),
)  # fmt: skip
LATER = (
    Trial("5-reconstruct", "Masked leads and stretches are reconstructed beside the contrast.",
          {"reconstruct": 2.0}),
    Trial("5b-reconstruct-more", "The same with a greater weight.", {"reconstruct": 8.0}),
    Trial("11-leads-4", "Views of 1 to 4 leads.", {"most_leads": 4}),
    Trial("10-all-data", "PTB, LUDB, CinC 2011 and PhysioNet 2017 are learned from, too.",
          {"data": "all"}),
    Trial("12-wide", "A wider last stage, 4.7 million weights.", {"embedding_dim": 800}),
    Trial("9-short", "Crops of 2.5 s, averaged.", {"seconds": 2.5}),
    Trial("11b-leads-8", "Views of 1 to 8 leads.", {"most_leads": 8}),
    Trial("12b-narrow", "A narrower last stage.", {"embedding_dim": 384}),
)  # fmt: skip

# Each is a change of the best of the trials above at full length; then the best of all, for longer.
SECOND = (
    Trial("20-mix", "Half of the views see up to twelve leads, half one or two.", {"mix": 0.5}),
    Trial("21-moments", "The same, and the spread over time is pooled, too.",
          {"mix": 0.5, "pool": "moments"}),
    Trial("22-reconstruct", "The mix, and masked leads and stretches are reconstructed.",
          {"mix": 0.5, "reconstruct": 2.0}),
    Trial("23-all-data", "The mix, and all datasets are learned from.",
          {"mix": 0.5, "data": "all"}),
    Trial("24-temperature", "The mix at half the temperature.", {"mix": 0.5, "temperature": 0.1}),
)  # fmt: skip

# Each is a change of 22-reconstruct.
_SHARP = {"temperature": 0.1}
THIRD = (
    Trial("30-sharp", "22-reconstruct at half the temperature.", _SHARP),
    Trial("31-stride", "The same with a stem of stride 4: half of the work.",
          {**_SHARP, "stride": 4}),
    Trial("32-kernel", "30-sharp with kernels of 3 in place of 5.", {**_SHARP, "kernel": 3}),
    Trial("33-all-data", "30-sharp, and all datasets are learned from.", {**_SHARP, "data": "all"}),
    Trial("34-moments", "30-sharp, and the spread over time is pooled, too.",
          {**_SHARP, "pool": "moments"}),
    Trial("35-narrow", "31-stride with a narrower last stage.",
          {**_SHARP, "stride": 4, "embedding_dim": 512}),
    Trial("36-sharper", "30-sharp at half the temperature again.", {"temperature": 0.05}),
    Trial("37-dense", "30-sharp, and three quarters of the views see up to twelve leads.",
          {**_SHARP, "mix": 0.75}),
)  # fmt: skip


def variant_from(kept: dict[str, Any]) -> Variant:
    """A design as results have it; some of its settings are of designs that failed and are gone."""
    return Variant(**{one.name: kept[one.name] for one in fields(Variant) if one.name in kept})


def save(net: Net, path: Path) -> None:
    """Weights in half precision, statistics of batch norm in full."""
    arrays: dict[str, Any] = {
        f"parameter {k}": p.detach().half().cpu().numpy() for k, p in net.named_parameters()
    }
    arrays |= {f"statistic {k}": s.cpu().numpy() for k, s in net.stats.items()}
    np.savez(path, variant=np.array(json.dumps(asdict(net.variant))), **arrays)


@dataclass
class Study:
    data: dict[str, Dataset]
    out: Path
    export: Path | None
    deadline: float
    steps: int
    full_steps: int
    batch: int
    tiny: bool
    training_map: FeatureMap  # compiled, on a GPU
    reserve: float  # seconds kept for the trials at full length

    def done(self) -> dict[str, dict[str, Any]]:
        return {f.stem: json.loads(f.read_text()) for f in sorted(self.out.glob("*.json"))}

    def ranked(self, *, full: bool = False) -> list[str]:
        """Trials that did not fail, the best first."""
        good = {k: r for k, r in self.done().items() if "error" not in r and r["full"] == full}
        return sorted(good, key=lambda k: -good[k]["choice"])

    def variant_of(self, name: str) -> Variant:
        return variant_from(self.done()[name]["variant"])

    def run(
        self, name: str, intent: str, variant: Variant, steps: int, *,
        seed: int = 0, reserve: float = 0.0,
    ) -> bool:  # fmt: skip
        """Whether there was time; a trial that has a result is not run again."""
        if (self.out / f"{name}.json").exists():
            return True
        past = [r for r in self.done().values() if "error" not in r]
        each = max((r["training"]["ms a step"] for r in past), default=10.0) / 1000
        rest = [r["total seconds"] - r["training"]["seconds"] for r in past] or [60.0]
        wanted = steps * each + float(np.median(rest)) + 25  # a new shape is compiled in about that
        left = self.deadline - time.time() - reserve
        print(f"{name}: about {wanted:.0f} s, {left:.0f} s left", flush=True)
        if wanted > left:
            return False
        began = time.time()
        kept = asdict(variant)
        if self.tiny and self.batch < 512:  # on a CPU: shorter crops
            variant = replace(variant, seconds=variant.seconds / 4)
        result: dict[str, Any] = {
            "intent": intent, "variant": kept, "full": steps == self.full_steps,
            "seed": seed}  # fmt: skip
        try:
            two = ("chapman", "physionet2020")
            pool = Pool.of([self.data[k] for k in (DATASETS if variant.data == "all" else two)])
            net, facts = pretrain(
                variant, pool, steps, self.batch, seed, training_map=self.training_map
            )
            result["training"] = facts
            trained = time.time()
            made = scores(net, self.data, 64 if self.tiny else 4096)
            result |= {"scores": made, "choice": choice(made, "embedding"),
                       "choice with amplitudes": choice(made, "with amplitudes"),
                       "scoring seconds": round(time.time() - trained, 1)}  # fmt: skip
            save(net, self.out / f"{name}.npz")
        except Exception as error:
            traceback.print_exc()
            result["error"] = repr(error)
        gc.collect()
        torch.cuda.empty_cache()  # the memory of a captured graph
        result["total seconds"] = round(time.time() - began, 1)
        (self.out / f"{name}.json").write_text(json.dumps(result, indent=1))
        if "error" not in result:
            print(f"{name}: {result['choice']:.4f}, with amplitudes "
                  f"{result['choice with amplitudes']:.4f}; {result['training']['ms a step']} ms a "
                  f"step, {result['total seconds']} s", flush=True)  # fmt: skip
        self.publish()
        return True

    def publish(self) -> None:
        """Everything that is worth bringing back: all results, weights of the best two."""
        if self.export is None:
            return
        self.export.mkdir(parents=True, exist_ok=True)
        done = self.done()
        left = [trial.name for trial in (*FIRST, *LATER) if trial.name not in done]
        everything = {"trials": done, "not run": left}
        (self.export / "results.json").write_text(json.dumps(everything, indent=1))
        best = [*self.ranked(full=True), *self.ranked()]
        best = [name for name in best if (self.out / f"{name}.npz").exists()][:2]
        for file in self.export.glob("*.npz"):
            if file.stem not in best:
                file.unlink()
        for name in best:
            (self.export / f"{name}.npz").write_bytes((self.out / f"{name}.npz").read_bytes())

    def everything(self) -> None:
        self.publish()
        for trial in FIRST:
            if not self.run(trial.name, trial.intent, Variant(**trial.change), self.steps):
                return
        for trial in LATER:
            if not self.ranked():
                raise RuntimeError("every trial failed")
            base = self.ranked()[0]
            variant = replace(self.variant_of(base), **trial.change)
            intent = f"{trial.intent} A change of {base}."
            if not self.run(trial.name, intent, variant, self.steps, reserve=self.reserve):
                if not self.reserve:
                    return
                break
        best = self.ranked()[:2]
        for number, name in enumerate(best, start=1):
            intent = f"The best of the short trials, place {number} ({name}), at full length."
            if not self.run(f"full-{number}", intent, self.variant_of(name), self.full_steps):
                return
        intent = "The shipped design at full length, for comparison."
        if self.run("full-shipped", intent, Variant(), self.full_steps):
            intent = f"{best[0]} at full length once more, to see the spread of seeds."
            self.run("full-1-again", intent, self.variant_of(best[0]), self.full_steps, seed=1)

    def third(self) -> None:
        base = self.variant_of("22-reconstruct")
        for trial in THIRD:
            variant = replace(base, **trial.change)
            if not self.run(trial.name, trial.intent, variant, self.full_steps):
                break

    def second(self, longest: int) -> None:
        """The second round; `longest`: steps of the last training, 0 for none."""
        base = self.variant_of("full-1")
        for trial in SECOND:
            if longest or not self.run(
                trial.name, trial.intent, replace(base, **trial.change), self.full_steps
            ):
                break
        if longest:
            names = [one.name for one in SECOND]
            best = next(name for name in self.ranked(full=True) if name in (*names, "full-1"))
            intent = f"{best}, trained for longer."
            self.run(f"longest-{best}", intent, self.variant_of(best), longest)


def report(path: Path) -> str:
    """All trials of a results file as a Markdown table, those that are ranked by first the best."""
    trials = json.loads(path.read_text())["trials"]
    good = {name: one for name, one in trials.items() if "error" not in one}
    tasks = list(next(iter(good.values()))["scores"])
    lines = [
        "| " + " | ".join(["trial", "steps", "weights", "mean", "and amplitudes", *tasks]) + " |",
        "| --- |" + " ---: |" * (4 + len(tasks)),
    ]
    for name, one in sorted(good.items(), key=lambda item: -item[1]["choice"]):
        training = one["training"]
        cells = [f"{training['steps']:,}", f"{training['weights'] / 1e6:.1f} M"]
        cells += [f"{one[key]:.4f}" for key in ("choice", "choice with amplitudes")]
        for task in tasks:
            score = one["scores"][task]["embedding"]
            cells.append(f"{score['auroc']:.3f} ± {score['se']:.3f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *(f"failed: {name}" for name in trials if name not in good)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of packed recordings; none: random waves")
    parser.add_argument("--out", type=Path, default=Path("trials"), help="folder of the trials")
    parser.add_argument("--report", type=Path, help="print a results file as a table, and stop")
    parser.add_argument("--export", type=Path, help="folder for results and the best two's weights")
    parser.add_argument("--results", type=Path, help="an exported results.json to go on from")
    parser.add_argument("--seconds", type=float, default=1e9, help="no trial is begun beyond them")
    parser.add_argument("--reserve", type=float, default=0, help="seconds kept for the full trials")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--full-steps", type=int, default=12_000)
    parser.add_argument("--second", action="store_true", help="the second round of trials")
    parser.add_argument("--third", action="store_true", help="the third round")
    parser.add_argument("--longest", type=int, default=0, help="its best for so many steps")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--tiny", action="store_true", help="few recordings and steps")
    given = parser.parse_args()
    if given.report is not None:
        print(report(given.report))
        return
    began = time.time()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    given.out.mkdir(parents=True, exist_ok=True)
    if given.results:
        for name, result in json.loads(given.results.read_text())["trials"].items():
            (given.out / f"{name}.json").write_text(json.dumps(result, indent=1))
    most = 12 if given.tiny else None
    data = (
        load(given.data, device, most) if given.data else synthetic(device, 240 if on_gpu else 12)
    )
    for one in data.values():
        print(one.name, np.bincount(one.part, minlength=2).tolist(), "recordings to train, choose")
    print(f"data ready after {time.time() - began:.1f} s", flush=True)
    if on_gpu:
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    if given.tiny:
        given.steps, given.full_steps = (30, 60) if on_gpu else (1, 2)
    study = Study(
        data, given.out, given.export, began + given.seconds, given.steps, given.full_steps,
        given.batch or (4 if given.tiny and not on_gpu else 512), given.tiny,
        Compiled(feature_map) if on_gpu else feature_map, given.reserve,
    )  # fmt: skip
    if given.third:
        study.third()
        return
    if given.second:
        study.second(given.longest)
        return
    study.everything()
    for name in [*study.ranked(full=True), *study.ranked()]:
        print(name, study.done()[name]["choice"], study.done()[name]["choice with amplitudes"])


if __name__ == "__main__":
    main()
