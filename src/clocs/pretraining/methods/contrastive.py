"""The CLOCS family and SimCLR: views that belong together are found among all views of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Views, leads, perturbed, segments
from clocs.pretraining.method import Method, Objective, option

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Weights
    from clocs.pretraining.batches import Batch

PROJECTION = 128  # dimensions, for encoders of many leads


@dataclass(frozen=True)
class Contrastive(Objective):
    """What the losses below share: embeddings may be projected before they are compared."""

    temperature: float = option(0.1, "Temperature τ of the contrastive loss.", above=0)
    projection: int | None = option(
        None,
        "Dimension to which a head of two layers, dropped after training, projects embeddings for "
        "the loss; 0: none. Where not given, 128 for encoders of many leads and 0 for others.",
        kind=int,
        minimum=0,
    )

    def for_encoder(self, *, many_leads: bool) -> Objective:
        if many_leads and self.projection is None:
            return replace(self, projection=PROJECTION)
        return self

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        from clocs.pretraining.projection import projection_shapes

        return projection_shapes(dim, self.projection or 0)

    def projected(self, z: Tensor, weights: Weights) -> Tensor:
        """z: (members, views, batch, dim) -> what is compared, of the projection's dimension."""
        from clocs.pretraining.projection import project

        return project(z, weights) if self.projection else z


@dataclass(frozen=True)
class PatientNCE(Contrastive):
    """CLOCS: views of one patient belong together, unless recorded too far apart."""

    compares_patients = True

    positives: str = option(
        "patient",
        "Positive pairs: views of one patient, or of one instance alone (no off-diagonal terms).",
        choices=("patient", "instance"),
    )
    positives_within: float | None = option(
        None,
        "Most days between two recordings of one patient that count as a positive pair.",
        kind=float,
        minimum=0,
    )

    def check(self, frames: Frames) -> None:
        if self.positives_within is not None and self.positives == "instance":
            raise SettingError(
                "`positives_within` is for pairs of one patient; leave it out, or `positives`"
            )
        if self.positives_within is not None and not np.isfinite(frames.day).any():
            raise SettingError(
                f"no recording of {frames.dataset} has a date, so `positives_within` cannot be "
                "applied; leave it out"
            )

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        from clocs.pretraining.losses import patient_nce, same_patient_nce

        z = self.projected(z, weights)
        if self.positives_within is None and self.positives == "patient":
            return same_patient_nce(z, batch.patients, self.temperature)
        return patient_nce(z, *self.pairs(batch), self.temperature)

    def metrics(self, z: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"same_patient_pairs": self.pairs(batch)[0].sum(dim=(1, 2)).to(z.dtype)}

    def pairs(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """(members, batch, batch) bool: positives, and same-patient pairs too far apart."""
        from clocs.pretraining.losses import same_patient_pairs

        same = same_patient_pairs(batch.patients)
        if self.positives == "instance":  # another instance of the patient is like any other
            return same.zero_(), None
        if self.positives_within is None:
            return same, None
        apart = (batch.days[:, :, None] - batch.days[:, None, :]).abs()
        near = apart <= self.positives_within  # never where a day is unknown
        near |= batch.recordings[:, :, None] == batch.recordings[:, None, :]
        return same & near, same & ~near


@dataclass(frozen=True)
class SegmentsNCE(PatientNCE):
    """The same for views that are segments of a recording."""

    segments: int | None = option(
        None, "Number of segments to compare; 2 where not given.", kind=int, minimum=2
    )
    crops: str = option(
        "consecutive",
        "Which segments: consecutive ones, or random crops of a run of consecutive frames.",
        choices=("consecutive", "random"),
    )

    def views(self, own: Views, dataset: str) -> Views:
        own = own if self.segments is None else replace(own, segments=self.segments)
        return replace(own, random_crops=self.crops == "random")


def _most_leads() -> Any:
    return option(
        None,
        "Of encoders of many leads: a view keeps 1 to so many random leads; 3 where not given.",
        kind=int,
        minimum=1,
    )


@dataclass(frozen=True)
class LeadsNCE(PatientNCE):
    """The same for views that differ in their leads."""

    most_leads: int | None = _most_leads()

    def views(self, own: Views, dataset: str) -> Views:
        return _through_leads(own, self.most_leads)


@dataclass(frozen=True)
class SegmentsLeadsNCE(SegmentsNCE):
    """The same for views that are segments and differ in their leads."""

    most_leads: int | None = _most_leads()

    def views(self, own: Views, dataset: str) -> Views:
        return _through_leads(super().views(own, dataset), self.most_leads)


def _through_leads(own: Views, most_leads: int | None) -> Views:
    if most_leads is None:
        return own
    if not own.most_leads:
        raise SettingError("`most_leads` is for encoders of many leads; leave it out")
    return replace(own, most_leads=most_leads)


@dataclass(frozen=True)
class NTXent(Contrastive):
    """SimCLR: copies of one instance belong together."""

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        from clocs.pretraining.losses import nt_xent

        return nt_xent(self.projected(z, weights), self.temperature)


cmsc = Method("cmsc", of="lead", views=segments(2), objective=SegmentsNCE)
cmlc = Method("cmlc", of="frame", views=leads(), objective=LeadsNCE)
cmsmlc = Method("cmsmlc", of="frame", views=segments(2) * leads(), objective=SegmentsLeadsNCE)
simclr = Method("simclr", of="lead", views=perturbed("gaussian"), objective=NTXent)
