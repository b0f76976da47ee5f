"""Losses on embeddings, one value per member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from clocs.kernels.gpu import can_use_triton
from clocs.kernels.native import contrast


def unit(z: Tensor) -> Tensor:
    """Unit vectors along the last axis; a zero vector stays zero and gets zero gradient.

    `F.normalize` has a gradient of 1e12 at zero: finite, and harmful.
    """
    function: Callable[[Tensor], Tensor] = _Unit.apply
    return function(z)


def same_patient_pairs(patients: Tensor) -> Tensor:
    """patients: (members, batch) -> (members, batch, batch) bool: i ≠ k of one patient."""
    same = patients[:, :, None] == patients[:, None, :]
    return same & ~torch.eye(patients.shape[1], dtype=torch.bool, device=patients.device)


def patient_nce(z: Tensor, patients: Tensor, temperature: float = 0.1) -> Tensor:
    """(members,) the patient-specific noise contrastive estimation loss (CLOCS, equations 5 to 8).

    For every pair of views A, B: L_diag(A,B) + L_diag(B,A) + L_off(A,B) + L_off(B,A); the mean over
    all unordered pairs. L_diag matches instance i of A to instance i of B among all of B; L_off
    matches it to every other instance k of its patient, and is 0 where there is none.

    Args:
        z: (members, views, batch, dim) embeddings, not normalized.
        patients: (members, batch) numbers of the patients.
        temperature: τ.
    """
    if in_kernels(z):
        from clocs.kernels.contrast_triton import contrasted

        return contrasted(z, temperature, patients)
    u = unit(z)
    a, b = torch.triu_indices(z.shape[1], z.shape[1], offset=1, device=z.device)
    ours, theirs = u.index_select(1, a) / temperature, u.index_select(1, b)
    similarity = ours @ theirs.transpose(-1, -2)  # (members, pairs, batch, batch)
    cross_entropy: Callable[..., Tensor] = _BothWays.apply
    return cross_entropy(similarity, same_patient_pairs(patients)).mean(dim=1)


def in_kernels(z: Tensor) -> bool:
    """Whether Triton kernels compute the losses: by device and type alone."""
    return z.dtype == torch.float32 and can_use_triton(z, z.dtype)


class _Unit(torch.autograd.Function):
    """`unit`, with its gradient in one line: autograd would go through ten."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        squared = z.square().sum(dim=-1, keepdim=True)
        inverse = squared.rsqrt().masked_fill_(squared == 0, 0)
        u = z * inverse
        ctx.save_for_backward(u, inverse)
        return u

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        u, inverse = ctx.saved_tensors
        along = (u * gradients[0]).sum(dim=-1, keepdim=True)
        return torch.addcmul(gradients[0], u, along, value=-1).mul_(inverse)


class _BothWays(torch.autograd.Function):
    """−Σ share · (log p(k of B | i of A) + log p(i of A | k of B)): both directions at once.

    similarity: (members, pairs, batch, batch), positives: (members, batch, batch) bool ->
    (members, pairs). The share of the diagonal is 1, and that of all positives together is 1.
    Softmax is both the value's by-product and the gradient, so that each is computed once.
    """

    @staticmethod
    def forward(ctx: Any, similarity: Tensor, positives: Tensor) -> Tensor:
        compiled = contrast(similarity, positives)
        if compiled is not None:
            ctx.save_for_backward(compiled[1])
            return compiled[0]
        count = positives.sum(dim=(1, 2), keepdim=True).clamp(min=1)
        share = positives.to(similarity.dtype) / count
        share.diagonal(dim1=1, dim2=2).add_(1 / similarity.shape[2])
        share = share[:, None]
        value = -2 * (similarity * share).sum(dim=(-2, -1))
        slope = -2 * share
        for dim in (-1, -2):
            top = similarity.amax(dim=dim, keepdim=True)
            e = (similarity - top).exp_()
            total, wanted = e.sum(dim=dim, keepdim=True), share.sum(dim=dim, keepdim=True)
            value += ((total.log() + top) * wanted).sum(dim=(-2, -1))
            slope = torch.addcmul(slope, e, wanted / total)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradients[0][..., None, None], None


def nt_xent(z: Tensor, temperature: float = 0.1, patients: Tensor | None = None) -> Tensor:
    """SimCLR's loss: each view finds the other views of its instance among all views of the batch.

    z: (members, views, batch, dim), not normalized -> (members,). With patients: (members, batch),
    a view also finds the views of the other instances of its patient, as in `patient_nce`: the mean
    over these pairs is added.
    """
    if in_kernels(z) and patients is None:
        from clocs.kernels.contrast_triton import contrasted

        return contrasted(z, temperature, None)
    members, views, batch, dim = z.shape
    u = unit(z).reshape(members, views * batch, dim)
    similarity = u @ u.transpose(1, 2) / temperature
    itself = torch.eye(views * batch, dtype=torch.bool, device=z.device)
    similarity = similarity.masked_fill(itself, -torch.inf)
    log_p = similarity - similarity.logsumexp(dim=-1, keepdim=True)
    instance = torch.arange(batch, device=z.device).repeat(views)
    positives = (instance[:, None] == instance) & ~itself
    loss = -log_p.masked_fill(~positives, 0).sum(dim=(1, 2)) / positives.sum()
    if patients is None:
        return loss
    others = same_patient_pairs(patients).repeat(1, views, views)
    far = -log_p.masked_fill(~others, 0).sum(dim=(1, 2))
    return loss + far / others.sum(dim=(1, 2)).clamp(min=1)


def classification(logits: Tensor, targets: Tensor, multilabel: bool) -> Tensor:
    """(…, classes) logits and targets -> (…) cross-entropy; multi-label: mean of yes/no ones."""
    targets = targets.to(logits.dtype)
    if multilabel:
        return (functional.softplus(logits) - logits * targets).mean(dim=-1)
    return -(logits.log_softmax(dim=-1) * targets).sum(dim=-1)
