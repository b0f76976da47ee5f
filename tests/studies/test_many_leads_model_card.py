"""Model cards say what the checkpoint's card and the results say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clocs.experiments.data import simulated_frames
from clocs.models.model_card import model_card
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.training.checkpoint import Checkpoint, load_checkpoint
from research.many_leads.model_card import rows_of, scores_section, ship
from research.many_leads.results import StudyResults

ENCODER: dict[str, Any] = {
    "method": "random-bn",
    "datasets": ["chapman"],
    "most_leads": None,
    "network": None,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("encoder")
    frames = simulated_frames("chapman", 0, patients=12)
    made = untrained(frames, Plan("random-bn", (0,), embedding_dim=8))[0]
    made.save(folder / "seed-0.safetensors")
    return load_checkpoint(folder)


def score(share: float, auc: float, **more: Any) -> dict[str, Any]:
    row = {**ENCODER, "dataset": "chapman", "protocol": "linear", "share": share, "leads": "12"}
    return row | {"auc_mean": auc, "ci95": [auc - 0.01, auc + 0.01], "encoders": 1} | more


def test_a_card_names_data_license_citation_scores_precision_and_limits(
    checkpoint: Checkpoint,
) -> None:
    scores = scores_section(checkpoint, [score(1.0, 0.91), score(0.1, 0.82)])
    text = model_card("small", checkpoint, scores=scores)
    for part in ("CC BY 4.0", "Zheng J", "float32", "no medical device", "identify a person"):
        assert part in text
    assert "| Chapman | linear | 0.910 (0.900–0.920) | 0.820 (0.810–0.830) | |" in text
    assert checkpoint.fingerprint in text


def test_scores_are_those_of_the_same_pre_training(checkpoint: Checkpoint) -> None:
    trained = {**ENCODER, "sha256": checkpoint.fingerprint}
    other = score(1.0, 0.5, method="cmsc")
    fewer = score(1.0, 0.6, leads="2")
    own = score(1.0, 0.9)
    results = StudyResults({}, {}, [], [trained], [other, fewer, own], [], [])
    assert rows_of(checkpoint, results) == [own]
    unknown = StudyResults({}, {}, [], [trained | {"sha256": "0"}], [own], [], [])
    assert rows_of(checkpoint, unknown) == []


def test_a_shipped_encoder_has_half_the_precision_a_card_and_a_page(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    trained = {**ENCODER, "sha256": checkpoint.fingerprint}
    results = StudyResults({}, {}, [], [trained], [score(1.0, 0.9)], [], [])
    folders = {"weights": tmp_path / "weights", "pages": tmp_path / "models"}
    file, page = ship("small", checkpoint, results, **folders)
    again = load_checkpoint(file)
    assert again.card.environment["weights stored as"] == "float16"
    text = page.read_text(encoding="utf-8")
    assert again.fingerprint in text and "0.900 (0.890–0.910)" in text


def test_a_card_without_scores_has_no_section_of_them(checkpoint: Checkpoint) -> None:
    text = model_card("small", checkpoint, scores=scores_section(checkpoint, []))
    assert "## Scores" not in text and "## Training data" in text
