"""Learning from unlabeled ECGs: contrastive learning across time, leads and patients.

The names below are the whole public surface; each is imported when first used, so that
`import clocs` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clocs._version import __version__ as __version__

if TYPE_CHECKING:
    from clocs.datasets.download import download as download
    from clocs.errors import ClocsError as ClocsError
    from clocs.evaluation.evaluate import evaluate as evaluate
    from clocs.evaluation.evaluate import evaluate_many as evaluate_many
    from clocs.experiments.report import report as report
    from clocs.experiments.reproduce import reproduce as reproduce
    from clocs.explorer.run import explore as explore
    from clocs.figures.draw import figure as figure
    from clocs.formats.read import read as read
    from clocs.frames.frames import Frames as Frames
    from clocs.models.classifier import Classifier as Classifier
    from clocs.models.classifier import load as load
    from clocs.models.clocs_encoder import ClocsEncoder as ClocsEncoder
    from clocs.models.describe import describe as describe
    from clocs.models.explain import explain as explain
    from clocs.models.export import export as export
    from clocs.models.finetune import finetune as finetune
    from clocs.models.frame_dataset import torch_dataset as torch_dataset
    from clocs.models.predict import predict as predict
    from clocs.models.scores import evaluate_classifier as evaluate_classifier
    from clocs.patients.build_index import index as index
    from clocs.patients.build_index import similar as similar
    from clocs.patients.distances import patient_distances as patient_distances
    from clocs.patients.embed import embed as embed
    from clocs.patients.retrieval import retrieval as retrieval
    from clocs.pretraining.pretrain import pretrain as pretrain
    from clocs.recording import FrameSpec as FrameSpec
    from clocs.recording import Recording as Recording
    from clocs.service.run import serve as serve
    from clocs.store.prepare import from_arrays as from_arrays
    from clocs.store.prepare import prepare as prepare
    from clocs.store.prepare import preview as preview
    from clocs.store.store import Store as Store
    from clocs.store.store import open_store as open_store
    from clocs.training.checkpoint import Checkpoint as Checkpoint

# names by module
_PUBLIC = {
    "datasets.download": "download",
    "errors": "ClocsError",
    "evaluation.evaluate": "evaluate evaluate_many",
    "experiments.report": "report",
    "experiments.reproduce": "reproduce",
    "explorer.run": "explore",
    "figures.draw": "figure",
    "formats.read": "read",
    "frames.frames": "Frames",
    "models.classifier": "Classifier load",
    "models.clocs_encoder": "ClocsEncoder",
    "models.frame_dataset": "torch_dataset",
    "models.describe": "describe",
    "models.explain": "explain",
    "models.export": "export",
    "models.finetune": "finetune",
    "models.predict": "predict",
    "models.scores": "evaluate_classifier",
    "patients.build_index": "index similar",
    "patients.distances": "patient_distances",
    "patients.embed": "embed",
    "patients.retrieval": "retrieval",
    "pretraining.pretrain": "pretrain",
    "recording": "FrameSpec Recording",
    "service.run": "serve",
    "store.prepare": "from_arrays prepare preview",
    "store.store": "Store open_store",
    "training.checkpoint": "Checkpoint",
}
MODULES = {name: f"clocs.{module}" for module, names in _PUBLIC.items() for name in names.split()}
# without ClocsEncoder, which needs scikit-learn: `import *` must do without it
__all__ = sorted({"__version__", *MODULES} - {"ClocsEncoder"})  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'clocs' has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *MODULES})
