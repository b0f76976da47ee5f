"""The CLOCS family and SimCLR: views that belong together are found among all views of a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import MAX_LEADS, Views, leads, perturbed, segments
from clocs.pretraining.method import Method, option
from clocs.pretraining.projection import Projecting

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Encoder, Weights
    from clocs.pretraining.batches import Batch

PAST, WHOSE = "queue.embeddings", "queue.patients"


@dataclass(frozen=True)
class PatientNCE(Projecting):
    """CLOCS: views of one patient belong together, unless recorded too far apart."""

    compares_patients = True
    shares_batches = True

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
    queue: int = option(
        0,
        "Past embeddings to compare with, too, where batches hold too few patients.",
        minimum=0,
    )

    def check(self, frames: Frames) -> None:
        if self.queue and self.positives_within is not None:
            raise SettingError("`queue` keeps no dates for `positives_within`; leave out one")
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

    def shared_loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        from clocs.pretraining.shared_losses import patient_nce_of_rows

        assert batch.share is not None
        z, pairs = self.projected(z, weights), self.pairs(batch.whole)
        return patient_nce_of_rows(z, batch.share, *pairs, temperature=self.temperature)

    def extra_buffers(self, weights: Weights, buffers: Weights, *, dim: int) -> Weights:
        if not self.queue:
            return {}
        some = next(iter(weights.values()))
        size = (len(some), self.queue)
        # patients as numbers of the same type as all buffers: exact up to 2²⁴; −1: none yet
        return {
            PAST: some.new_zeros(*size, self.projection or dim),
            WHOSE: some.new_full(size, -1),
        }

    def train_loss(
        self, encoder: Encoder, weights: Weights, buffers: Weights, batch: Batch, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        if not self.queue:
            return super().train_loss(encoder, weights, buffers, batch, keys)
        import torch

        from clocs.pretraining.losses import queued_patient_nce, unit
        from clocs.pretraining.shared_losses import patient_nce_of_rows

        z, updated = encoder.encode_training(weights, buffers, batch.x, keys)
        z = self.projected(batch.by_view(z), weights)
        past, whose = buffers[PAST], buffers[WHOSE]
        share, batch = batch.share, batch.whole
        patients = batch.patients.to(whose.dtype)
        own = patients[:, :, None] == whose[:, None]
        if self.positives == "instance":
            own = torch.zeros_like(own)
        positives, queue = self.pairs(batch)[0], (past, own, whose >= 0)
        if share is None:
            loss = queued_patient_nce(z, positives, *queue, self.temperature)
        else:
            loss = patient_nce_of_rows(
                z, share, positives, queue=queue, temperature=self.temperature
            )
            z = share.all_gather(z.detach())
        newest = unit(z.detach()).flatten(1, 2)
        kept = {
            PAST: torch.cat([newest, past], dim=1)[:, : self.queue],
            WHOSE: torch.cat([patients.repeat(1, z.shape[1]), whose], dim=1)[:, : self.queue],
        }
        return loss, buffers | updated | kept

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
        "Most leads of a view, for encoders of many leads: it keeps 1 to so many at random; "
        f"{MAX_LEADS} where not given.",
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
class NTXent(Projecting):
    """SimCLR: copies of one instance belong together."""

    temperature: float = option(0.1, "Temperature τ of the contrastive loss.", above=0)

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        from clocs.pretraining.losses import nt_xent

        return nt_xent(self.projected(z, weights), self.temperature)

    def shared_loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        from clocs.pretraining.shared_losses import nt_xent_of_rows

        assert batch.share is not None
        return nt_xent_of_rows(self.projected(z, weights), batch.share, self.temperature)


cmsc = Method("cmsc", of="lead", views=segments(2), objective=SegmentsNCE)
cmlc = Method("cmlc", of="frame", views=leads(), objective=LeadsNCE)
cmsmlc = Method("cmsmlc", of="frame", views=segments(2) * leads(), objective=SegmentsLeadsNCE)
simclr = Method("simclr", of="lead", views=perturbed("gaussian"), objective=NTXent)
