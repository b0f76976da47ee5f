"""The CLOCS family and SimCLR: views that belong together are found among all views of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clocs.errors import SettingError
from clocs.frames.views import Views, perturbed
from clocs.pretraining import Method, Projecting, option

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Weights
    from clocs.pretraining.batches import Batch


@dataclass(frozen=True)
class PatientNCE(Projecting):
    """CLOCS: views of one patient belong together."""

    compares_patients = True

    temperature: float = option(0.1, "Temperature τ of the contrastive loss.", above=0)
    positives: str = option(
        "patient",
        "Positive pairs: views of one patient, or of one instance alone (no off-diagonal terms).",
        choices=("patient", "instance"),
    )

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        import torch

        from clocs.pretraining.losses import patient_nce

        z, patients = self.projected(z, weights), batch.patients
        if self.positives != "patient":  # nobody has two instances
            patients = torch.arange(patients.shape[1], device=z.device).expand_as(patients)
        return patient_nce(z, patients, self.temperature)

    def metrics(self, z: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"same_patient_pairs": self.pairs(batch).sum(dim=(1, 2)).to(z.dtype)}

    def pairs(self, batch: Batch) -> Tensor:
        """(members, batch, batch) bool: which other instances are positives."""
        from clocs.pretraining.losses import same_patient_pairs

        same = same_patient_pairs(batch.patients)
        return same if self.positives == "patient" else same.zero_()


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


@dataclass(frozen=True)
class LeadsNCE(PatientNCE):
    """The same for views that differ in their leads."""

    most_leads: int | None = option(
        None,
        "Most leads of a view, for encoders of many leads: it keeps 1 to so many at random.",
        kind=int,
        minimum=1,
    )

    def views(self, own: Views, dataset: str) -> Views:
        return _through_leads(own, self.most_leads)


@dataclass(frozen=True)
class SegmentsLeadsNCE(SegmentsNCE, LeadsNCE):
    """The same for views that are segments and differ in their leads."""

    def views(self, own: Views, dataset: str) -> Views:
        return _through_leads(super().views(own, dataset), self.most_leads)


def _through_leads(own: Views, most_leads: int | None) -> Views:
    if most_leads is None:
        return own
    if not own.most_leads:
        raise SettingError("`most_leads` is for encoders of many leads; leave it out")
    return replace(own, most_leads=most_leads)


@dataclass(frozen=True)
class NTXent(Projecting):
    """SimCLR: copies of one instance belong together."""

    temperature: float = option(0.1, "Temperature τ of the contrastive loss.", above=0)

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        from clocs.pretraining.losses import nt_xent

        return nt_xent(self.projected(z, weights), self.temperature)


cmsc = Method("cmsc", of="lead", views=Views(segments=2), objective=SegmentsNCE)
cmlc = Method("cmlc", of="frame", views=Views(all_leads=True), objective=LeadsNCE)
cmsmlc = Method(
    "cmsmlc", of="frame", views=Views(segments=2, all_leads=True), objective=SegmentsLeadsNCE
)
simclr = Method("simclr", of="lead", views=perturbed("gaussian"), objective=NTXent)
