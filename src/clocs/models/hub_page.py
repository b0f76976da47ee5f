"""The page of a model on a hub: its card, with facts for programs in Hugging Face's format."""

from __future__ import annotations

import re
from typing import Any

from clocs.errors import SettingError, with_extra
from clocs.models.classifier import Classifier
from clocs.models.export_facts import export_facts
from clocs.models.model_card import first_card, model_card, publications_of
from clocs.training.checkpoint import Checkpoint

TAGS = ("ecg", "electrocardiogram", "medical", "self-supervised-learning", "clocs")
# licenses by the names that the hub gives them
_LICENSES = {
    "apache-2.0": "apache-2.0",
    "cc-by-4.0": "cc-by-4.0",
    "cc0-1.0": "cc0-1.0",
    "mit": "mit",
    "odc-by-1.0": "odc-by",
}


def hub_package() -> Any:
    """`huggingface_hub`."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise SettingError(
            f"a model for a hub needs the package huggingface_hub; {with_extra('huggingface')}"
        ) from error
    return huggingface_hub


def hub_page(model: Checkpoint | Classifier, name: str) -> str:
    """The README.md: facts for programs in YAML, then a page for people."""
    return f"---\n{_front_matter(model, name)}\n---\n\n{model_card(name, model, call=_call(model))}"


def _front_matter(model: Checkpoint | Classifier, name: str) -> str:
    hub, classifier = hub_package(), model if isinstance(model, Classifier) else None
    score = classifier.card.scores.get("auc") if classifier else None
    results = []
    if classifier and isinstance(score, int | float):
        result = hub.EvalResult(
            task_type="time-series-classification",
            dataset_type=classifier.card.dataset,
            dataset_name=classifier.card.dataset,
            metric_type="roc_auc",
            metric_value=round(score, 4),
            metric_name="macro AUROC on test patients",
        )
        results.append(result)
    slug = re.sub(r"[^a-z0-9.]+", "-", _license(model).lower()).strip("-")
    known = _LICENSES.get(slug)
    data = hub.ModelCardData(
        license=known or ("other" if slug else None),
        license_name=None if known or not slug else slug[:64],
        library_name="clocs",
        tags=[*TAGS, "classification" if classifier else "feature-extraction"],
        pipeline_tag=None if classifier else "feature-extraction",
        metrics=["roc_auc"] if classifier else None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    text: str = data.to_yaml()
    return text.strip()


def _license(model: Checkpoint | Classifier) -> str:
    """That of a classifier's card; else that of the data, where there is but one."""
    if isinstance(model, Classifier) and model.card.license:
        return model.card.license
    found = {one.license for one in publications_of(first_card(model.card))}
    return found.pop() if len(found) == 1 else ""


def _call(model: Checkpoint | Classifier) -> str:
    facts = export_facts(model)
    return "\n".join(
        [
            "```python",
            "from clocs.models.hub import HubModel",
            "",
            'model = HubModel.from_pretrained("owner/name")  # or a folder with these files',
            "```",
            "",
            f"- In: {facts['input']}.",
            f"- Out: {facts['output']}.",
            f"- {facts['rate']:g} Hz, frames of {facts['frame_seconds']:g} s, leads "
            f"{', '.join(facts['leads'])}; filters: {facts['filters']}. A recording at another "
            "rate is resampled first.",
        ]
    )
