"""Losses on embeddings, one value a member. Knows nothing about encoders, views or data."""

from __future__ import annotations

import torch
from torch import Tensor


def unit(z: Tensor) -> Tensor:
    """Unit vectors along the last axis; a zero vector stays zero and gets zero gradient.

    `F.normalize` has a gradient of 1e12 at zero: finite, and harmful.
    """
    squared = z.square().sum(dim=-1, keepdim=True)
    alive = squared > 0
    return torch.where(alive, z * torch.where(alive, squared, 1).rsqrt(), 0)


def same_patient_pairs(patients: Tensor) -> Tensor:
    """patients: (members, batch) -> (members, batch, batch) bool: i ≠ k of one patient."""
    same = patients[:, :, None] == patients[:, None, :]
    return same & ~torch.eye(patients.shape[1], dtype=torch.bool, device=patients.device)


def patient_nce(z: Tensor, patients: Tensor, temperature: float = 0.1) -> Tensor:
    """The patient-specific noise contrastive estimation loss of CLOCS (its equations 5 to 8).

    For every pair of views A, B: L_diag(A,B) + L_diag(B,A) + L_off(A,B) + L_off(B,A); the mean over
    all unordered pairs. L_diag asks instance i of A to find instance i of B among all of B; L_off
    asks it to find every other instance k of the same patient, and is 0 where there is none.

    Args:
        z: (members, views, batch, dim) embeddings, not normalised.
        patients: (members, batch) integers that tell whose instance it is.
        temperature: τ.

    Returns:
        (members,) losses.
    """
    u = unit(z)
    a, b = torch.triu_indices(z.shape[1], z.shape[1], offset=1, device=z.device)
    similarity = u[:, a] @ u[:, b].transpose(-1, -2) / temperature  # (members, pairs, batch, batch)
    # log p(k of B | i of A) + log p(i of A | k of B): both directions at once
    log_p = (
        2 * similarity
        - similarity.logsumexp(dim=-1, keepdim=True)
        - similarity.logsumexp(dim=-2, keepdim=True)
    )
    diagonal = log_p.diagonal(dim1=-2, dim2=-1).mean(dim=(1, 2))
    positives = same_patient_pairs(patients)
    count = positives.sum(dim=(1, 2))
    off_diagonal = (log_p.mean(dim=1) * positives).sum(dim=(1, 2)) / count.clamp(min=1)
    return -(diagonal + off_diagonal)
