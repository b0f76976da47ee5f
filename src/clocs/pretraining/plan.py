"""Plan: everything that decides what a pre-training gives, besides the data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from clocs.errors import SettingError
from clocs.pretraining.batches import Choices
from clocs.pretraining.methods import Method, adapt, find_method
from clocs.training.loop import Settings

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True)
class Plan:
    """What to train.

    Attributes:
        method: One of `clocs.pretraining.methods.METHODS`.
        seeds: One training each.
        encoder: One of `clocs.encoders.ENCODERS`.
        embedding_dim: E.
        dropout: Probability.
        temperature: τ of the contrastive losses.
        tau_d: How much of BYOL's target network stays at each step.
        segments: How many consecutive segments CMSC and CMSMLC compare.
        perturb: A chain of perturbations; several are trained at once, each with all seeds.
        tasks: Of MT-SSL.
        positives_within: Days; recordings of one patient further apart are no positive pair.
        instances_per_patient: The most that a patient gives to an epoch.
        precision: Of activations; weights and statistics are always float32.
        settings: How long and how fast.
    """

    method: str
    seeds: tuple[int, ...] = (0,)
    encoder: str = "cnn"
    embedding_dim: int = 128
    dropout: float = 0.1
    temperature: float = 0.1
    tau_d: float = 0.9
    segments: int | None = None
    perturb: str | tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    positives_within: float | None = None
    instances_per_patient: int | None = None
    precision: Precision = "float32"
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise SettingError(f"seeds must be distinct numbers from 0, not {self.seeds}")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if self.precision not in PRECISIONS:
            raise SettingError(f"the precision is {' or '.join(PRECISIONS)}, not {self.precision}")
        if len(set(self.chains)) != len(self.chains):
            raise SettingError(f"the perturbations {self.chains} should be distinct")
        if self.positives_within is not None and find_method(self.method).asks != "patient_nce":
            raise SettingError(
                f"{self.method} has no pairs of a patient; --positives-within is for cmsc, cmlc "
                "and cmsmlc"
            )
        _ = self.choices  # checks them

    @property
    def choices(self) -> Choices:
        return Choices(
            temperature=self.temperature,
            tau_d=self.tau_d,
            positives_within=self.positives_within,
            instances_per_patient=self.instances_per_patient,
        )

    @property
    def chains(self) -> tuple[str | None, ...]:
        """Perturbations, each trained with all seeds; None where the method's own are meant."""
        return (
            (self.perturb,)
            if self.perturb is None or isinstance(self.perturb, str)
            else (self.perturb)
        )

    @property
    def members(self) -> list[tuple[str | None, int]]:
        """(perturbation, seed) of each."""
        return [(chain, seed) for chain in self.chains for seed in self.seeds]

    def files(self, out: Path) -> list[Path]:
        """Where each member's checkpoint goes: a folder a perturbation where there are several."""
        several = len(self.chains) > 1
        return [
            (out / (chain or "none").replace(">", "-") if several else out)
            / f"seed-{seed}.safetensors"
            for chain, seed in self.members
        ]

    def method_on(self, dataset: str, chain: str | None = None) -> Method:
        """The method with the views that this plan asks for."""
        return adapt(
            self.method,
            dataset=dataset,
            segments=self.segments,
            perturb=chain or self.chains[0],
            tasks=self.tasks,
        )

    def told(self, dataset: str, chain: str | None) -> dict[str, Any]:
        """What the method was told, for a member's card."""
        method = self.method_on(dataset, chain)
        contrastive = method.asks in ("patient_nce", "nt_xent")
        given: dict[str, Any] = {"temperature": self.temperature} if contrastive else {}
        given |= {"tau_d": self.tau_d} if method.asks == "byol" else {}
        for name, usual in (
            ("positives_within", None),
            ("instances_per_patient", None),
            ("precision", "float32"),
        ):
            value = getattr(self, name)
            given |= {name: value} if value != usual else {}
        return given | {"views": asdict(method.views)}
