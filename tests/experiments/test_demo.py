from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from clocs.cli.tables import demo_table
from clocs.experiments import demo
from clocs.experiments.demo import DEMO, PATIENTS, encoder_folder, finished_demo, store_folder
from clocs.explorer.open import open_session
from clocs.pretraining.pretrain import pretrain
from clocs.store.store import Store

SHORT = {"epochs": 2, "batch_size": 64}


def test_the_demo_shows_every_encoder_and_a_second_run_reuses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "PRETRAINING", SHORT)
    monkeypatch.setattr(demo, "EVALUATION", SHORT)
    first = demo.run_demo(tmp_path / "demo", patients=40)
    page = (tmp_path / "demo" / "index.html").read_text(encoding="utf-8")
    for method in ("random", "random-bn", "cmsc"):
        assert f"<td>{method}</td>" in page
    assert page.count("data:image/png;base64,") == 6  # four rhythms, the bars, the distances
    assert "://" not in page  # nothing is fetched from outside
    for name in ("auc.png", "distances.png", "ecg-AFIB.png"):
        assert (tmp_path / "demo" / name).stat().st_size > 10_000
        page_mode = (tmp_path / "demo" / "index.html").stat().st_mode
        assert (tmp_path / "demo" / name).stat().st_mode == page_mode  # readable like the page
    weights = (tmp_path / "demo" / "encoders-40" / "cmsc" / "seed-0.safetensors").read_bytes()
    second = demo.run_demo(tmp_path / "demo", patients=40)
    assert [e.auc for e in second.evaluations] == [e.auc for e in first.evaluations]
    again = (tmp_path / "demo" / "encoders-40" / "cmsc" / "seed-0.safetensors").read_bytes()
    assert again == weights
    assert demo_table(second).row_count == 3
    assert set(second.json()) >= {"evaluations", "separability", "page"}
    assert (
        f"clocs explore {tmp_path / 'demo' / 'store-40'}" in second.explore
        and second.explore in page
    )


def test_the_explorer_opens_the_demo_that_is_here_and_makes_no_other(
    small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert finished_demo(DEMO) is None
    pretrain(
        small_store,
        method="random",
        out=encoder_folder(DEMO, PATIENTS, "cmsc"),
        embedding_dim=16,
    )
    shutil.copytree(small_store.path, store_folder(DEMO, PATIENTS))
    session = open_session(cache=tmp_path / "cache")
    assert session.title == "Demo with simulated ECGs"
    assert len(session.embeddings) == small_store.table["patient"].n_unique()
    assert not (tmp_path / "cache" / "demo").exists()
