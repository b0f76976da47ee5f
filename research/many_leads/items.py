"""What is compared: pre-trainings, scorings and analyses, the most valuable first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from clocs.experiments.grid import FACTORIAL_LOSSES, factor_subsets
from clocs.recording import PAPER_LEADS

BOTH = ("chapman", "physionet2020")  # learned from together
DATASETS = ("physionet2020", "chapman", "physionet2017", "cardiology")
SHARES = (1.0, 0.1, 0.01)  # of training patients that are labeled
WINNER = "cmsmlc"
SCRATCH = "random"  # fine-tuned, it is supervised training from scratch
METHODS = ("cmsc", "cmlc", "simclr", "byol", "mtssl", "random-bn")
LIMB = ("I", "II", "III", "aVR", "aVL", "aVF")
# names of sets of leads, from most to fewest
LEADS: dict[str, tuple[str, ...] | None] = {
    "12": None,
    "6": LIMB,
    "4": PAPER_LEADS,
    "2": ("I", "II"),
    "I": ("I",),
    "II": ("II",),
}
NOISE_DB = (12, 6, 0)
STAGES = "abcdefghi"
SEEDS = 5


@dataclass(frozen=True)
class Pretraining:
    """One encoder."""

    method: str
    datasets: tuple[str, ...] = BOTH
    seed: int = 0
    most_leads: int | None = None  # of a view; the recipe's where None
    encoder: str | None = None  # the recipe's where None
    factors: tuple[str, ...] | None = None  # what a loss compares, in the factorial; else None

    @property
    def title(self) -> str:
        """Of its kind, whatever the seed."""
        parts = [self.method, "+".join(self.datasets)]
        parts += [self.encoder] if self.encoder else []
        parts += [f"leads{self.most_leads}"] if self.most_leads else []
        parts += ["factors", *self.factors] if self.factors is not None else []
        return "-".join(parts)

    @property
    def name(self) -> str:
        return f"pretrain/{self.title}/seed{self.seed}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Datasets."""
        return self.datasets

    @property
    def encoders(self) -> tuple[Pretraining, ...]:
        return ()


@dataclass(frozen=True)
class Scoring:
    """One encoder, or several seeds of it, scored on the labels of a dataset."""

    encoder: Pretraining
    dataset: str
    protocol: str  # linear, attentive or finetune
    share: float = 1.0  # of the training patients
    leads: str = "12"  # learned and tested on; one of `LEADS`
    conditions: bool = False  # whether also tested on fewer leads and with noise
    seeds: int = 1  # encoders

    @property
    def name(self) -> str:
        parts = [f"{self.protocol}-{self.share:g}", self.dataset, self.encoder.title]
        parts += [f"leads-{self.leads}"] if self.leads != "12" else []
        parts += ["conditions"] if self.conditions else []
        parts += [f"seeds{self.seeds}"] if self.seeds > 1 else []
        return "/".join(parts)

    @property
    def needs(self) -> tuple[str, ...]:
        """Datasets."""
        return (self.dataset, *self.encoder.datasets)

    @property
    def encoders(self) -> tuple[Pretraining, ...]:
        """Those that must be trained before."""
        return tuple(replace(self.encoder, seed=seed) for seed in range(self.seeds))


@dataclass(frozen=True)
class Analysis:
    """Another look at one encoder: another hospital, or identity."""

    kind: str
    encoder: Pretraining
    dataset: str
    other: str | None = None  # dataset that is tested on, of another hospital

    @property
    def name(self) -> str:
        parts = [self.kind, self.dataset, *([self.other] if self.other else [])]
        return "/".join([*parts, self.encoder.title])

    @property
    def needs(self) -> tuple[str, ...]:
        """Datasets."""
        other = (self.other,) if self.other else ()
        return (self.dataset, *other, *self.encoder.datasets)

    @property
    def encoders(self) -> tuple[Pretraining, ...]:
        return (self.encoder,)


Item: TypeAlias = Pretraining | Scoring | Analysis


