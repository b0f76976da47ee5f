"""Plan: everything that determines the result of a pre-training, besides the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from clocs.encoders.base import Encoder
from clocs.encoders.make import make_encoder, sees_many_leads
from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Views
from clocs.pretraining.method import Method, Objective
from clocs.pretraining.methods import METHODS, find_method
from clocs.pretraining.perturbations import parse
from clocs.training.loop import Settings

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
BatchNorm = Literal["batch", "view"]
Normalization = Literal["min-max", "none"]
_CHOICES = {"precision": Precision, "batch_norm": BatchNorm, "normalization": Normalization}


@dataclass(frozen=True)
class Plan:
    """What to train."""

    method: str  # one of `clocs.pretraining.methods.METHODS`
    seeds: tuple[int, ...] = (0,)  # one training each
    encoder: str = "cnn"  # one of `clocs.encoders.make.ENCODERS`
    embedding_dim: int = 128
    dropout: float = 0.1
    options: Mapping[str, Any] = field(default_factory=dict)  # the method's own
    perturb: str | tuple[str, ...] | None = None  # several are trained at once, each with all seeds
    instances_per_patient: int | None = None  # the most per epoch
    precision: Precision = "float32"  # of activations; weights and statistics are always float32
    batch_norm: BatchNorm = "batch"  # statistics of all views of a batch at once, or of each view
    normalization: Normalization = "min-max"  # of frames; 'none' leaves them in mV
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise SettingError(f"`seeds` must be distinct numbers from 0, not {self.seeds}")
        if not 0 <= self.dropout < 1:
            raise SettingError(f"`dropout` must be at least 0 and below 1, not {self.dropout}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                valid = " or ".join(get_args(choices))
                raise SettingError(f"`{name}` is {valid}, not {getattr(self, name)}")
        if self.many_leads and self.normalization != get_args(Normalization)[0]:
            raise SettingError(
                f"{self.encoder} takes leads that are standardized; leave out `normalization`"
            )
        if self.batch_norm == "view" and self.objective is None:
            raise SettingError(f"{self.method} trains on no views; leave out `batch_norm`")
        if len(set(self.chains)) != len(self.chains):
            raise SettingError(f"the chains of `perturb` should be distinct, not {self.chains}")
        if self.perturb is not None and not self.row.perturbable:
            able = ", ".join(name for name, row in METHODS.items() if row.perturbable)
            raise SettingError(f"{self.method} does not take `perturb`, which is for {able}")
        limit = self.instances_per_patient
        if limit is not None and self.objective is None:
            raise SettingError(f"{self.method} does not take `instances_per_patient`")
        if limit is not None and limit < 1:
            raise SettingError(f"`instances_per_patient` must be at least 1, not {limit}")
        if self.objective and self.objective.compares_views and self.settings.batch_size < 2:
            raise SettingError(f"`batch_size` must be at least 2 for {self.method}")

    @property
    def row(self) -> Method:
        """The method's row in the table."""
        return find_method(self.method)

    @cached_property
    def objective(self) -> Objective | None:
        """What is optimized, with this plan's options; None where nothing is learned."""
        made = self.row.configured(self.options)
        return made.for_encoder(many_leads=self.many_leads) if made else None

    @property
    def chains(self) -> tuple[str | None, ...]:
        """Perturbations, each trained with all seeds; None means the method's own."""
        return self.perturb if isinstance(self.perturb, tuple) else (self.perturb,)

    @property
    def members(self) -> list[tuple[str | None, int]]:
        """(perturbation, seed) of each."""
        return [(chain, seed) for chain in self.chains for seed in self.seeds]

    def files(self, out: Path) -> list[Path]:
        """Each member's checkpoint file; several perturbations have one folder each."""
        several = len(self.chains) > 1
        return [
            (out / (chain or "none").replace(">", "-") if several else out)
            / f"seed-{seed}.safetensors"
            for chain, seed in self.members
        ]

    @property
    def many_leads(self) -> bool:
        """Whether the encoder sees many leads at once."""
        return sees_many_leads(self.encoder)

    def encoder_for(self, frames: Frames) -> Encoder:
        """The encoder of these frames."""
        return make_encoder(
            self.encoder,
            embedding_dim=self.embedding_dim,
            samples=frames.spec.samples,
            dropout=self.dropout,
            leads=frames.leads if self.many_leads else (),
        )

    def views_on(self, dataset: str, chain: str | None = None) -> Views:
        """The method's views with this plan's options and perturbations."""
        views, chain = self.row.views, chain or self.chains[0]
        views = views.of_many_leads() if self.many_leads else views
        views = self.objective.views(views, dataset) if self.objective else views
        if chain is None:
            return views
        return replace(views, copies=(str(parse(chain)),) * len(views.copies))

    def check_leads(self, leads: Sequence[str], dataset: str) -> None:
        """Refuse leads of which an instance has no two views to compare."""
        views = self.views_on(dataset)
        if self.many_leads and views.all_leads:  # through subsets, which differ only if there are
            count = views.segments * len(leads)
        else:
            count = views.segments * len(views.copies) * (len(leads) if views.all_leads else 1)
        if self.objective and self.objective.compares_views and count < 2:
            raise SettingError(
                f"{self.method} compares views of an instance, but with {', '.join(leads)} alone "
                "there is only one; choose at least two `leads`"
            )

    def for_settings_file(self) -> dict[str, Any]:
        """All values by name, the method's own options among them."""
        own = asdict(self.objective) if self.objective else {}
        given = {k: v for k, v in asdict(self).items() if k != "options"}
        return given | {"settings": self.settings.facts()} | own

    def for_card(self, dataset: str, chain: str | None) -> dict[str, Any]:
        """What a member's card says of its training; defaults that change nothing are left out."""
        own = asdict(self.objective) if self.objective else {}
        given = own | {"instances_per_patient": self.instances_per_patient}
        for name, choices in _CHOICES.items():
            if getattr(self, name) != get_args(choices)[0]:
                given[name] = getattr(self, name)
        return (
            self.settings.facts()
            | {name: value for name, value in given.items() if value is not None}
            | {"views": self.views_on(dataset, chain).to_dict()}
        )
