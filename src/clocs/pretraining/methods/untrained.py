"""Baselines that learn nothing: encoders with their initial weights."""

from __future__ import annotations

from clocs.frames.views import single
from clocs.pretraining.method import Method

random = Method("random", of="lead", views=single(), perturbable=False)
random_bn = Method("random-bn", of="lead", views=single(), perturbable=False, fits_batch_norm=True)
