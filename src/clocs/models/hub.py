"""HubModel: a model in the layout of Hugging Face's hub, to save, to push and to load again.

A folder holds `config.json` (facts, and the model's card), `model.safetensors` (the state of the
module) and `README.md`. No pickle is ever loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import (
    EvalResult,
    ModelCard,
    ModelCardData,
    PyTorchModelHubMixin,
    hf_hub_download,
)
from huggingface_hub.constants import CONFIG_NAME, REPOCARD_NAME, SAFETENSORS_SINGLE_FILE
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from clocs.encoders.make import make_encoder
from clocs.errors import CheckpointError, ClocsError
from clocs.files import PUBLIC, write_atomic
from clocs.kernels.keyed_random import member_keys
from clocs.models.classifier import Classifier
from clocs.models.model_card import export_facts, first_card, model_card, publications_of
from clocs.training.card import Card, ClassifierCard, parse_card
from clocs.training.checkpoint import Checkpoint

TAGS = ("ecg", "electrocardiogram", "medical", "self-supervised-learning", "clocs")
# licenses by the names that the hub gives them
_LICENSES = {name: name for name in ("apache-2.0", "cc-by-4.0", "cc0-1.0", "mit")}
_LICENSES |= {"odc-by-1.0": "odc-by"}


class HubModel(nn.Module, PyTorchModelHubMixin):
    """A module of `to_module()` with `save_pretrained`, `from_pretrained` and `push_to_hub`.

    Attributes:
        model: The module itself; its `network` takes normalized frames.
    """

    def __init__(self, kind: str, card: dict[str, Any], name: str | None = None) -> None:
        """An untrained one.

        Args:
            kind: 'encoder' or 'classifier'.
            card: As in the file of the encoder or classifier.
            name: The title of its page.
        """
        super().__init__()
        self._name = name
        try:
            self._empty = _empty(kind, card)
            self.model = self._empty.to_module()
        except (ValueError, KeyError, TypeError, RuntimeError, ClocsError) as error:
            raise CheckpointError(f"{CONFIG_NAME} describes no model of clocs ({error})") from error

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) in mV -> embeddings or calibrated probabilities."""
        made: Tensor = self.model(x)
        return made

    def _save_pretrained(self, save_directory: Path) -> None:
        config = _config(self._empty, self._name)
        text = json.dumps(config, indent=2, ensure_ascii=False)
        state = {name: tensor.contiguous() for name, tensor in self.model.state_dict().items()}
        content = save(state, metadata={"format": "pt"})
        write_atomic(save_directory / SAFETENSORS_SINGLE_FILE, content, mode=PUBLIC)
        write_atomic(save_directory / CONFIG_NAME, text.encode(), mode=PUBLIC)
        # here, because `save_pretrained` leaves a card that it finds, though it may be of another
        page = str(self.generate_model_card()).encode()
        write_atomic(save_directory / REPOCARD_NAME, page, mode=PUBLIC)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        kind: str = "",
        card: Mapping[str, Any] | None = None,
        name: str | None = None,
        map_location: str = "cpu",
        **of_download: Any,
    ) -> HubModel:
        if not card:
            raise CheckpointError(f"{model_id} has no {CONFIG_NAME} of clocs; give another model")
        made = cls(kind=kind, card=dict(card), name=name)
        file: Path | str = Path(model_id) / SAFETENSORS_SINGLE_FILE
        if not Path(model_id).is_dir():
            file = hf_hub_download(model_id, SAFETENSORS_SINGLE_FILE, **of_download)
        try:
            made.model.load_state_dict(load_file(file, device=map_location))
        except (OSError, SafetensorError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            raise CheckpointError(
                f"{file} does not hold this model ({why}); copy it again"
            ) from error
        return made.to(map_location).eval()

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The page of the model, from its card."""
        return ModelCard(hub_page(self._empty, _config(self._empty, self._name)["name"]))


def hub_model(model: Checkpoint | Classifier, name: str | None = None) -> HubModel:
    """The model, ready to be saved for a hub or pushed to one; `name` is the title of its page."""
    config = _config(model, name)
    made = HubModel(kind=config["kind"], card=config["card"], name=config["name"])
    made.model.load_state_dict(model.to_module().state_dict())
    return made.eval()


def hub_page(model: Checkpoint | Classifier, name: str) -> str:
    """The README.md: facts for programs in YAML, then a page for people."""
    facts, own = export_facts(model), model.card if isinstance(model, Classifier) else None
    results = None
    if own and isinstance(score := own.scores.get("auc"), int | float):
        result = EvalResult(
            task_type="time-series-classification",
            dataset_type=own.dataset,
            dataset_name=own.dataset,
            metric_type="roc_auc",
            metric_value=round(score, 4),
            metric_name="macro AUROC on test patients",
        )
        results = [result]
    data = {one.license for one in publications_of(first_card(model.card))}
    license_name = (own and own.license) or (data.pop() if len(data) == 1 else "")
    slug = re.sub(r"[^a-z0-9.]+", "-", license_name.lower()).strip("-")
    known = _LICENSES.get(slug)
    front = ModelCardData(
        license=known or ("other" if slug else None),
        license_name=None if known or not slug else slug[:64],
        library_name="clocs",
        tags=[*TAGS, "classification" if own else "feature-extraction"],
        pipeline_tag=None if own else "feature-extraction",
        metrics=["roc_auc"] if own else None,
        model_name=name if results else None,
        eval_results=results,
    )
    call = f"""```python
from clocs.models.hub import HubModel

model = HubModel.from_pretrained("owner/name")  # or a folder with these files
```

- In: {facts["input"]}.
- Out: {facts["output"]}.
- {facts["rate"]:g} Hz, frames of {facts["frame_seconds"]:g} s, leads {", ".join(facts["leads"])}; \
filters: {facts["filters"]}. A recording at another rate is resampled first."""
    return f"---\n{front.to_yaml().strip()}\n---\n\n{model_card(name, model, call=call)}"


def _config(model: Checkpoint | Classifier, name: str | None) -> dict[str, Any]:
    card = model.card
    own = card.to_dict() if isinstance(card, ClassifierCard) else json.loads(card.json())
    return export_facts(model, name) | {"card": own}


def _empty(kind: str, facts: dict[str, Any]) -> Checkpoint | Classifier:
    """The model that a card describes, untrained."""
    if kind != "classifier":
        return _empty_encoder(parse_card(json.dumps(facts).encode()))
    card = ClassifierCard.from_dict(json.loads(json.dumps(facts)))  # tuples become lists
    encoders = tuple(map(_empty_encoder, card.encoders))
    shape = (len(encoders), encoders[0].encoder.embedding_dim, len(card.labels))
    head = {"weight": torch.zeros(shape), "bias": torch.zeros(shape[0], shape[2])}
    return Classifier(card, encoders, head, {})


def _empty_encoder(card: Card) -> Checkpoint:
    encoder = make_encoder(**card.encoder)
    weights = encoder.parameters(member_keys([0]))
    return Checkpoint(card, weights, encoder.buffers(1), np.zeros(0, np.uint64))
