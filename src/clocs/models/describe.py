"""What is in a store, a checkpoint, a classifier or an index: `clocs.describe`.

A card, a classifier's facts and a store's counts are JSON: these alone are read, without torch and
without polars, unless everything is to be verified.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs._version import __version__

if TYPE_CHECKING:
    from clocs.store.store import Store
    from clocs.training.card import Card

COUNTS = "counts.json"  # in a store: what is in it, counted once


def describe(
    path: Path | str,
    *,
    verify: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[str, Any]:
    """Show what is in a store, a checkpoint, a classifier or an index.

    Args:
        path: A store, a checkpoint (file or folder), a classifier, an index, or the name of a
            shipped model.
        verify: Read everything and check it against its hashes.
        progress: Called with (recordings done, recordings in total) when a store is verified.

    Returns:
        Its kind, 'store', 'encoder', 'classifier' or 'index', and all about it, ready for JSON.
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
    from clocs.store.store import open_store

    store = open_store(path)
    if verify:
        store.verify(progress)
    return "store", store_facts(store) | ({"verified": True} if verify else {})


def _model(path: Path, *, verify: bool) -> tuple[str, Any]:
    """The card of a classifier, or those of encoders."""
    from safetensors import SafetensorError, safe_open

    from clocs.errors import ClocsError
    from clocs.files import seed_files
    from clocs.training.card import is_classifier, read_card, read_classifier_card

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
