"""The page of a model on a hub: a model card in Hugging Face's format."""

from __future__ import annotations

import re
from typing import Any

from clocs.errors import SettingError
from clocs.models.classifier import Classifier
from clocs.models.model_card import model_card, publications_of
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
    """The README.md: facts for programs in YAML, then the model card for people."""
    name = _name(model)
    text = model_card(name, model, call=_USE.format(name=name))
    return f"---\n{_front_matter(model)}\n---\n\n{text}"


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
    found = {one.licence for one in publications_of(model.card)}
    return found.pop() if len(found) == 1 else ""


def _auc(model: Checkpoint | Classifier) -> float | None:
    """The macro AUROC of a classifier's card."""
    found = model.card.scores.get("auc") if isinstance(model, Classifier) else None
    return float(found) if isinstance(found, int | float) else None
