"""Losses of a batch that processes share: each scores its own rows against those of all.

The parts of all processes add up to the loss that one process has, as `losses` computes it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clocs.kernels.collectives import Share
from clocs.pretraining.losses import unit


def patient_nce_of_rows(
    z: Tensor,
    share: Share,
    positives: Tensor,
    neither: Tensor | None = None,
    *,
    queue: tuple[Tensor, Tensor, Tensor] | None = None,
    temperature: float = 0.1,
) -> Tensor:
    """(members,) the part of `patient_nce`, or of `queued_patient_nce`, that these rows have.

    Args:
        z: (members, views, own, dim) embeddings of the rows of this process, not normalized.
        share: Which rows of the batch these are.
        positives: (members, batch, batch) bool of the whole batch.
        neither: The same shape: pairs that are neither pulled together nor pushed apart.
        queue: Of past embeddings, what `queued_patient_nce` takes, of the whole batch.
        temperature: τ.
    """
    views, places = z.shape[1], share.places
    a, b = torch.triu_indices(views, views, offset=1, device=z.device)
    a, b = torch.cat([a, b]), torch.cat([b, a])  # both directions
    ours = unit(z).index_select(1, a) / temperature
    theirs = unit(share.all_gather(z)).index_select(1, b)
    similarity = ours @ theirs.transpose(-1, -2)  # (members, pairs, own, batch)
    if neither is not None:
        similarity = similarity.masked_fill(neither[:, None, places], -torch.inf)
    if queue is not None:
        past, past_positives, there = queue
        before = ours @ past[:, None].transpose(-1, -2)
        before = before.masked_fill(~there[:, None, None], -torch.inf)
        similarity = torch.cat([similarity, before], dim=-1)
        positives = torch.cat([positives, past_positives & there[:, None]], dim=-1)
    log_p = similarity.log_softmax(dim=-1)
    own = torch.arange(len(places), device=z.device)
    diagonal = log_p[:, :, own, places].sum(dim=-1) / share.batch
    count = positives.sum(dim=(1, 2)).clamp(min=1)[:, None]
    others = log_p.masked_fill(~positives[:, None, places], 0).sum(dim=(-2, -1)) / count
    return -2 * (diagonal + others).mean(dim=1)


def nt_xent_of_rows(z: Tensor, share: Share, temperature: float = 0.1) -> Tensor:
    """(members,) the part of `nt_xent` that these rows have; z: (members, views, own, dim)."""
    members, views, own, dim = z.shape
    u = unit(z).view(members, views * own, dim)
    every = unit(share.all_gather(z)).view(members, views * share.batch, dim)
    similarity = u @ every.transpose(1, 2) / temperature
    instance = torch.arange(share.batch, device=z.device).repeat(views)
    view = torch.arange(views, device=z.device)[:, None]
    place = (view * share.batch + share.places).flatten()  # of these rows among all
    itself = place[:, None] == torch.arange(views * share.batch, device=z.device)
    similarity = similarity.masked_fill(itself, -torch.inf)
    log_p = similarity - similarity.logsumexp(dim=-1, keepdim=True)
    positives = (share.places.repeat(views)[:, None] == instance) & ~itself
    number = views * share.batch * (views - 1)
    return -log_p.masked_fill(~positives, 0).sum(dim=(1, 2)) / number
