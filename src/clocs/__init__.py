"""Learning from unlabelled ECGs: contrastive learning across time, leads and patients.

The names below are the whole public surface; each is imported when first used, so that
`import clocs` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clocs._version import __version__

if TYPE_CHECKING:
    from clocs.api import evaluate, evaluate_many, prepare, pretrain
    from clocs.api_experiments import report, reproduce
    from clocs.api_explore import explore
    from clocs.api_patients import embed, index, patient_distances, retrieval, similar
    from clocs.checkpoint import Checkpoint
    from clocs.checkpoint import load_checkpoint as load
    from clocs.errors import ClocsError
    from clocs.frames import Frames
    from clocs.readers import read
    from clocs.recording import FrameSpec, Recording
    from clocs.store import Store, open_store

_WHERE = {
    "prepare": ("clocs.api", "prepare"),
    "open_store": ("clocs.store", "open_store"),
    "pretrain": ("clocs.api", "pretrain"),
    "embed": ("clocs.api_patients", "embed"),
    "evaluate": ("clocs.api", "evaluate"),
    "explore": ("clocs.api_explore", "explore"),
    "patient_distances": ("clocs.api_patients", "patient_distances"),
    "index": ("clocs.api_patients", "index"),
    "retrieval": ("clocs.api_patients", "retrieval"),
    "similar": ("clocs.api_patients", "similar"),
    "evaluate_many": ("clocs.api", "evaluate_many"),
    "reproduce": ("clocs.api_experiments", "reproduce"),
    "report": ("clocs.api_experiments", "report"),
    "load": ("clocs.checkpoint", "load_checkpoint"),
    "read": ("clocs.readers", "read"),
    "Checkpoint": ("clocs.checkpoint", "Checkpoint"),
    "ClocsError": ("clocs.errors", "ClocsError"),
    "Frames": ("clocs.frames", "Frames"),
    "FrameSpec": ("clocs.recording", "FrameSpec"),
    "Recording": ("clocs.recording", "Recording"),
    "Store": ("clocs.store", "Store"),
}

__all__ = [
    "Checkpoint",
    "ClocsError",
    "FrameSpec",
    "Frames",
    "Recording",
    "Store",
    "__version__",
    "embed",
    "evaluate",
    "evaluate_many",
    "explore",
    "index",
    "load",
    "open_store",
    "patient_distances",
    "prepare",
    "pretrain",
    "read",
    "report",
    "reproduce",
    "retrieval",
    "similar",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'clocs' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
