"""The methods of the paper on one screen: what an instance is, its views, what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from clocs.errors import SettingError
from clocs.losses import patient_nce
from clocs.views import Views, leads, segments, single


@dataclass(frozen=True)
class Method:
    """A way to learn an encoder without labels.

    Attributes:
        of: What an instance is: one lead, or a frame in all its leads.
        views: What it is seen as.
        loss: What is asked of the embeddings (members, views, batch, dim), given whose they are;
            None where nothing is learned.
        statistics: Whether batch-norm statistics are estimated on training frames (untrained only).
    """

    of: Literal["lead", "frame"]
    views: Views
    loss: Callable[[Tensor, Tensor, float], Tensor] | None = None
    statistics: bool = False


METHODS = {
    "random": Method(of="lead", views=single()),
    "random-bn": Method(of="lead", views=single(), statistics=True),
    "cmsc": Method(of="lead", views=segments(2), loss=patient_nce),
    "cmlc": Method(of="frame", views=leads(), loss=patient_nce),
    "cmsmlc": Method(of="frame", views=segments(2) * leads(), loss=patient_nce),
}


def find_method(name: str) -> Method:
    """A method by its id."""
    if name not in METHODS:
        raise SettingError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]
