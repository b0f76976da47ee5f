"""Classifier: encoders with linear layers on top, from recordings to probabilities.

One safetensors file holds everything, its card in the file's metadata; only an encoder inside the
package may be named there rather than copied. No pickle: a classifier from a stranger can be wrong,
never harmful.

Also what it abstains by: the ECG's share of the signals, and the distance from the training data.

That share is how much of a frame's power looks like an ECG, from 0 to 1. The waves of the heartbeat
fill a band of frequencies for a short part of the time, and noise fills it all of the time: the
band is as quiet as its median. What lies beside the band is wander, muscle or hum. The measure
needs no beats to be found, so that it works at any rate and rhythm. How well it follows added
noise, and what people have marked as noise, is in docs/prediction.md.

The training data are a Gaussian of embeddings with few principal axes and the same variance in all
other directions: small enough to ship, and it holds no recording of anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import max_pool1d, pad

from clocs.encoders.base import Weights, put
from clocs.errors import CheckpointError, SettingError, StoreError
from clocs.files import kept, private_folder
from clocs.training.card import (
    CLASSIFIER,
    LEAD_GROUPS,
    LIMITS,
    Card,
    ClassifierCard,
    is_classifier,
    not_a_classifier,
    refuse_encoder,
    shipped_as,
    shipped_encoders,
    weights_path,
)
from clocs.training.checkpoint import (
    STORED_AS,
    Checkpoint,
    RecordingModule,
    load_checkpoint,
    pooled,
)

QRS_HZ = (5.0, 40.0)
SLOW_HZ = 0.7  # P and T waves lie between this and the QRS complex; below is wander
_MAX_SLOW = 2.0  # times the power of the QRS band: slow waves alone are no ECG
_MEDIAN = 0.6745  # of the absolute value of Gaussian noise of variance 1
_FLAT_SECONDS, _FLAT_SHARE = 1.0, 0.01  # no heart is that still for so long; of the frame's range
_CLIP_SECONDS, _CLIP_SHARE = 0.04, 0.002  # no wave has so broad a top; of the frame's range
_CLIPS = 5.0  # a fifth of the time at the limit: nothing of the QRS complexes is left
_AT_ONCE = 1 << 21  # samples looked at together
AXES = 32  # the most that are kept


@dataclass(frozen=True)
class Classifier:
    """A classifier ready for use.

    A recording is cut into rows as its encoders see them (a frame of one lead, or of many leads at
    once); the logits of its rows are averaged, and `probabilities` makes of them what is predicted.

    Attributes:
        card: What it is.
        encoders: Its members; each has one linear layer on top.
        head: "weight" (members, dim, classes) and "bias" (members, classes).
        reference: Where the embeddings of training recordings lie; empty where that is not known.
    """

    card: ClassifierCard
    encoders: tuple[Checkpoint, ...]
    head: Weights
    reference: Weights

    def logits(self, z: Tensor, leads: Sequence[int] | None = None) -> Tensor:
        """z: (members, n, dim) embeddings -> (n, classes), the mean over the members.

        The layers are linear: what they make of the mean embedding of a recording is the mean of
        what they make of its rows.

        Args:
            z: Of recordings or of their rows.
            leads: (n,) how many each has, to move what the layers make of few leads.
        """
        weight, bias = (self.head[name].to(z) for name in ("weight", "bias"))
        made = torch.baddbmm(bias[:, None], z, weight).mean(dim=0)
        return made if leads is None else self.moved(made, leads)

    def moved(self, logits: Tensor, leads: Sequence[int]) -> Tensor:
        """(n, classes) as calibrated for this many leads each, before the temperature."""
        return move_by_leads(logits, torch.tensor(leads, dtype=torch.long), moves_of(self.card))

    def probabilities(self, logits: Tensor) -> Tensor:
        """(n, classes) -> the same, calibrated."""
        scaled = logits / torch.tensor(
            self.card.temperature, dtype=logits.dtype, device=logits.device
        )
        return scaled.sigmoid() if self.card.multilabel else scaled.softmax(dim=-1)

    def over_threshold(self, chances: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(recordings, classes) from their thresholds on; one without a threshold never."""
        return chances >= np.array([np.inf if t is None else t for t in self.card.thresholds])

    def doubts(
        self, chances: NDArray[np.float64], vectors: Tensor, ecg_share: NDArray[np.float64]
    ) -> dict[str, NDArray[np.float64]]:
        """(recordings,) what the card's limits are compared with, by name.

        The confidence is the probability that what is predicted is right: of the most probable
        label or, where several can hold, of all that are predicted and none of the others.

        Args:
            chances: (recordings, classes) their `probabilities`.
            vectors: (members, recordings, dim) their mean embeddings.
            ecg_share: (recordings,) of their power.
        """
        sure = chances.max(axis=1, initial=0)
        if self.card.multilabel:
            sure = np.where(self.over_threshold(chances), chances, 1 - chances).prod(axis=1)
        far = distance(self.reference, vectors).numpy() if self.reference else np.nan * ecg_share
        return {"ecg_share": ecg_share, "distance": far, "confidence": sure}

    def beyond(
        self, doubts: dict[str, NDArray[np.float64]], leads: Sequence[int]
    ) -> dict[str, NDArray[np.bool_]]:
        """(recordings,) which are beyond a limit, by its name; leads: how many each has."""
        each = [self.card.limits_of(number) for number in leads]
        limits = {name: np.array([one[name] for one in each]) for name in LIMITS}
        return {
            name: own > limits[name] if name == "distance" else own < limits[name]
            for name, own in doubts.items()
        }

    def to_module(self) -> ClassifierModule:
        """The classifier as a plain `torch.nn.Module`, for a loop of one's own and for export.

        It takes raw ECGs in mV at the rate of its encoders' frame, (batch, leads, samples), of at
        least one frame, and gives the probabilities of `clocs.predict`; `logits` gives what a loss
        takes, and `network` inside takes normalized frames. It is made of torch's own layers with
        copies of these weights, in evaluation mode.
        """
        return ClassifierModule(self.card, self.encoders, self.head)

    def save(self, path: Path | str, *, shared: bool = False) -> None:
        """Write one file, whole or not at all.

        Args:
            path: The file, NAME.safetensors.
            shared: Whether the encoders, which must be in the package, are left out: the file is
                small, and is read where the package has them.

        Raises:
            CheckpointError: An encoder to share is not in the package.
        """
        path = Path(path)
        if path.suffix != ".safetensors":
            raise CheckpointError(f"{path} does not end in .safetensors, as a classifier does")
        tensors = {f"head.{k}": v for k, v in self.head.items()}
        tensors |= {f"reference.{k}": v for k, v in self.reference.items()}
        cards = []
        for number, one in enumerate(self.encoders):
            if shared:
                check_shared(one)
                cards.append(one.card)
                continue
            about = {k: v for k, v in one.card.environment.items() if k != STORED_AS}
            cards.append(replace(one.card, environment=about))
            tensors |= {f"{number}.{k}": v for k, v in one.tensors().items()}
        arrays = {k: v.detach().cpu().numpy() for k, v in tensors.items()}
        arrays["recordings"] = np.unique(np.concatenate([e.recordings for e in self.encoders]))
        private_folder(path.parent)
        CLASSIFIER.write(path, replace(self.card, encoders=tuple(cards)).to_dict(), arrays)


