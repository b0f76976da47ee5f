"""What `clocs info`, `clocs models` and `clocs figure` make; nothing heavy is imported at the top.

A card, a classifier's facts and a store's counts are JSON: `info` reads these alone, without torch
and without polars. `--verify` reads everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clocs._version import __version__
from clocs.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clocs.recording import Recording
    from clocs.store.store import Store
    from clocs.training.card import Card

COUNTS = "counts.json"  # in a store: what is in it, counted once
FIGURES = (".png", ".svg", ".pdf")
Progress = Callable[[int, int], None]


def describe(path: Path | str, *, verify: bool = False) -> tuple[str, Any]:
    """Show what is in a store, a checkpoint, a classifier or an index.

    Args:
        path: A store, a checkpoint (file or folder), a classifier, an index, or the name of a
            shipped model.
        verify: Read everything and check it against its hashes.
    """
    from clocs.store.manifest import MANIFEST
    from clocs.training.card import named_path

    place = named_path(path)
    if all((place / level / MANIFEST).is_file() for level in ("patient", "recording")):
        from clocs.patients.index_files import index_facts

        return "index", index_facts(place, verify=verify)
    if place.suffix == ".safetensors" or any(place.glob("seed-*.safetensors")):
        return _model(place, verify=verify)
    if not verify and (place / COUNTS).is_file() and (kept := _counted_before(place)):
        return "store", kept
    from clocs.cli.console import bar
    from clocs.store.store import open_store

    store = open_store(path)
    if verify:
        with bar("Verifying", "recordings") as progress:
            store.verify(progress)
    return "store", store_facts(store) | ({"verified": True} if verify else {})


def _model(path: Path, *, verify: bool) -> tuple[str, Any]:
    """The card of a classifier, or those of encoders."""
    from safetensors import SafetensorError, safe_open

    from clocs.errors import ClocsError
    from clocs.files import seed_files
    from clocs.models.classifier_card import is_classifier, read_classifier_card
    from clocs.training.card import read_card

    if is_classifier(path):
        if verify:
            from clocs.models.classifier import load_classifier

            load_classifier(path)
        return "classifier", read_classifier_card(path).to_dict()
    cards = []
    if not verify:
        with suppress(ClocsError, SafetensorError, OSError):
            for file in seed_files(path) if path.is_dir() else [path]:
                with safe_open(file, framework="numpy") as opened:
                    shapes = {k: opened.get_slice(k).get_shape() for k in opened.keys()}  # noqa: SIM118
                    cards.append(_card(read_card(file.with_suffix(".json")), shapes))
            return "encoder", cards if path.is_dir() else cards[0]
    from clocs.training.checkpoint import load_checkpoints  # which says what is wrong

    cards = [card_facts(one.card, one.weights, one.recordings) for one in load_checkpoints(path)]
    return "encoder", cards if path.is_dir() else cards[0]


def _card(card: Card, shapes: dict[str, list[int]]) -> dict[str, Any]:
    weights = 0
    for name, shape in shapes.items():
        if name.startswith("weights."):
            count = 1
            for length in shape:
                count *= length
            weights += count
    return asdict(card) | {"weights": weights, "hashed_recordings": shapes["recordings"][0]}


def card_facts(card: Card, weights: Any, recordings: Any) -> dict[str, Any]:
    """A checkpoint's card and sizes, ready for JSON."""
    count = sum(tensor.numel() for tensor in weights.values())
    return asdict(card) | {"weights": count, "hashed_recordings": len(recordings)}


def store_facts(
    store: Store, leads: Sequence[str] | None = None, split_seed: int = 0
) -> dict[str, Any]:
    """All that is counted in a store, with the instances of every method; kept in the store."""
    from clocs.files import write_atomic
    from clocs.frames.summary import store_info
    from clocs.pretraining.methods import METHODS

    instances = {name: (method.of, method.views) for name, method in METHODS.items()}
    facts = store_info(store, leads, split_seed, instances)
    if leads is None and split_seed == 0:
        with suppress(OSError):  # a store of somebody else
            kept = {"clocs": __version__, "facts": facts}
            write_atomic(store.path / COUNTS, json.dumps(kept).encode())
    return facts | {"vectors": _vectors(store.path)}


def _vectors(store: Path) -> dict[str, Any]:
    """Where a store's vectors lie, of how many encoders and frames they are, and their bytes."""
    from clocs.files import folder_sizes
    from clocs.store.manifest import VECTORS

    sizes = folder_sizes(store / VECTORS)
    folder = str(store / VECTORS)
    return {"folder": folder, "kinds": len(sizes), "bytes": sum(sizes.values())}


def _counted_before(path: Path) -> dict[str, Any] | None:
    """What `store_facts` has kept, if it is of this store and this version."""
    from clocs.store.manifest import Manifest

    content = Manifest.read(path).content_hash
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        kept = json.loads((path / COUNTS).read_bytes())
        if kept["clocs"] == __version__ and kept["facts"]["content_hash"] == content:
            return {**kept["facts"], "vectors": _vectors(path)}
    return None


def model_page(name: Path | str) -> tuple[str, str]:
    """List the models inside the package, or print the card of one in Markdown.

    Args:
        name: Name or file of a model; all shipped ones by default.
    """
    from clocs.models.classifier import load
    from clocs.models.model_card import model_card
    from clocs.training.card import weights_path

    stem = weights_path(name).stem
    return stem, model_card(stem, load(name))


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
    progress: Progress = lambda done, total: None,
) -> tuple[dict[str, Any], Any]:
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
    """
    from clocs.figures.canvas import save
    from clocs.store.store import open_store

    file = Path(out or f"{kind}.png")
    if file.suffix.lower() not in FIGURES or file.is_dir():
        raise SettingError(f"{file} is no figure; give a name that ends in {', '.join(FIGURES)}")
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
        import clocs
        from clocs.figures.scores import distance_histograms

        report = clocs.patient_distances(
            str(checkpoint), opened, metric=metric, split=split, leads=leads, progress=progress
        )
        title = f"{report.method} on {report.store}, {report.split} patients"
        panels = {"": (report.distances.intra, report.distances.inter)}
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
    from clocs.pretraining.methods import METHODS, find_method
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
