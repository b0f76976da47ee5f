"""Model cards of the comparison's encoders, with their scores in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clocs.experiments.pages import markdown_table
from clocs.experiments.paper import DATASET_TITLES
from clocs.files import PUBLIC, write_atomic
from clocs.models.model_card import model_card
from clocs.training.checkpoint import STORED_AS, Checkpoint, load_checkpoint
from research.many_leads.items import DATASETS, SHARES
from research.many_leads.results import Row, StudyResults
from research.many_leads.tables import PROTOCOLS, cell, pick


def ship(
    name: str, checkpoint: Checkpoint, results: StudyResults, *, weights: Path, pages: Path
) -> tuple[Path, Path]:
    """Write an encoder for others: its weights in half precision, its card, and its page.

    Args:
        name: Of the files.
        checkpoint: The encoder as it was trained, by which its scores are found.
        results: Of the comparison.
        weights: Folder of the weights and the card.
        pages: Folder of the page.

    Returns:
        The weights and the page.
    """
    file, page = weights / f"{name}.safetensors", pages / f"{name}.md"
    checkpoint.save(file, half=True)
    made = load_checkpoint(file)
    text = model_card(name, made, scores=scores_section(made, rows_of(checkpoint, results)))
    pages.mkdir(parents=True, exist_ok=True)
    write_atomic(page, text.encode(), mode=PUBLIC)
    return file, page


def rows_of(checkpoint: Checkpoint, results: StudyResults) -> list[Row]:
    """The scores of one encoder, of all its leads: those of its pre-training in the results."""
    found = [row for row in results.pretrainings if row["sha256"] == checkpoint.fingerprint]
    keys = ("method", "datasets", "most_leads", "network")
    return [
        row
        for row in results.scores
        for own in found
        if all(row[key] == own[key] for key in keys) and row["leads"] == "12"
    ]


def scores_section(checkpoint: Checkpoint, rows: Sequence[Row]) -> str:
    """The section of a model card, of scores as in `StudyResults`; `rows_of` finds them."""
    lines = []
    for dataset in DATASETS:
        for protocol, title in PROTOCOLS.items():
            own = [pick(rows, dataset=dataset, protocol=protocol, share=share) for share in SHARES]
            if any(own):
                lines.append([DATASET_TITLES[dataset], title, *map(cell, own)])
    if not lines:
        return ""
    heads = ["dataset", "readout", *(f"{100 * share:g} % labeled" for share in SHARES)]
    intro = (
        "Macro AUROC per recording on test patients, with 95 % intervals. Patients are split by a "
        "hash of their IDs into 60 % training, 20 % validation and 20 % test; settings were chosen "
        "on validation patients. Fine-tuning changes the weights; the other readouts do not."
    )
    if STORED_AS in checkpoint.card.environment:
        intro += " Scores are of the weights before they were rounded to half precision."
    return "\n\n".join(["## Scores", intro, markdown_table(heads, lines, words=len(heads))])
