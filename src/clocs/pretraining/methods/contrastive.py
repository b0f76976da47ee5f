"""The CLOCS family and SimCLR: views that belong together are found among all views of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clocs.frames.views import Views, perturbed
from clocs.pretraining import Comparing, Method, Segments, option

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Weights
    from clocs.pretraining.batches import Batch


@dataclass(frozen=True)
class PatientNCE(Comparing):
    """CLOCS: views of one patient belong together."""

    compares_patients, own_positives = True, "patient"

    temperature: float = option(0.1, "Temperature τ of the contrastive loss.", above=0)

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        import torch

        from clocs.pretraining.losses import patient_nce

        z, patients = self.projected(z, weights), batch.patients
        if self.positives == "instance":  # nobody has two instances
            patients = torch.arange(patients.shape[1], device=z.device).expand_as(patients)
        return patient_nce(z, patients, self.temperature)

    def metrics(self, z: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"same_patient_pairs": self.pairs(batch).sum(dim=(1, 2)).to(z.dtype)}

    def pairs(self, batch: Batch) -> Tensor:
        """(members, batch, batch) bool: which other instances are positives."""
        from clocs.pretraining.losses import same_patient_pairs

        same = same_patient_pairs(batch.patients)
        return same.zero_() if self.positives == "instance" else same


@dataclass(frozen=True)
class SegmentsNCE(Segments, PatientNCE):
    """The same with a choice of segments and leads."""


@dataclass(frozen=True)
class NTXent(Segments):
    """SimCLR: copies of one instance belong together."""

    temperature: float = option(0.1, "Temperature τ of the contrastive loss.", above=0)

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        from clocs.pretraining.losses import nt_xent

        patients = batch.patients if self.positives == "patient" else None
        return nt_xent(self.projected(z, weights), self.temperature, patients)


cmsc = Method("cmsc", of="lead", views=Views(segments=2), objective=SegmentsNCE)
cmlc = Method("cmlc", of="frame", views=Views(all_leads=True), objective=PatientNCE)
cmsmlc = Method(
    "cmsmlc", of="frame", views=Views(segments=2, all_leads=True), objective=SegmentsNCE
)
simclr = Method("simclr", of="lead", views=perturbed("gaussian"), objective=NTXent)
