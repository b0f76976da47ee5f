"""What is in a store, a checkpoint, a classifier or an index: `clocs.describe`.

A card, a classifier's facts and a store's counts are JSON: these alone are read, without torch and
without polars, unless everything is to be verified.
"""

from __future__ import annotations

import json
import math
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
    """Show what is in a store, a checkpoint, a classifier or an index, or list the models.

    Args:
        path: A store, a checkpoint (file or folder), a classifier, an index, or the name of a
            shipped model; the command lists these models without it.
        verify: Read everything and check it against its hashes.
        progress: Called with (recordings done, recordings in total) when a store is verified.

    Returns:
        Its kind, 'store', 'encoder', 'classifier' or 'index', and all about it, ready for JSON.
    """
    from clocs.store.manifest import MANIFEST
    from clocs.training.card import weights_path

    place = weights_path(path)
    if all((place / level / MANIFEST).is_file() for level in ("patient", "recording")):
        from clocs.patients.index_files import INDEXED, index_facts

        facts = index_facts(place)
        if verify:
            from clocs.patients.index import PatientIndex

            for level in INDEXED:
                PatientIndex.load(place / level)
            facts["verified"] = True
        return "index", facts
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
    from safetensors import SafetensorError

    from clocs.errors import ClocsError
    from clocs.files import seed_files
    from clocs.training.card import is_classifier, read_classifier_card

    if is_classifier(path):
        if verify:
            from clocs.models.classifier import load_classifier

            load_classifier(path)
        return "classifier", read_classifier_card(path).to_dict()
    cards: list[dict[str, Any]] = []
    with suppress(ClocsError, SafetensorError, OSError, KeyError):
        cards = [_card_of(file) for file in seed_files(path)]
    if verify or not cards:
        from clocs.training.checkpoint import load_checkpoints  # which says what is wrong

        load_checkpoints(path)
    return "encoder", cards if path.is_dir() else cards[0]


def _card_of(file: Path) -> dict[str, Any]:
    from safetensors import safe_open

    from clocs.training.card import read_card

    with safe_open(file, framework="numpy") as opened:
        shapes = {k: opened.get_slice(k).get_shape() for k in opened.keys()}  # noqa: SIM118
    weights = sum(math.prod(v) for k, v in shapes.items() if k.startswith("weights."))
    return card_facts(read_card(file.with_suffix(".json")), weights, shapes["recordings"][0])


def card_facts(card: Card, weights: int, recordings: int) -> dict[str, Any]:
    """A checkpoint's card and the numbers in it, ready for JSON."""
    return asdict(card) | {"weights": weights, "hashed_recordings": recordings}


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
    """The name of a model and its card in Markdown, of a shipped one or a file."""
    from clocs.models.classifier import load
    from clocs.models.model_card import model_card
    from clocs.training.card import weights_path

    stem = weights_path(name).stem
    return stem, model_card(stem, load(name))
