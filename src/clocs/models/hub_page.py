"""The page of a model on a hub: a model card in Hugging Face's format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from clocs.datasets.downloads.publications import PUBLICATIONS
from clocs.errors import SettingError
from clocs.models.classifier import Classifier
from clocs.models.export_facts import export_facts, first_encoder
from clocs.training.checkpoint import Checkpoint

TAGS = ("ecg", "electrocardiogram", "medical", "self-supervised-learning", "clocs")
# licences by the names that the hub gives them
_LICENCES = {
    "apache-2.0": "apache-2.0",
    "cc-by-4.0": "cc-by-4.0",
    "cc0-1.0": "cc0-1.0",
    "mit": "mit",
    "odc-by-1.0": "odc-by",
}
_USE = """```python
from clocs.models.hub import HubModel

model = HubModel.from_pretrained("{name}")  # a folder, or owner/name on a hub
```"""


def hub_package() -> Any:
    """`huggingface_hub`."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise SettingError(
            "a model for a hub needs the package huggingface_hub; pip install 'clocs[huggingface]'"
        ) from error
    return huggingface_hub


def hub_page(model: Checkpoint | Classifier) -> str:
    """The README.md: facts for programs in YAML, then a page for people."""
    sections = [_summary(model), _facts(model), _use(model), _scores(model), _data(model)]
    sections.append(_limits(model))
    front = f"---\n{_front_matter(model)}\n---"
    title = f"# {_name(model)}"
    return "\n\n".join([front, title, *(section for section in sections if section)]) + "\n"


def _name(model: Checkpoint | Classifier) -> str:
    if isinstance(model, Classifier):
        return model.card.name
    return "-".join([model.card.method, *(one.dataset for one in model.card.trained_on)])


def _front_matter(model: Checkpoint | Classifier) -> str:
    hub = hub_package()
    score = _auc(model)
    results = (
        [
            hub.EvalResult(
                task_type="time-series-classification",
                dataset_type=model.card.dataset or "ecg",
                dataset_name=model.card.dataset or "ecg",
                metric_type="roc_auc",
                metric_value=round(score, 4),
                metric_name="macro AUROC on test patients",
            )
        ]
        if score is not None
        else None
    )
    licence = _licence(model)
    slug = re.sub(r"[^a-z0-9.]+", "-", licence.lower()).strip("-")
    known = _LICENCES.get(slug)
    data = hub.ModelCardData(
        license=known or ("other" if slug else None),
        license_name=None if known or not slug else slug[:64],
        library_name="clocs",
        tags=[*TAGS, "classification" if isinstance(model, Classifier) else "feature-extraction"],
        pipeline_tag=None if isinstance(model, Classifier) else "feature-extraction",
        metrics=["roc_auc"] if isinstance(model, Classifier) else None,
        model_name=_name(model) if results else None,
        eval_results=results,
    )
    text: str = data.to_yaml()
    return text.strip()


def _licence(model: Checkpoint | Classifier) -> str:
    """That of a classifier's card; of an encoder, that of its data where there is but one."""
    if isinstance(model, Classifier):
        return model.card.licence
    found = {one.licence for one in _publications(model)}
    return found.pop() if len(found) == 1 else ""


def _publications(model: Checkpoint | Classifier) -> Iterator[Any]:
    for one in first_encoder(model).card.trained_on:
        if one.dataset in PUBLICATIONS:
            yield PUBLICATIONS[one.dataset]


def _auc(model: Checkpoint | Classifier) -> float | None:
    """The macro AUROC of a classifier's card."""
    found = model.card.scores.get("auc") if isinstance(model, Classifier) else None
    return float(found) if isinstance(found, int | float) else None


def _summary(model: Checkpoint | Classifier) -> str:
    facts = export_facts(model)
    made = (
        f"calibrated probabilities of {', '.join(facts['labels'])}"
        if isinstance(model, Classifier)
        else f"embeddings of {first_encoder(model).encoder.embedding_dim} numbers"
    )
    return f"ECGs in, {made} out. Made with clocs {facts['clocs']}."


def _facts(model: Checkpoint | Classifier) -> str:
    facts = export_facts(model)
    shown = [
        *("input", "output", "rate", "frame_seconds", "leads", "filters", "normalisation"),
        *("labels", "thresholds"),
    ]
    rows = [(name, facts[name]) for name in shown if name in facts]
    lines = [f"| {name.replace('_', ' ')} | {_cell(value)} |" for name, value in rows]
    return "\n".join(["| | |", "| --- | --- |", *lines])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join("none" if one is None else _cell(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _use(model: Checkpoint | Classifier) -> str:
    words = (
        model.card.intended_use
        if isinstance(model, Classifier)
        else "Research: as a start for classifiers, for search and as a baseline. Not a medical "
        "device: no diagnosis and no treatment may rest on it."
    )
    return "\n\n".join(["## Use", words, _USE.format(name=_name(model))])


def _scores(model: Checkpoint | Classifier) -> str:
    score = _auc(model)
    if score is None or not isinstance(model, Classifier):
        return ""
    words = f"Macro AUROC on the test patients of {model.card.dataset}: {score:.3f}"
    interval = model.card.scores.get("ci95")
    if isinstance(interval, list | tuple) and len(interval) == 2:
        words += " (95 % interval {:.3f} to {:.3f})".format(*interval)
    each = model.card.scores.get("per_class")
    rows = each.items() if isinstance(each, dict) else ()
    kinds = ("auc", "sensitivity", "specificity")
    lines = [
        f"| {label} | {' | '.join(_score(own.get(kind)) for kind in kinds)} |"
        for label, own in rows
        if isinstance(own, dict)
    ]
    head = [f"| class | {' | '.join(kinds)} |", "| --- | --- | --- | --- |"] if lines else []
    return "\n".join(["## Scores", "", f"{words}.", "", *head, *lines]).strip()


def _score(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "none"


def _data(model: Checkpoint | Classifier) -> str:
    lines = [
        f"- [{one.title}]({one.page}); licence: {one.licence or 'none named'}. {one.citation}"
        for one in _publications(model)
    ]
    if isinstance(model, Classifier) and model.card.citation and not lines:
        lines.append(f"- {model.card.citation}")
    return "\n".join(["## Training data", "", *lines]) if lines else ""


def _limits(model: Checkpoint | Classifier) -> str:
    return f"## Limits\n\n{first_encoder(model).card.notice}"