def moves_of(card: ClassifierCard) -> Tensor:
    """(2, leads + 1, classes) scale and bias of logits, by the number of leads; the last: more.

    Between the numbers in the card they are interpolated: eleven leads are nearly twelve.
    """
    counts, known = np.arange(int(LEAD_GROUPS[-1]) + 1), sorted(map(int, card.by_leads))
    made = np.zeros((2, len(counts), len(card.labels)))
    made[0] = 1
    for place, k in np.ndindex((2, len(card.labels)) if known else (0, 0)):
        own = [card.by_leads[str(n)][("scale", "bias")[place]][k] for n in known]
        made[place, :, k] = np.interp(counts, known, own)
    return torch.from_numpy(made)


def move_by_leads(logits: Tensor, leads: Tensor, moves: Tensor) -> Tensor:
    """(n, classes), (n,) how many leads, `moves_of` -> (n, classes)."""
    own = moves.to(logits)[:, leads.clamp(max=moves.shape[1] - 1)]
    return logits * own[0] + own[1]


class MemberNetworks(nn.Module):
    """Normalized frames to logits: the mean over members, each an encoder and a linear layer."""

    def __init__(self, encoders: Sequence[Checkpoint], head: Weights) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            one.encoder.to_module(one.weights, one.buffers) for one in encoders
        )
        self.heads = nn.ModuleList()
        for weight, bias in zip(head["weight"], head["bias"], strict=True):
            layer = nn.Linear(*weight.shape)
            put(layer, weight=weight.T, bias=bias)
            self.heads.append(layer)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, leads, samples) -> (n, classes)."""
        return self.logits(self.embedded(x))

    def embedded(self, x: Tensor) -> Tensor:
        """x: (n, leads, samples) -> (n, members · dim)."""
        return torch.cat([encoder(x) for encoder in self.encoders], dim=1)

    def logits(self, z: Tensor) -> Tensor:
        """z: (…, members · dim) -> (…, classes)."""
        each = zip(self.heads, z.chunk(len(self.heads), dim=-1), strict=True)
        return torch.stack([layer(own) for layer, own in each]).mean(dim=0)


class ClassifierModule(RecordingModule):
    """(batch, leads, samples) in mV to the probabilities of `clocs.predict`.

    Attributes:
        labels: What the columns of the output are.
        temperature: (classes,) by which logits are divided.
        moves: (2, leads + 1, classes) how they are scaled and moved before, by number of leads.
    """

    network: MemberNetworks
    temperature: Tensor
    moves: Tensor

    def __init__(self, card: ClassifierCard, encoders: Sequence[Checkpoint], head: Weights) -> None:
        first = encoders[0]
        if len({(one.card.normalization, one.encoder.samples) for one in encoders}) > 1:
            raise SettingError(
                "the members of this classifier take different inputs; make one module of each"
            )
        super().__init__(MemberNetworks(encoders, head), first.card, first.encoder)
        self.labels, self._multilabel = card.labels, card.multilabel
        self.register_buffer("temperature", torch.tensor(card.temperature))
        self.register_buffer("moves", moves_of(card).float())
        self._moved = bool(card.by_leads)
        self.eval()

    def logits(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, classes): by all views that have a signal.

        Not calibrated; for a loss such as cross-entropy. nan where no view has a signal.
        """
        return self.of_views(*self.rows(x))

    def of_views(self, z: Tensor, there: Tensor) -> Tensor:
        """(batch, views, dim) embeddings, (batch, views) which have a signal -> logits."""
        made = [pooled(one, there, self._maxima) for one in z.chunk(len(self.network.heads), -1)]
        return self.network.logits(torch.cat(made, dim=-1))

    def embedded(self, x: Tensor) -> Tensor:
        return self.network.embedded(x)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, classes): calibrated probabilities."""
        logits = self.logits(x)
        if self._moved:
            there = ~self.frames(x)[0].isnan().any(dim=-1)  # (batch, views, leads)
            logits = move_by_leads(logits, there.any(dim=1).sum(dim=1), self.moves)
        scaled = logits / self.temperature
        return scaled.sigmoid() if self._multilabel else scaled.softmax(dim=-1)


def load_classifier(path: Path | str) -> Classifier:
    """Read and check a classifier.

    Args:
        path: Its file, or the name of a shipped one.

    Raises:
        CheckpointError: It is none, or is damaged.
    """
    path = weights_path(path)
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder; give a classifier made by `clocs finetune`")
    refuse_encoder(path)
    try:
        facts, arrays = CLASSIFIER.read(path)
    except StoreError as error:
        raise CheckpointError(str(error)) from error
    try:
        card = ClassifierCard.from_dict(facts)
        recordings = arrays.pop("recordings")
        if recordings.dtype != np.uint64 or recordings.ndim != 1:
            raise ValueError("it does not list the recordings that it has seen")
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        encoders = tuple(
            Checkpoint.from_tensors(one, own, recordings, path)
            if (own := _named(tensors, f"{number}."))
            else _shared(one, recordings)
            for number, one in enumerate(card.encoders)
        )
        if len({one.encoder.embedding_dim for one in encoders}) > 1:
            raise ValueError("its encoders have different dimensions")
        head, reference = _named(tensors, "head."), _named(tensors, "reference.")
        shape = (len(encoders), encoders[0].encoder.embedding_dim, len(card.labels))
        found = {k: tuple(v.shape) for k, v in head.items()}
        if found != {"weight": shape, "bias": (shape[0], shape[2])}:
            raise ValueError(f"its linear layers have the shapes {found}, not {shape}")
        _check_reference(reference, *shape[:2])
        for tensor in (head | reference).values():
            if tensor.dtype != torch.float32 or not bool(tensor.isfinite().all()):
                raise ValueError("it holds numbers that are not finite, or not float32")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise not_a_classifier(path, error) from error
    return Classifier(card, encoders, head, reference)


def check_shared(encoder: Checkpoint) -> None:
    """CheckpointError where an encoder to be named, rather than copied, is not in the package."""
    if shipped_as(encoder.card.weights_sha256) is None:
        raise CheckpointError(
            "this encoder is not one of the package, whose weights a file may leave out; "
            f"use one of {', '.join(shipped_encoders())}, or leave out `shared`"
        )


def _shared(card: Card, recordings: NDArray[np.uint64]) -> Checkpoint:
    """An encoder that a classifier names but does not hold."""
    name = shipped_as(card.weights_sha256)
    if name is None:
        raise ValueError(
            f"it holds no encoder and needs one, {card.weights_sha256[:12] or 'of no name'}, that "
            "this version of clocs does not have"
        )
    held = load_checkpoint(name).for_frame(card.frame)
    if card.encoder != held.card.encoder:
        raise ValueError(f"its card describes another encoder than {name}")
    return replace(held, card=card, recordings=recordings)


def _check_reference(reference: Weights, members: int, dim: int) -> None:
    """Refuse what `distance` could not use."""
    if not reference:
        return
    axes = reference["variance"].shape[-1]
    expected = {
        "mean": (members, dim),
        "axes": (members, axes, dim),
        "variance": (members, axes),
        "rest": (members,),
    }
    if {name: tuple(tensor.shape) for name, tensor in reference.items()} != expected:
        raise ValueError("its reference has other shapes than its encoders")
    if not all(bool((reference[name] > 0).all()) for name in ("variance", "rest")):
        raise ValueError("its reference has a variance that is not positive")


def _named(tensors: Weights, prefix: str) -> Weights:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def first_encoder(model: Checkpoint | Classifier) -> Checkpoint:
    """The one whose frame, leads and normalization are the model's."""
    return model.encoders[0] if isinstance(model, Classifier) else model


