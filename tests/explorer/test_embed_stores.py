from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clocs import Store
from clocs.explorer.embed_stores import embed_stores
from clocs.training.checkpoint import load_checkpoint


def test_stores_use_the_encoders_leads_and_a_note_names_any_difference(
    small_store: Store, encoder: Path, tmp_path: Path
) -> None:
    weights = encoder / "seed-0.safetensors"
    patients, _ = embed_stores(weights, [small_store])
    assert patients.leads == ("II", "V2", "aVL", "aVR") and not patients.problems
    loaded = load_checkpoint(encoder)
    other = tmp_path / "other.safetensors"
    replace(loaded, card=replace(loaded.card, leads=("II", "Frank X"))).save(other)
    patients, _ = embed_stores(other, [small_store])
    assert patients.leads == ("II",)
    ((dataset, sentence),) = patients.problems
    assert dataset == small_store.manifest.dataset
    assert "embedded with II" in sentence and "(II, Frank X)" in sentence
