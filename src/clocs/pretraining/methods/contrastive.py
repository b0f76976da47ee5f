"""The CLOCS family and SimCLR: views that belong together are found among all views of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Views, leads, perturbed, segments
from clocs.pretraining.method import Method, Objective, option

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Weights
    from clocs.pretraining.batches import Batch


@dataclass(frozen=True)
class PatientNCE(Objective):
    """CLOCS: views of one patient belong together, unless recorded too far apart."""

    compares_patients = True

    temperature: float = option(0.1, "Temperature τ of the contrastive loss.", above=0)
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
    """The same for views that are consecutive segments of a recording."""

    segments: int | None = option(
        None, "Number of consecutive segments to compare; 2 where not given.", kind=int, minimum=2
    )

    def views(self, own: Views, dataset: str) -> Views:
        return own if self.segments is None else replace(own, segments=self.segments)


@dataclass(frozen=True)
class NTXent(Objective):
    """SimCLR: copies of one instance belong together."""

    temperature: float = option(0.1, "Temperature τ of the contrastive loss.", above=0)

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        from clocs.pretraining.losses import nt_xent

        return nt_xent(z, self.temperature)


cmsc = Method("cmsc", of="lead", views=segments(2), objective=SegmentsNCE)
cmlc = Method("cmlc", of="frame", views=leads(), objective=PatientNCE)
cmsmlc = Method("cmsmlc", of="frame", views=segments(2) * leads(), objective=SegmentsNCE)
simclr = Method("simclr", of="lead", views=perturbed("gaussian"), objective=NTXent)
