"""`ClocsEncoder`: pre-training and embedding as a scikit-learn transformer."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from clocs.datasets.arrays import UNKNOWN_UNIT, Arrays
from clocs.errors import ClocsError, SettingError, UnusableError, needing, warn
from clocs.frames.splits import assign, keys_of
from clocs.patients.embed import embed_recordings
from clocs.patients.sources import RecordingOrError
from clocs.pretraining.pretrain import pretrain
from clocs.recording import FrameSpec, with_derived
from clocs.store.prepare import from_arrays
from clocs.training.card import HIGHEST_RATE
from clocs.training.checkpoint import Checkpoint, load_checkpoint
from clocs.training.signals import pick_device

with needing("ClocsEncoder needs scikit-learn 1.6 or later", "sklearn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data

_DATASET = "scikit-learn"  # of patients in the cards of encoders that are trained here
_VALIDATION = 0.2  # share of the patients, for early stopping
SAMPLES = 2500  # of a frame, unless it is very short
_MIN_PATIENTS = 2  # patients in either part


class _ValueError(SettingError, ValueError):
    """A ClocsError that scikit-learn, too, takes for wrong input."""


class ClocsEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer from ECGs to embeddings: `fit` pre-trains an encoder, `transform` applies it.

    X is (n, leads, samples), or (n, samples) of a single lead, in any unit: each frame is scaled to
    its own range. Values that are not a number are gaps, which cost the frames that they touch.

    `fit` learns without labels from all of X; a fifth of the patients decide when to stop. Which
    recordings are of one patient is given as `groups`, else each counts as a patient of its own. In
    a `Pipeline`, `GridSearchCV` or `cross_val_score`, ask for them with
    `set_fit_request(groups=True)` after `sklearn.set_config(enable_metadata_routing=True)`, or
    give them as `clocsencoder__groups`.

    The embedding of a recording is the mean of the unit vectors of its frames and leads, of length
    one, as `clocs.embed` makes it. A recording without a usable frame becomes nan, with a warning.

    Args:
        method: One of `clocs.pretraining.methods.METHODS`.
        rate: Sampling rate of X in Hz; always needed.
        leads: Names of the leads of X, in order; numbers by default.
        frame: Seconds of a frame, or a `clocs.FrameSpec`; by default half of a recording, so that
            each has two segments to compare, or the checkpoint's.
        embedding_dim: Dimension of the embeddings.
        epochs: At most this many; 400 by default.
        batch_size: Instances per step.
        lr: Adam's learning rate; 1e-4 by default.
        seed: Random seed: the same data and parameters give the same encoder.
        encoder: One of `clocs.encoders.make.ENCODERS`.
        checkpoint: An encoder to use as it is, or its file or folder: `fit` then trains nothing,
            and the parameters of training are not used.
        device: 'cpu', 'cuda' …; the best available by default.

    Attributes:
        checkpoint_: The encoder, which `clocs.embed`, `clocs.evaluate` and others take. Saved with
            its `save`, it can be given as `checkpoint` again.
        n_features_in_: Leads of X, or samples where X had a single lead and two dimensions.
    """

    def __init__(
        self,
        *,
        method: str = "cmsc",
        rate: float | None = None,
        leads: Sequence[str] | None = None,
        frame: FrameSpec | float | None = None,
        embedding_dim: int = 128,
        epochs: int | None = None,
        batch_size: int = 256,
        lr: float | None = None,
        seed: int = 0,
        encoder: str = "cnn",
        checkpoint: Checkpoint | Path | str | None = None,
        device: str | None = None,
    ) -> None:
        self.method = method
        self.rate = rate
        self.leads = leads
        self.frame = frame
        self.embedding_dim = embedding_dim
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.seed = seed
        self.encoder = encoder
        self.checkpoint = checkpoint
        self.device = device

    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Pre-train an encoder on all of X, or take the given checkpoint.

        Args:
            X: (n, leads, samples) or (n, samples).
            y: Ignored: the encoder learns without labels.
            groups: (n,) the patient of each recording.
        """
        fewest = 1 if self.checkpoint is not None else 2
        X = self._checked(X, reset=True, ensure_min_samples=fewest, ensure_min_features=2)
        patients = np.arange(len(X)) if groups is None else np.asarray(groups)
        if self.checkpoint is not None:
            self._arrays(X[:1], patients[:1])
            self.checkpoint_ = load_checkpoint(self.checkpoint)
        else:
            self.checkpoint_ = self._pretrained(self._arrays(X, patients))
        self._n_features_out = self.checkpoint_.encoder.embedding_dim
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """(n, leads, samples) or (n, samples) -> (n, embedding_dim).

        Args:
            X: As for `fit`; recordings may be shorter or longer.
        """
        check_is_fitted(self, "checkpoint_")
        X = self._checked(X, reset=False)
        arrays = self._arrays(X, np.arange(len(X)))
        trained = self.checkpoint_.card.leads
        there = with_derived(arrays.leads)
        leads = trained if set(trained) <= set(there) else arrays.leads
        if self.checkpoint_.encoder.leads:  # it does without those that X lacks
            leads = tuple(lead for lead in trained if lead in there)
            if not leads:
                raise _ValueError(
                    f"X has the leads {', '.join(arrays.leads)}, and the encoder sees "
                    f"{', '.join(trained)}: none of them; name those of X as `leads`"
                )
        made = embed_recordings(
            self.checkpoint_,
            _recordings(arrays),
            spec=self._frame(self.checkpoint_.card.frame.samples),
            leads=leads,
            device=pick_device(self.device),
        )
        vectors = np.full((len(X), made.dim), np.nan, np.float32)
        vectors[[int(one) for *_, one in made.only_zeros]] = 0
        vectors[made.rows["recording"].cast(int).to_numpy()] = made.vectors
        if made.problems:
            (name, reason), count = made.problems[0], len(made.problems)
            warn(
                f"{count} of {len(X)} recordings have no embedding and become nan, such as number "
                f"{name} ({reason})"
            )
        return vectors

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = []  # always float32
        return tags

    def _checked(self, given: Any, **how: Any) -> NDArray[Any]:
        X: NDArray[Any] = validate_data(
            self, given, allow_nd=True, ensure_all_finite="allow-nan", **how
        )
        if X.ndim > 3:
            raise _ValueError(
                f"X has the shape {X.shape}; give (n, leads, samples), or (n, samples)"
            )
        return X

    def _arrays(self, X: NDArray[Any], patients: NDArray[Any]) -> Arrays:
        """X as a dataset; ValueError says what does not fit."""
        if self.rate is None:
            raise _ValueError("give the sampling rate of X in Hz as `rate`")
        count = 1 if X.ndim == 2 else X.shape[1]
        leads = [str(i + 1) for i in range(count)] if self.leads is None else self.leads
        half = X.shape[-1] / self.rate / 2
        samples = min(SAMPLES, max(1, int(half * HIGHEST_RATE)))
        try:
            return Arrays(
                X,
                patients,
                rate=self.rate,
                leads=leads,
                unit=UNKNOWN_UNIT,
                name=_DATASET,
                frame=FrameSpec(half, samples),  # unless another is given
            )
        except ClocsError as error:
            raise _ValueError(str(error)) from None

    def _pretrained(self, arrays: Arrays) -> Checkpoint:
        names = _names_by_part(arrays.patients, self.seed)
        with tempfile.TemporaryDirectory(prefix="clocs-fit-") as folder:
            try:
                store = from_arrays(
                    arrays.signals,
                    names,
                    rate=arrays.rate,
                    leads=arrays.leads,
                    unit=arrays.unit,
                    name=arrays.name,
                    frame=self._frame() or arrays.frame,
                )
                return pretrain(
                    store,
                    method=self.method,
                    out=Path(folder) / "run",
                    seeds=[self.seed],
                    leads=arrays.leads,
                    embedding_dim=self.embedding_dim,
                    encoder=self.encoder,
                    epochs=self.epochs,
                    batch_size=self.batch_size,
                    lr=self.lr,
                    device=self.device,
                )[0]
            except (SettingError, UnusableError) as error:
                raise _ValueError(str(error)) from None

    def _frame(self, samples: int = SAMPLES) -> FrameSpec | None:
        """As given; None for the usual one."""
        given = self.frame
        return given if isinstance(given, FrameSpec | None) else FrameSpec(given, samples)


def _recordings(arrays: Arrays) -> Any:
    """The recordings of a dataset one by one, or what is wrong with one."""
    for entry in arrays.list().entries:
        result: RecordingOrError
        try:
            result = arrays.read(entry)
        except UnusableError as error:
            result = (entry.id, error)
        yield result


def _names_by_part(patients: Sequence[str], seed: int) -> list[str]:
    """Names under which patients are in the training or the validation part, never in the test's.

    A patient's part is a hash of the name. Who is tested on is scikit-learn's business, and nobody
    else is to be left out, so names are varied until they are in the part that they should be in.
    """
    distinct = sorted(set(patients))
    if len(distinct) < 2 * _MIN_PATIENTS:
        raise _ValueError(
            f"{len(patients)} samples of {len(distinct)} patients are too few to learn from; give "
            f"at least {2 * _MIN_PATIENTS} patients"
        )
    order = np.argsort(keys_of(f"{seed}:{patient}" for patient in distinct), kind="stable")
    validation = set(order[: max(_MIN_PATIENTS, round(_VALIDATION * len(distinct)))].tolist())
    names = {}
    for i, patient in enumerate(distinct):
        variants = [f"{patient}/{k}" for k in range(200)]
        parts = assign(variants, _DATASET)
        names[patient] = variants[int(np.flatnonzero(parts == int(i in validation))[0])]
    return [names[patient] for patient in patients]
