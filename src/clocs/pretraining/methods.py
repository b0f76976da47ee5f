"""The methods of the paper on one screen: what an instance is, its views, what is asked of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from clocs.errors import SettingError
from clocs.frames.views import Views, leads, perturbed, segments, single, transformed

# what is asked of the embeddings; see `clocs.pretraining.batches`
Objective = Literal["patient_nce", "nt_xent", "byol", "multitask", "labels"]


@dataclass(frozen=True)
class Method:
    """A way to learn an encoder.

    Attributes:
        of: What an instance is: one lead, or a frame in all its leads.
        views: What it is seen as.
        asks: What is asked of the embeddings of its views; None where nothing is learned.
        statistics: Whether batch-norm statistics are estimated on training frames (untrained only).
    """

    of: Literal["lead", "frame"]
    views: Views
    asks: Objective | None = None
    statistics: bool = False


METHODS = {
    "random": Method(of="lead", views=single()),
    "random-bn": Method(of="lead", views=single(), statistics=True),
    "supervised": Method(of="lead", views=single(), asks="labels"),
    "mtssl": Method(of="lead", views=transformed(), asks="multitask"),
    "byol": Method(of="lead", views=perturbed("gaussian"), asks="byol"),
    "simclr": Method(of="lead", views=perturbed("gaussian"), asks="nt_xent"),
    "cmsc": Method(of="lead", views=segments(2), asks="patient_nce"),
    "cmlc": Method(of="frame", views=leads(), asks="patient_nce"),
    "cmsmlc": Method(of="frame", views=segments(2) * leads(), asks="patient_nce"),
}

# MT-SSL's tasks that the paper kept; all six elsewhere
KEPT_TASKS = {"chapman": ("scaling", "negation", "inversion")}


def find_method(name: str) -> Method:
    """A method by its id."""
    if name not in METHODS:
        raise SettingError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    return METHODS[name]


def adapt(
    name: str,
    *,
    dataset: str,
    segments: int | None = None,
    perturb: str | None = None,
    tasks: tuple[str, ...] | None = None,
) -> Method:
    """A method with other views than its own, where that has a meaning.

    Args:
        name: The method's id.
        dataset: Decides MT-SSL's default tasks.
        segments: How many consecutive segments, for CMSC and CMSMLC.
        perturb: A chain such as 'gaussian>sa_t', for SimCLR, BYOL and the CLOCS family.
        tasks: Of MT-SSL.
    """
    from clocs.pretraining.perturbations import TASKS, parse

    method = find_method(name)
    views = method.views
    if segments is not None:
        if views.segments == 1:
            raise SettingError(f"{name} has no segments; --segments is for cmsc and cmsmlc")
        if segments < 2:
            raise SettingError(f"{name} compares at least 2 segments, not {segments}")
        views = replace(views, segments=segments)
    if perturb is not None:
        if method.asks not in ("patient_nce", "nt_xent", "byol"):
            raise SettingError(f"{name} takes no perturbations")
        views = replace(views, copies=(str(parse(perturb)),) * len(views.copies))
    if tasks is not None and name != "mtssl":
        raise SettingError(f"{name} has no tasks; --tasks is for mtssl")
    if name == "mtssl":
        chosen = tasks if tasks else KEPT_TASKS.get(dataset, tuple(TASKS))
        unknown = [task for task in chosen if task not in TASKS]
        if unknown:
            raise SettingError(
                f"there is no task {', '.join(unknown)}; choose from {', '.join(TASKS)}"
            )
        views = transformed(*(str(TASKS[task]) for task in chosen))
    return replace(method, views=views)
