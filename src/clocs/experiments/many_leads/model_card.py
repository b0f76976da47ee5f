"""Model cards: what a person must know before using an encoder, from its card and its results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clocs.datasets.downloads.publications import PUBLICATIONS
from clocs.experiments.many_leads.cells import PROTOCOLS, TITLES, cell, table
from clocs.experiments.many_leads.items import DATASETS, SHARES
from clocs.experiments.many_leads.results import Row, StudyResults
from clocs.experiments.many_leads.steps import count_weights
from clocs.experiments.paper import DATASET_TITLES
from clocs.files import PUBLIC, write_atomic
from clocs.training.checkpoint import STORED_AS, Checkpoint, load_checkpoint


def model_card(name: str, checkpoint: Checkpoint, rows: Sequence[Row]) -> str:
    """The page of an encoder in Markdown.

    Args:
        name: Of the encoder, the title of the page.
        checkpoint: The encoder.
        rows: Its scores, as in `StudyResults`; `rows_of` finds them.
    """
    sections = [
        f"# {name}",
        _summary(checkpoint),
        table(["", ""], _facts(checkpoint)),
        _use(name, checkpoint),
        _scores(checkpoint, rows),
        _data(checkpoint),
        _limits(checkpoint),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


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
    text = model_card(name, load_checkpoint(file), rows_of(checkpoint, results))
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


def _summary(checkpoint: Checkpoint) -> str:
    card = checkpoint.card
    leads = card.encoder.get("leads")
    sees = (
        f"sees up to {len(leads)} leads at once, any of which may be missing,"
        if leads
        else "sees one lead at a time"
    )
    return (
        f"An encoder of ECGs that {sees} and turns {card.frame.seconds:g} s into a vector of "
        f"{card.encoder['embedding_dim']} numbers. It was learned without labels."
    )


def _facts(checkpoint: Checkpoint) -> list[list[str]]:
    card = checkpoint.card
    training = card.training
    facts = [
        ["method", TITLES.get(card.method, card.method)],
        ["network", f"`{card.encoder['name']}`, {count_weights(checkpoint):,} weights"],
        ["leads", ", ".join(card.encoder.get("leads") or card.leads)],
        ["frame", f"{card.frame.seconds:g} s at {card.frame.rate:g} Hz"],
        ["input", card.normalisation],
        ["seed", str(card.seed)],
        ["epochs", f"{card.metrics['epochs']:,}"],
        ["optimiser", f"{training.get('optimiser', 'adam')}, learning rate {training.get('lr'):g}"],
        ["batch", f"{training.get('batch_size')} instances"],
        ["weights stored as", str(card.environment.get(STORED_AS, "float32"))],
        ["version of clocs", card.clocs],
        ["sha256 of the weights", f"`{checkpoint.fingerprint}`"],
    ]
    return facts


def _use(name: str, checkpoint: Checkpoint) -> str:
    return "\n".join(
        [
            "## Use",
            "",
            "```python",
            "import clocs",
            "",
            f'encoder = clocs.load("{name}.safetensors")',
            'vectors = clocs.embed(encoder, "stores/mine")',
            "```",
            "",
            "It is meant for research: as a start for classifiers of one's own recordings, for "
            "search among them, and as a baseline. It is no medical device and must not be used "
            "for decisions about patients.",
        ]
    )


def _scores(checkpoint: Checkpoint, rows: Sequence[Row]) -> str:
    lines = []
    for dataset in DATASETS:
        for protocol, title in PROTOCOLS.items():
            own = [_best(rows, dataset, protocol, share) for share in SHARES]
            if any(own):
                lines.append([DATASET_TITLES[dataset], title, *map(cell, own)])
    if not lines:
        return ""
    heads = ["dataset", "readout", *(f"{100 * share:g} % labelled" for share in SHARES)]
    intro = (
        "Macro AUROC per recording on test patients, with 95 % intervals. Patients are split by a "
        "hash of their IDs into 60 % training, 20 % validation and 20 % test; settings were chosen "
        "on validation patients. Fine-tuning changes the weights; the other readouts do not."
    )
    if STORED_AS in checkpoint.card.environment:
        intro += " Scores are of the weights before they were rounded to half precision."
    return "\n\n".join(["## Scores", intro, table(heads, lines)])


def _best(rows: Sequence[Row], dataset: str, protocol: str, share: float) -> Row | None:
    wanted = (dataset, protocol, share)
    found = [row for row in rows if (row["dataset"], row["protocol"], row["share"]) == wanted]
    return max(found, key=lambda r: (r["encoders"], "conditions" not in r), default=None)


def _data(checkpoint: Checkpoint) -> str:
    lines = []
    for one in checkpoint.card.trained_on:
        published = PUBLICATIONS.get(one.dataset)
        if published is None:
            lines.append(f"- {one.dataset}, split seed {one.split_seed}.")
            continue
        licence = published.licence or "the publisher names no licence"
        lines.append(
            f"- [{published.title}]({published.page}); licence: {licence}. {published.citation}"
        )
    if not lines:
        return ""
    intro = (
        "Training and validation patients of these datasets have shaped the weights; "
        "`clocs evaluate` refuses to test on them."
    )
    return "\n\n".join(["## Training data", intro, "\n".join(lines)])


def _limits(checkpoint: Checkpoint) -> str:
    lines = [
        "- It has seen patients of few hospitals; other devices, ages and diseases may look unlike "
        "what it knows.",
        "- Frames at another rate must be resampled, which `clocs` does; frames of another length "
        "are other input, and embeddings of two lengths cannot be compared.",
        f"- {checkpoint.card.notice}",
    ]
    return "\n\n".join(["## Limits", "\n".join(lines)])
