"""Learning from unlabeled ECGs: contrastive learning across time, leads and patients.

The names below are the whole public surface; each is imported when first used, so that
`import clocs` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clocs._version import __version__

if TYPE_CHECKING:
    from clocs.datasets.download import download
    from clocs.errors import ClocsError
    from clocs.evaluation.evaluate import evaluate, evaluate_many, validation_auc
    from clocs.experiments.report import report
    from clocs.experiments.reproduce import reproduce
    from clocs.explorer.run import explore
    from clocs.figures.draw import figure
    from clocs.formats.read import read
    from clocs.frames.frames import Frames
    from clocs.models.classifier import Classifier, load
    from clocs.models.clocs_encoder import ClocsEncoder as ClocsEncoder
    from clocs.models.dataset_views import huggingface_dataset, torch_dataset
    from clocs.models.describe import describe
    from clocs.models.explain import explain
    from clocs.models.export import export
    from clocs.models.finetune import finetune
    from clocs.models.predict import predict
    from clocs.models.scores import evaluate_classifier
    from clocs.patients.build_index import index, similar
    from clocs.patients.distances import patient_distances
    from clocs.patients.embed import embed
    from clocs.patients.retrieval import retrieval
    from clocs.pretraining.pretrain import pretrain
    from clocs.recording import FrameSpec, Recording
    from clocs.service.run import serve
    from clocs.store.prepare import from_arrays, prepare, preview
    from clocs.store.store import Store, open_store
    from clocs.training.checkpoint import Checkpoint

_WHERE = {
    "download": ("clocs.datasets.download", "download"),
    "prepare": ("clocs.store.prepare", "prepare"),
    "preview": ("clocs.store.prepare", "preview"),
    "from_arrays": ("clocs.store.prepare", "from_arrays"),
    "open_store": ("clocs.store.store", "open_store"),
    "pretrain": ("clocs.pretraining.pretrain", "pretrain"),
    "embed": ("clocs.patients.embed", "embed"),
    "evaluate_classifier": ("clocs.models.scores", "evaluate_classifier"),
    "describe": ("clocs.models.describe", "describe"),
    "figure": ("clocs.figures.draw", "figure"),
    "explain": ("clocs.models.explain", "explain"),
    "finetune": ("clocs.models.finetune", "finetune"),
    "evaluate": ("clocs.evaluation.evaluate", "evaluate"),
    "export": ("clocs.models.export", "export"),
    "validation_auc": ("clocs.evaluation.evaluate", "validation_auc"),
    "explore": ("clocs.explorer.run", "explore"),
    "predict": ("clocs.models.predict", "predict"),
    "patient_distances": ("clocs.patients.distances", "patient_distances"),
    "index": ("clocs.patients.build_index", "index"),
    "retrieval": ("clocs.patients.retrieval", "retrieval"),
    "serve": ("clocs.service.run", "serve"),
    "similar": ("clocs.patients.build_index", "similar"),
    "evaluate_many": ("clocs.evaluation.evaluate", "evaluate_many"),
    "reproduce": ("clocs.experiments.reproduce", "reproduce"),
    "report": ("clocs.experiments.report", "report"),
    "torch_dataset": ("clocs.models.dataset_views", "torch_dataset"),
    "huggingface_dataset": ("clocs.models.dataset_views", "huggingface_dataset"),
    "load": ("clocs.models.classifier", "load"),
    "read": ("clocs.formats.read", "read"),
    "Checkpoint": ("clocs.training.checkpoint", "Checkpoint"),
    "Classifier": ("clocs.models.classifier", "Classifier"),
    "ClocsEncoder": ("clocs.models.clocs_encoder", "ClocsEncoder"),
    "ClocsError": ("clocs.errors", "ClocsError"),
    "Frames": ("clocs.frames.frames", "Frames"),
    "FrameSpec": ("clocs.recording", "FrameSpec"),
    "Recording": ("clocs.recording", "Recording"),
    "Store": ("clocs.store.store", "Store"),
}

# without ClocsEncoder, which needs scikit-learn: `import *` must do without it
__all__ = [
    "Checkpoint",
    "Classifier",
    "ClocsError",
    "FrameSpec",
    "Frames",
    "Recording",
    "Store",
    "__version__",
    "describe",
    "download",
    "embed",
    "evaluate",
    "evaluate_classifier",
    "evaluate_many",
    "explain",
    "explore",
    "export",
    "figure",
    "finetune",
    "from_arrays",
    "huggingface_dataset",
    "index",
    "load",
    "open_store",
    "patient_distances",
    "predict",
    "prepare",
    "pretrain",
    "preview",
    "read",
    "report",
    "reproduce",
    "retrieval",
    "serve",
    "similar",
    "torch_dataset",
    "validation_auc",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'clocs' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*__all__, *_WHERE})