def as_classifier(classifier: Classifier | Path | str) -> Classifier:
    """The classifier, loaded once for all calls in this process where a path or name is given."""
    if isinstance(classifier, Classifier):
        return classifier
    return kept(load_classifier, weights_path(classifier))


def probability_column(label: str) -> str:
    """The column of a label's probability; no label can be taken for another column."""
    return f"p({label})"


def load(model: Path | str) -> Checkpoint | Classifier:
    """Read and check a model: an encoder, or a classifier.

    Args:
        model: Its .safetensors file, a folder of encoders (then the first seed), or the name of a
            shipped model (`clocs info` lists them).
    """
    path = weights_path(model)
    return load_classifier(path) if is_classifier(path) else load_checkpoint(path)


@torch.no_grad()
def ecg_share_and_flat(x: Tensor, rate: float) -> Tensor:
    """x: (…, samples) of single leads -> (2, …): the shares of ECG and of flat time.

    Args:
        x: Frames as the encoder sees them, before or after normalization, in any unit.
        rate: Samples per second.
    """
    rows = x.reshape(-1, x.shape[-1])
    step = max(1, _AT_ONCE // rows.shape[-1])
    found = [_ecg_share(some.float(), rate) for some in rows.split(step) if len(some)]
    made = torch.cat([x.new_zeros((2, 0), dtype=torch.float32), *found], dim=1)
    return made.view(2, *x.shape[:-1])


def window_ecg_share(
    values: NDArray[np.int16], present: NDArray[np.bool_], rate: float
) -> NDArray[np.float64]:
    """(3, n) of windows: sums over leads of the ECG's and the flat share, and the number of leads.

    Args:
        values: (n, leads, samples).
        present: (n, leads) which have a signal.
        rate: Samples per second.
    """
    made = np.zeros((3, *present.shape))
    made[:2, present] = ecg_share_and_flat(torch.from_numpy(values[present]), rate).numpy()
    made[2] = present
    return np.asarray(made.sum(axis=2))


def _ecg_share(x: Tensor, rate: float) -> Tensor:
    """x: (rows, samples) -> (2, rows)."""
    low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
    x = (x - low) / (high - low).clamp(min=torch.finfo(x.dtype).tiny)
    flat = _share(x, lambda low, high: high - low < _FLAT_SHARE, _FLAT_SECONDS * rate)
    clipped = torch.zeros_like(flat)
    at_limit = ((x > 1 - _CLIP_SHARE) | (x < _CLIP_SHARE)).sum(dim=-1)
    some = (at_limit >= min(_CLIP_SECONDS * rate / 2, x.shape[-1])).nonzero()[:, 0]  # few rows
    clipped[some] = _share(
        x[some],
        lambda low, high: (low > 1 - _CLIP_SHARE) | (high < _CLIP_SHARE),
        _CLIP_SECONDS * rate,
    )
    usable = (1 - flat - _CLIPS * clipped).clamp(min=0)
    samples = x.shape[-1]
    spectrum = torch.fft.rfft(x - x.mean(dim=-1, keepdim=True))
    hertz = torch.fft.rfftfreq(samples, 1 / rate, device=x.device)
    power = (spectrum.real.square() + spectrum.imag.square()) * (2 / samples**2)
    power[:, :1] /= 2
    power[:, -1:] /= 1 if samples % 2 else 2

    def inside(low: float, high: float) -> Tensor:
        found: Tensor = (hertz >= low) & (hertz < high)
        return found

    band, tiny = inside(*QRS_HZ), torch.finfo(x.dtype).tiny
    qrs = torch.fft.irfft(spectrum * band, n=samples)
    floor = (qrs.abs().median(dim=-1).values / _MEDIAN).square()
    beats = (power @ band.to(power) - floor).clamp(min=0)
    slow = power @ inside(SLOW_HZ, QRS_HZ[0]).to(power)
    ecg = (beats + torch.minimum(slow, _MAX_SLOW * beats)) / power.sum(dim=-1).clamp(min=tiny)
    return torch.stack([(ecg * usable).clamp(max=1), flat])


def _share(x: Tensor, is_so: Callable[[Tensor, Tensor], Tensor], width: float) -> Tensor:
    """x: (rows, samples) in [0, 1] -> (rows,) the share of time within windows that are so.

    Windows are `width` samples wide and begin at each quarter of it; `is_so` decides by their least
    and greatest values.
    """
    block = max(1, min(round(width), x.shape[-1]) // 4)
    of = 4 if x.shape[-1] >= 4 * block else 1
    blocks = x.unsqueeze(1).unfold(2, block, block)
    low, high = blocks.amin(dim=-1), blocks.amax(dim=-1)  # aminmax takes three times as long
    low, high = -max_pool1d(-low, of, 1), max_pool1d(high, of, 1)
    padded = pad(is_so(low, high).to(x.dtype), (of - 1, of - 1))
    return max_pool1d(padded, of, 1).mean(dim=(1, 2))


@torch.no_grad()
def fit_reference(vectors: Tensor) -> Weights:
    """The reference of training recordings, one per member.

    Args:
        vectors: (members, recordings, dim), the mean of the embeddings of each recording's rows.

    Returns:
        "mean" (members, dim), "axes" (members, k, dim) of length 1, "variance" (members, k) along
        them, and "rest" (members,), the mean variance along all other directions; in float32.
    """
    count, dim = vectors.shape[1:]
    if count < 2:
        raise SettingError(f"a reference needs at least two training recordings, not {count}")
    exact = vectors.double()
    mean = exact.mean(dim=1, keepdim=True)
    # of the covariance, or of the products of recordings, which have the same: whichever is smaller
    away = exact - mean
    small = count < dim
    squared, found = torch.linalg.eigh(away @ away.mT if small else away.mT @ away)
    variance, found = squared.flip(1).clamp(min=0) / (count - 1), found.flip(2).mT
    kept = min(AXES, dim - 1, len(variance[0]))
    axes = found[:, :kept]
    if small:
        axes = torch.nn.functional.normalize(axes @ away, dim=-1)
    others = variance[:, kept:].sum(dim=1) / (dim - kept)
    # a network may have directions that it never uses: no distance along them is infinite
    least = 1e-6 * variance.sum(dim=1) / dim + torch.finfo(torch.float32).tiny
    made = {
        "mean": mean[:, 0],
        "axes": axes[:, :kept],
        "variance": variance[:, :kept].clamp(min=least[:, None]),
        "rest": others.clamp(min=least),
    }
    return {name: tensor.float().contiguous() for name, tensor in made.items()}


@torch.no_grad()
def distance(reference: Weights, vectors: Tensor) -> Tensor:
    """How far recordings are from those of training; about 1 for these themselves.

    Args:
        reference: What `fit_reference` gave.
        vectors: (members, recordings, dim), the mean of the embeddings of each recording's rows.

    Returns:
        (recordings,) Mahalanobis distances, divided by the root of the dimension; the root mean
        square over the members.
    """
    mean, axes, variance, rest = (
        reference[name].to(vectors.device).double() for name in ("mean", "axes", "variance", "rest")
    )
    away = vectors.double() - mean[:, None]
    along = away @ axes.mT
    beside = (away.square().sum(dim=-1) - along.square().sum(dim=-1)).clamp(min=0)
    squared = (along.square() / variance[:, None]).sum(dim=-1) + beside / rest[:, None]
    return (squared / vectors.shape[-1]).mean(dim=0).sqrt()