def items(stages: str = STAGES) -> list[Item]:
    """All of these stages, in order of value; each one after the encoders that it needs."""
    found: dict[Item, None] = {}
    for stage in stages:
        for item in _STAGES[stage]():
            found |= dict.fromkeys(item.encoders)
            found[item] = None
    return list(found)


def _linear(encoder: Pretraining, seeds: int = 1) -> list[Item]:
    return _scored(encoder, "linear", *DATASETS, seeds=seeds)


def _scored(encoder: Pretraining, protocol: str, *datasets: str, seeds: int = 1) -> list[Item]:
    return [
        Scoring(encoder, dataset, protocol, share, seeds=seeds)
        for dataset in datasets
        for share in SHARES
    ]


def _winner() -> list[Item]:
    encoder = Pretraining(WINNER)
    return [*_linear(encoder), *_scored(encoder, "finetune", "physionet2020")]


def _others() -> list[Item]:
    scratch = _scored(Pretraining(SCRATCH), "finetune", "physionet2020")
    return scratch + [one for method in METHODS for one in _linear(Pretraining(method))]


def _conditions() -> list[Item]:
    pairs = [(WINNER, "linear"), (WINNER, "finetune"), (SCRATCH, "finetune"), ("cmsc", "linear")]
    made: list[Item] = [
        Scoring(Pretraining(method), "physionet2020", protocol, conditions=True)
        for method, protocol in pairs
    ]
    return made + [
        Scoring(Pretraining(method), "physionet2020", protocol, leads=leads)
        for method, protocol in pairs[:3]
        for leads in LEADS
        if leads != "12"
    ]


def _readouts() -> list[Item]:
    made: list[Item] = []
    for datasets in (DATASETS[1:], DATASETS[:1]):
        for method in (WINNER, SCRATCH, *METHODS[:-1]):
            made += _scored(Pretraining(method), "finetune", *datasets)
        for method in (WINNER, *METHODS):
            made += _scored(Pretraining(method), "attentive", *datasets)
    return made


def _hospitals() -> list[Item]:
    made: list[Item] = []
    for one, other in (BOTH, BOTH[::-1]):
        encoders = [Pretraining(WINNER, (one,))]
        encoders += [Pretraining(method) for method in (WINNER, "cmsc", "random-bn")]
        made += [Analysis("hospital", encoder, one, other) for encoder in encoders]
    return made


def _identity() -> list[Item]:
    encoders = [Pretraining(method) for method in (WINNER, "cmsc", "random-bn")]
    return [Analysis("identity", encoder, "physionet2020") for encoder in encoders]


def _seeds() -> list[Item]:
    made: list[Item] = []
    for method in (WINNER, *METHODS):
        made += _linear(Pretraining(method), seeds=SEEDS)
    for method in (WINNER, SCRATCH):
        made += _scored(Pretraining(method), "finetune", "physionet2020", seeds=SEEDS)
    return made


def _single_lead() -> list[Item]:
    encoders = [Pretraining(WINNER), Pretraining(WINNER, most_leads=1)]
    encoders += [Pretraining("cmsc", encoder="cnn")]
    made: list[Item] = []
    for encoder in encoders:
        made += [
            Scoring(encoder, "physionet2020", "linear", share, leads=leads)
            for leads in ("I", "II")
            for share in SHARES
        ]
        made += _scored(encoder, "linear", *DATASETS[2:])
    return made


def _factorial() -> list[Item]:
    """As the grid's, for the encoder of many leads: which part of CLOCS makes the gain."""
    return [
        Scoring(Pretraining(loss, (dataset,), factors=chosen), dataset, "linear", seeds=SEEDS)
        for dataset in BOTH[::-1]
        for chosen in factor_subsets()
        for loss in FACTORIAL_LOSSES
    ]


_STAGES = {
    "a": _winner,
    "b": _others,
    "c": _conditions,
    "d": _readouts,
    "e": _hospitals,
    "f": _identity,
    "g": _seeds,
    "h": _single_lead,
    "i": _factorial,
}
