# The public names; `__init__.py` reads here where each of them is defined.

from clocs._version import __version__ as __version__
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
from clocs.measurements.check import check as check
from clocs.measurements.quality import signal_quality as signal_quality
from clocs.models.calibrate import calibrate as calibrate
from clocs.models.classifier import Classifier as Classifier
from clocs.models.classifier import load as load
from clocs.models.clocs_encoder import ClocsEncoder as ClocsEncoder
from clocs.models.describe import describe as describe
from clocs.models.explain import explain as explain
from clocs.models.export import export as export
from clocs.models.finetune import finetune as finetune
from clocs.models.frame_dataset import torch_dataset as torch_dataset
from clocs.models.measure import measure as measure
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
from clocs.training.outside import outside_encoder as outside_encoder

MODULES: dict[str, str]

__all__: list[str]
