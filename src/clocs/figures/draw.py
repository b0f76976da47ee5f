"""Figures that explain the methods, drawn to a file: `clocs.figure`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clocs.errors import SettingError
from clocs.figures.canvas import SUFFIXES, save
from clocs.store.store import open_store

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clocs.patients.distances import PatientDistances
    from clocs.recording import Recording
    from clocs.store.store import Store


def figure(
    kind: Literal["perturbations", "views", "similarity", "distances"],
    store: Path | str,
    *,
    checkpoint: Path | str | None = None,
    out: Path | str | None = None,
    recording: str | None = None,
    leads: Sequence[str] | None = None,
    perturb: Sequence[str] = (),
    seed: int = 0,
    split: Literal["train", "validation", "test", "all"] = "test",
    metric: Literal["euclidean", "cosine"] = "euclidean",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Any], PatientDistances | None]:
    """Draw perturbations, views, the similarities of a batch, or distances between patients.

    The paper's appendix B, figures 1, 2 and 6. Distances are printed as well.

    Args:
        kind: What to draw.
        store: Store made by `clocs prepare`.
        checkpoint: For similarity and distances: the encoder, a file, a folder (then its first
            seed) or a name (`clocs models`).
        out: Figure to write: .png, .svg or .pdf; KIND.png by default.
        recording: For perturbations and views: recording ID; the first that is long enough by
            default.
        leads: Leads to draw, such as II,V2; of perturbations the first one.
        perturb: For perturbations: chain such as 'gaussian>sa_t'; the paper's five by default.
        seed: For perturbations and similarity: random seed.
        split: For distances: whose recordings, by patient.
        metric: For distances: Euclidean between vectors as they are, as in the paper; or cosine.
        progress: Called with (recordings done, recordings in total).

    Returns:
        The file and what it shows; and the distances, where those are drawn.
    """
    file = Path(out or f"{kind}.png")
    if file.suffix.lower() not in SUFFIXES or file.is_dir():
        raise SettingError(f"{file} is no figure; give a name that ends in {', '.join(SUFFIXES)}")
    if kind in ("similarity", "distances") and checkpoint is None:
        raise SettingError(f"{kind} are those of an encoder; give `checkpoint`")
    report, opened = None, open_store(store)
    if kind == "perturbations":
        drawn, facts = _perturbations(opened, recording, leads, perturb, seed)
    elif kind == "views":
        drawn, facts = _views(opened, recording, leads)
    elif kind == "similarity":
        drawn, facts = _similarity(opened, Path(str(checkpoint)), seed)
    else:
        from clocs.figures.scores import distance_histograms
        from clocs.patients.distances import patient_distances

        report = patient_distances(
            str(checkpoint), opened, metric=metric, split=split, leads=leads, progress=progress
        )
        title = "{method} on {store}, {split} patients".format(**report.about)
        panels = {"": (report.intra, report.inter)}
        name = "Euclidean" if metric == "euclidean" else metric
        drawn, facts = distance_histograms(panels, title=title, metric=name), report.json()
    file.parent.mkdir(parents=True, exist_ok=True)
    save(drawn, file)
    return {"file": str(file), **facts}, report


def _perturbations(
    store: Store,
    recording: str | None,
    leads: Sequence[str] | None,
    chains: Sequence[str],
    seed: int,
) -> tuple[Figure, dict[str, Any]]:
    from clocs.figures.methods import APPENDIX_B, first_frame, show_perturbations

    lead, spec = store.choose_leads(leads)[0], store.manifest.frame
    chosen = _recording(store, recording, [lead], spec.seconds)
    drawn = show_perturbations(
        first_frame(chosen, spec, lead),
        spec,
        chains=chains or APPENDIX_B,
        amplitude=chosen.unit,
        title=f"A recording, lead {lead}",
        seed=seed,
    )
    return drawn, {"recording": chosen.id, "lead": lead, "seed": seed}


def _views(
    store: Store, recording: str | None, leads: Sequence[str] | None
) -> tuple[Figure, dict[str, Any]]:
    from clocs.figures.methods import show_views
    from clocs.frames.views import frame_for

    names = store.choose_leads(leads)
    seconds = max(n * frame_for(store.manifest, segments=n).seconds for n in (1, 2))
    chosen = _recording(store, recording, names, seconds)
    drawn = show_views(chosen, dataset=store.manifest, leads=names)
    return drawn, {"recording": chosen.id, "leads": list(names)}


def _similarity(store: Store, checkpoint: Path, seed: int) -> tuple[Figure, dict[str, Any]]:
    from clocs.figures.methods import show_similarity
    from clocs.frames.make import make_frames
    from clocs.frames.views import frame_for
    from clocs.pretraining.methods import METHODS
    from clocs.pretraining.plan import find_method
    from clocs.recording import with_derived
    from clocs.training.checkpoint import load_checkpoint

    loaded = load_checkpoint(checkpoint)
    own = METHODS.get(loaded.card.method)
    several = own is not None and (own.views.all_leads or own.views.segments > 1)
    method = loaded.card.method if several else "cmsc"
    spec = frame_for(store.manifest, segments=find_method(method).views.segments)
    has_all = set(loaded.card.leads) <= set(with_derived(store.leads))
    frames = make_frames(store, spec=spec, leads=loaded.card.leads if has_all else None)
    drawn = show_similarity(loaded, frames, method=method, batch=16, seed=seed)
    return drawn, {"method": method, "seed": seed, "leads": list(frames.leads)}


def _recording(store: Store, which: str | None, leads: Sequence[str], seconds: float) -> Recording:
    """The recording with this ID, or the first with these leads that is long enough."""
    if which is not None:
        return store.recording(which)
    lasts = (store.table["samples"] / store.table["rate"]).to_numpy()
    for row in store.rows_with(leads):
        if lasts[row] >= seconds - 1e-6:
            return store.recording(int(row))
    raise SettingError(
        f"{store.path} has no recording of {seconds:g} s or more with {', '.join(leads)}; "
        "choose other `leads`"
    )
