"""One page per model, with all that a person must know; the documentation shows the same."""

from __future__ import annotations

from pathlib import Path

import pytest

import clocs
from clocs.errors import CheckpointError, suggestion
from clocs.experiments.pages import filled, markdown_table
from clocs.models.model_card import HEADS, cells_of, model_card, shipped_models
from clocs.training.card import SHIPPED
from clocs.training.checkpoint import Checkpoint

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
AGAIN = "run script/models pages"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_card_names_data_license_citation_protocol_and_scores(name: str) -> None:
    text = model_card(name, clocs.load(name))
    for part in ("license: ", "Please cite: ", "## How it was made", "medical device"):
        assert part in text
    assert "## Scores" in text and f"clocs evaluate {name} stores/" in text


@pytest.mark.parametrize("name", SHIPPED)
def test_a_fault_of_the_training_is_on_the_page_of_the_encoder_and_of_its_classifiers(
    name: str,
) -> None:
    """The encoders of many leads in the package were trained before the gradient was mended."""
    text = model_card(name, clocs.load(name))
    before = name.startswith("rhythm") or name == "cmsmlc-many-leads"
    assert ("## A fault of the training" in text) == before
    assert "| trained with | torch " in text or SHIPPED[name].kind == "classifier"


@pytest.mark.parametrize("name", SHIPPED)
def test_the_documentation_has_the_card_of_every_shipped_model(name: str) -> None:
    page = (DOCS / "models" / f"{name}.md").read_text(encoding="utf-8")
    assert page == model_card(name, clocs.load(name)), AGAIN


def test_the_documentation_lists_what_clocs_models_lists() -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    listed = map(cells_of, shipped_models())
    rows = [[f"[{cells[0]}](models/{cells[0]}.md)", *cells[1:]] for cells in listed]
    parts = {"models": markdown_table(HEADS, rows, words=len(HEADS))}
    assert filled(text, parts, where="models.md") == text, AGAIN
    assert {path.stem for path in (DOCS / "models").glob("*.md")} == set(SHIPPED)


def test_another_model_of_the_same_name_is_not_taken_for_the_shipped_one(
    checkpoint: Checkpoint,
) -> None:
    text = model_card("cmsc-chapman", checkpoint)
    assert "## How it was made" not in text and "## Scores" not in text


@pytest.mark.parametrize(
    ("given", "meant"), [("rhythm-chapmn", "rhythm-chapman"), ("AFBI", "AFIB")]
)
def test_a_mistyped_name_gets_the_one_that_was_meant(given: str, meant: str) -> None:
    assert suggestion(given, ("SR", "AFIB", "rhythm-chapman")) == f"did you mean {meant}?"
    if meant in SHIPPED:
        with pytest.raises(CheckpointError, match=f"did you mean {meant}"):
            clocs.describe(given)
