"""Checkpoint: an encoder's weights (safetensors) and its card (JSON), all that is needed to use it.

No pickle: a checkpoint from a stranger can be wrong, never harmful.

Also encoders as plain torch modules. Cutting and normalization are part of the module, in
operations that differentiate and that other runtimes have, so that its user brings nothing but mV
at the right rate.

And the leak guard: no patient that an encoder was trained on may be in its test set.

Patients: a card names the datasets and split seeds that have shaped the weights, and a patient's
part is a hash of dataset, split seed and ID. So the guard knows on whose side a patient was, and
a checkpoint carries neither IDs nor hashes of them, which anyone with a list of IDs could guess.
Where official folds were the split, the card names the folds that were not trained on, and the
store at hand says who is in them; where it does not, the hashes of recordings have to tell.

Recordings: a checkpoint carries salted hashes of the contents of its recordings, to find copies
under another ID or in another dataset. The salt comes from the store's content, so that equal runs
write equal files. Only someone who holds a recording can test whether it was used; where even that
is too much, the hashes can be left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional

from clocs.encoders.base import Encoder, Weights
from clocs.encoders.make import ENCODERS, make_encoder
from clocs.errors import CheckpointError, ClocsError, LeakError, SettingError, warn
from clocs.files import kept, private_folder, seed_files, write_atomic
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS, keys_of, parts_of
from clocs.recording import FrameSpec
from clocs.training.card import CLASSIFIER, Card, TrainedOn, read_card, weights_path

TEST = PARTS.index("test")
MAX_RECORDINGS = 100_000_000  # hashed in a checkpoint
_HEADER = 1 << 24  # bytes, more than any weights file spends on names and shapes
_SAME_RATE = 0.01  # the largest relative difference of two rates that count as the same
STORED_AS, HALF = "weights stored as", "float16"  # in a card's `environment`
_NO_KEYS = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class Checkpoint:
    """An encoder ready for use.

    Attributes:
        card: What it is.
        weights: (1, …) each.
        buffers: (1, …) each.
        recordings: Hashed contents of the recordings that it was trained and validated on
            (`hashed_recordings`), sorted; none where they were left out.
    """

    card: Card
    weights: Weights
    buffers: Weights
    recordings: NDArray[np.uint64]

    @property
    def encoder(self) -> Encoder:
        return make_encoder(**self.card.encoder)

    @property
    def maxima(self) -> slice:
        """Numbers of a recording's vector that are the greatest of its frames, not their mean."""
        return slice(*self.card.maxima or (0,))

    @property
    def fingerprint(self) -> str:
        """The sha256 of the weights file, even before it is written."""
        if self.card.weights_sha256:
            return self.card.weights_sha256
        return hashlib.sha256(self._content(half=self._from_half())).hexdigest()

    @property
    def keeps_vectors(self) -> bool:
        """Whether its vectors may be kept on disk: name and weights say what it computes."""
        return all(tensor.dtype == torch.float32 for tensor in self.weights.values())

    @property
    def untrained_as(self) -> dict[str, Any]:
        """Arguments of `make_encoder` for the untrained encoders to compare it with."""
        return self.card.encoder

    def for_frame(self, frame: FrameSpec) -> Checkpoint:
        """The same weights for frames of another duration at the same rate.

        Raises:
            CheckpointError: Its encoder has weights for one duration, or sees another rate.
        """
        same, rate = frame.samples == self.encoder.samples, self.card.frame.rate
        if same and not self.encoder.leads:
            return self
        if abs(frame.rate / rate - 1) > _SAME_RATE:
            raise CheckpointError(
                f"this encoder sees {rate:g} samples per second, not {frame.rate:g}"
            )
        if same:
            return self
        named = {**self.card.encoder, "samples": frame.samples}
        encoder = make_encoder(**named)
        shapes = {k: v.shape[1:] for k, v in encoder.parameters(_NO_KEYS).items()}
        if shapes != {k: v.shape[1:] for k, v in self.weights.items()}:
            raise CheckpointError(
                f"the encoder {encoder.name!r} is made for frames of {self.card.frame.seconds:g} s "
                f"alone, not {frame.seconds:g}; leave out `seconds`"
            )
        card = replace(self.card, encoder=named, frame=frame, weights_sha256=self.fingerprint)
        return replace(self, card=card)

    def to_module(self, level: Literal["recording", "frame"] = "recording") -> RecordingModule:
        """The encoder as a plain `torch.nn.Module`, for a loop of one's own and for export.

        It takes raw ECGs in mV at `card.frame.rate` Hz, (batch, leads, samples), of at least one
        frame, and gives what `clocs.embed` gives at this level; `network` inside takes normalized
        frames. It is made of torch's own layers with copies of these weights, in evaluation mode.
        """
        network = self.encoder.to_module(self.weights, self.buffers)
        made = EncoderModule if level == "recording" else FrameModule
        return made(network, self.card, self.encoder).eval()

    def save(self, path: Path, *, half: bool | None = None) -> None:
        """Write `path` (NAME.safetensors) and the card beside it (NAME.json), each atomically.

        With `half`, weights are rounded to float16, in half the size; the card's `environment` says
        so, and loading gives float32 again. By default weights that were loaded from float16 are
        written as float16 again, so that a copy has the same bytes and the same fingerprint.
        """
        half = self._from_half() if half is None else half
        content = self._content(half=half)
        about = {k: v for k, v in self.card.environment.items() if k != STORED_AS}
        card = replace(
            self.card,
            weights_sha256=hashlib.sha256(content).hexdigest(),
            environment=about | ({STORED_AS: HALF} if half else {}),
        )
        private_folder(path.parent)
        write_atomic(path, content)
        write_atomic(path.with_suffix(".json"), card.json())

    def _from_half(self) -> bool:
        """Whether the weights were loaded from float16 and are still those."""
        return self.card.environment.get(STORED_AS) == HALF and all(
            torch.equal(v.half().float(), v.float()) for v in self.weights.values()
        )

    def _content(self, *, half: bool) -> bytes:
        """The safetensors file."""
        return save(self.tensors(half=half) | {"recordings": torch.from_numpy(self.recordings)})

    def tensors(self, *, half: bool = False) -> Weights:
        """Weights and buffers as they are stored: without the axis of members, by their names."""
        tensors = {f"weights.{k}": v[0].cpu().contiguous() for k, v in self.weights.items()}
        if half:
            tensors = {k: v.to(torch.float16) for k, v in tensors.items()}
            if not all(bool(v.isfinite().all()) for v in tensors.values()):
                raise CheckpointError("weights are too large for float16; leave out `half`")
        return tensors | {f"buffers.{k}": v[0].cpu().contiguous() for k, v in self.buffers.items()}

    @classmethod
    def from_tensors(
        cls, card: Card, tensors: Weights, recordings: NDArray[np.uint64], where: Path
    ) -> Checkpoint:
        """What `tensors` made, compared with what the card describes; `where` they are from.

        Raises:
            CheckpointError: They are not the tensors of that encoder, or not finite.
        """
        if {k: (v.dtype, v.shape) for k, v in tensors.items()} != _expected(where, card):
            raise CheckpointError(
                f"{where} does not hold the weights of the encoder {card.encoder}"
            )
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise CheckpointError(
                f"{where} holds weights that are not finite: its training diverged; train again "
                "with a lower `lr`"
            )
        weights = _named(tensors, "weights.")
        return cls(
            card=card,
            weights={k: v.float() if v.dtype == torch.float16 else v for k, v in weights.items()},
            buffers=_named(tensors, "buffers."),
            recordings=recordings,
        )


def expect_unit(checkpoint: Checkpoint, unit: str, what: str) -> None:
    """Refuse signals in another unit for an encoder that takes mV; the others take any unit."""
    if checkpoint.card.in_mv and unit != "mV":
        raise CheckpointError(
            f"{what} is in {unit}, and this encoder reads voltages; state the unit with `unit`, or "
            "use an encoder that takes any unit, such as cmsmlc-many-leads"
        )


def expect_finite(vectors: Tensor) -> Tensor:
    """The same vectors; refuses any that are not finite."""
    if not bool(vectors.isfinite().all()):
        raise CheckpointError(
            "this encoder gives vectors that are not finite; its training diverged"
        )
    return vectors


def load_checkpoint(given: Checkpoint | Path | str) -> Checkpoint:
    """Read and check one checkpoint.

    Args:
        given: Its .safetensors file, a folder (then its first seed), the name of a shipped one, or
            a checkpoint, which is returned.
    """
    return load_checkpoints(given)[0]


def kept_checkpoint(given: Checkpoint | Path | str) -> Checkpoint:
    """`load_checkpoint`, once for all calls in this process; not to be changed."""
    if isinstance(given, Checkpoint):
        return given
    return kept(_load, seed_files(weights_path(given))[0])


def load_checkpoints(
    given: Checkpoint | Sequence[Checkpoint] | Path | str,
) -> Sequence[Checkpoint]:
    """Read one checkpoint, or all seeds of a folder in order of their numbers, or return those."""
    if isinstance(given, Path | str):
        return [_load(file) for file in seed_files(weights_path(given))]
    return [given] if isinstance(given, Checkpoint) else given


def _load(path: Path) -> Checkpoint:
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; give a checkpoint made by `clocs pretrain`")
    if path.suffix != ".safetensors":
        raise CheckpointError(
            f"{path} is not a checkpoint; give a folder made by `clocs pretrain`, or a "
            "seed-N.safetensors in it"
        )
    if CLASSIFIER.is_kind_of(path):
        raise CheckpointError(
            f"{path} is a classifier, not an encoder; use it with `clocs predict`, or give an "
            "encoder"
        )
    card = read_card(path.with_suffix(".json"))
    kinds, size = _expected(path, card).values(), path.stat().st_size
    least = sum(dtype.itemsize * shape.numel() for dtype, shape in kinds)
    if not least <= size <= least + 8 * MAX_RECORDINGS + _HEADER:
        raise CheckpointError(
            f"{path} has {size:,} bytes, which cannot be the encoder that its card "
            f"{path.stem}.json describes; copy both again"
        )
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != card.weights_sha256:
        raise CheckpointError(f"{path} does not match its card {path.stem}.json; copy both again")
    try:
        tensors: Weights = load(content)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} is not a clocs checkpoint ({error})") from error
    recordings = tensors.pop("recordings", None)
    if recordings is None or recordings.dtype != torch.uint64 or recordings.ndim != 1:
        raise CheckpointError(f"{path} does not list the recordings it has seen; train again")
    return Checkpoint.from_tensors(card, tensors, recordings.numpy(), path)


def _expected(path: Path, card: Card) -> dict[str, tuple[torch.dtype, torch.Size]]:
    """Type and shape of the tensors of the encoder that a card names."""
    name = card.encoder["name"]
    if name not in ENCODERS:
        raise CheckpointError(
            f"{path} is of the encoder {name!r}, which is not known here; add it to "
            f"`clocs.encoders.make.ENCODERS` first (known: {', '.join(ENCODERS)})"
        )
    try:
        encoder = make_encoder(**card.encoder)
        weights, buffers = encoder.parameters(_NO_KEYS), encoder.buffers(0)
    except (ClocsError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path}: its card describes no known encoder ({error})") from error
    half = card.environment.get(STORED_AS) == HALF
    return {
        f"weights.{k}": (torch.float16 if half else v.dtype, v.shape[1:])
        for k, v in weights.items()
    } | {f"buffers.{k}": (v.dtype, v.shape[1:]) for k, v in buffers.items()}


def _named(tensors: Weights, prefix: str) -> Weights:
    return {k.removeprefix(prefix): v[None] for k, v in tensors.items() if k.startswith(prefix)}


class RecordingModule(nn.Module):
    """What modules of recordings share: an ECG is cut into normalized frames, as in training.

    Attributes:
        network: Normalized frames, (n, leads, samples), to one row each. An encoder of one lead
            takes (n, 1, samples); for one of many leads, a missing lead is nan.
        samples: Of a frame, at `rate`.
        rate: In Hz, of the ECGs to give.
        leads: In this order; empty where each lead is seen by itself, whichever it is.
    """

    def __init__(self, network: nn.Module, card: Card, encoder: Encoder) -> None:
        super().__init__()
        self.network = network
        self.samples, self.rate = encoder.samples, card.frame.rate
        self.leads = encoder.leads
        self._in_mv, self._standardized = card.in_mv, card.standardized
        self._offset, self._maxima = card.input_offset, card.maxima
        if card.frame.filters:
            warn(
                f"this encoder learned on filtered recordings ({card.frame.filters}); the module "
                "does not filter: filter what you give it"
            )

    def frames(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (batch, leads, any) in mV -> (batch, views, leads, samples) and (batch, views).

        Frames are whole and without overlap; what is left at the end is not used. An encoder of one
        lead sees every lead of every frame as a view; one of many leads, every frame. A lead with
        nan anywhere in a frame is missing there.

        Returns:
            The views, normalized as the encoder learned on them, and which of them have a signal.
        """
        if x.ndim != 3 or (self.leads and x.shape[1] != len(self.leads)):
            leads = f"{len(self.leads)} leads ({', '.join(self.leads)})" if self.leads else "leads"
            raise SettingError(f"give a batch of (batch, {leads}, samples), not {tuple(x.shape)}")
        if x.shape[2] < self.samples:
            raise SettingError(
                f"an ECG of {x.shape[2]} samples is shorter than a frame; give at least "
                f"{self.samples}, at {self.rate:g} Hz"
            )
        count = x.shape[2] // self.samples
        cut = x[:, :, : count * self.samples].unflatten(2, (count, self.samples))
        missing = cut.isnan().any(dim=-1, keepdim=True)
        made = self._normalized(cut.masked_fill(missing, 0))
        if self.leads:
            made = made.masked_fill(missing, torch.nan).transpose(1, 2)
            # always a copy, so that what `torch.export` traces holds for a single frame, too
            made = made.clone(memory_format=torch.contiguous_format)
            return made, ~missing.squeeze(-1).all(dim=1)
        return made.flatten(1, 2).unsqueeze(2), ~missing.flatten(1)

    def rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x: (batch, leads, any) in mV -> the embedding of each view, (batch, views, …).

        Returns:
            Also (batch, views): which of them count. Rows of the others are of no meaning.
        """
        views, there = self.frames(x)
        flat = views.flatten(0, 1)
        if self.training and not bool(there.all()):  # the others would change batch norm
            chosen = there.flatten()
            own = self.embedded(flat[chosen])
            made = own.new_zeros(len(flat), own.shape[1]).masked_scatter(chosen[:, None], own)
        else:
            made = self.embedded(flat)
        return made.unflatten(0, (there.shape[0], there.shape[1])), there

    def embedded(self, x: Tensor) -> Tensor:
        """Normalized frames, (n, leads, samples) -> (n, dim)."""
        made: Tensor = self.network(x)
        return made

    def _normalized(self, x: Tensor) -> Tensor:
        """(…, samples) in mV -> as the encoder learned on them; a flat one becomes zeros."""
        if self._in_mv:
            return x
        low, high = x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)
        flat, x = high == low, x - low  # exactly zero where it is flat
        if not self._standardized:
            return x / torch.where(flat, 1, high - low) + self._offset
        x = x - x.mean(dim=-1, keepdim=True)
        variance = x.square().mean(dim=-1, keepdim=True)
        return x / torch.where(flat, 1, variance).sqrt()


class EncoderModule(RecordingModule):
    """(batch, leads, samples) in mV to the embeddings of `clocs.embed(level="recording")`."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, dim): the mean direction of the views' embeddings.

        Of length 1; zeros where all embeddings are zero, nan where no view has a signal. Of maxima
        over time, the greatest of the views counts.
        """
        return mean_direction(*self.rows(x), self._maxima)


class FrameModule(RecordingModule):
    """(batch, leads, samples) in mV to the embeddings of `clocs.embed(level="frame")`."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, views, dim): the encoder's own output.

        A view is a frame of a lead, one lead after the other; of many leads at once, a frame. It is
        nan where a view has no signal.
        """
        z, there = self.rows(x)
        return z.masked_fill(~there[..., None], torch.nan)


def mean_direction(z: Tensor, there: Tensor, maxima: Sequence[int]) -> Tensor:
    """z: (batch, views, dim), there: (batch, views) -> (batch, dim), as `EncoderModule` says."""
    units = z if maxima else functional.normalize(z, dim=-1)
    return functional.normalize(pooled(units, there, maxima), dim=-1)


def pooled(z: Tensor, there: Tensor, maxima: Sequence[int]) -> Tensor:
    """(batch, views, dim), (batch, views) which are there -> (batch, dim); nan where none is.

    The mean of the views, and of maxima the greatest.
    """
    missing = ~there[..., None]
    mean = z.masked_fill(missing, 0).sum(dim=1) / there.sum(dim=1, keepdim=True)
    if not maxima:
        return mean
    first, end = maxima
    greatest = z[..., first:end].masked_fill(missing, -torch.inf).amax(dim=1)
    return torch.cat([mean[:, :first], greatest, mean[:, end:]], dim=1)


def salt_of(frames: Frames) -> str:
    """The salt for checkpoints trained on these frames."""
    return hashlib.sha256(f"clocs salt:{frames.content}".encode()).hexdigest()[:32]


def check_parts(frames: Frames) -> None:
    """Refuse frames to train on whose parts are not those of their split seed.

    Raises:
        SettingError: The guard could not tell later who was trained on.
    """
    if not np.array_equal(frames.with_split_seed(frames.split_seed).split, frames.split):
        raise SettingError(
            "these frames are not split by their `split_seed`, so the leak guard could not tell "
            "on whom an encoder was trained; split them with `Frames.with_split_seed`"
        )


def hashed_recordings(frames: Frames, salt: str, splits: Iterable[int]) -> NDArray[np.uint64]:
    """Sorted hashes of the contents of the recordings of these parts."""
    rows = np.unique(frames.recording[np.isin(frames.split, list(splits))])
    return np.sort(_hashed(salt, frames.digests[rows]))


def check_no_leak(checkpoint: Checkpoint, frames: Frames) -> None:
    """Raise LeakError where the encoder has seen a test patient, or a test recording elsewhere.

    Copies of a recording within one dataset are no error: see `copies_of_seen`.
    """
    card = checkpoint.card
    test = np.unique(frames.patient[frames.split == TEST])
    for one in card.trained_on:
        found = _seen_patients(checkpoint, one, frames)[test].sum()
        if found:
            how = f"split seed {one.split_seed}" if one.folds is None else str(one.folds)
            split = "'hash'" if one.folds is None else "the same folds"
            raise LeakError(
                f"{found} of the test patients of {frames.dataset} belong to the parts that this "
                f"encoder was trained and validated on (method {card.method}, {how}); evaluate it "
                f"with a `split_seed` of {one.split_seed}"
                + (f" and {split} as `split`" if one.folds or frames.folds else "")
                + ", or train one on another split"
            )
    # of the same store no hashes are needed, as it holds both parts
    same_store = all(one.content == frames.content for one in card.trained_on)
    if not (card.recording_hashes or same_store):
        warn(
            f"a checkpoint of {card.method} carries no hashes of its recordings: copies of them "
            f"among the test recordings of {frames.dataset} could not be found"
        )
    hashes = hashed_recordings(frames, card.salt, [TEST])
    copies = np.isin(hashes, checkpoint.recordings).sum()
    if copies and frames.dataset not in {one.dataset for one in card.trained_on}:
        raise LeakError(
            f"{copies} of the test recordings of {frames.dataset} have the same content as "
            f"recordings that this encoder was trained on ({card.dataset}); remove them from one "
            "of the two datasets and prepare it again"
        )


def copies_of_seen(checkpoints: Sequence[Checkpoint], frames: Frames) -> NDArray[np.bool_]:
    """(recordings,) test recordings whose samples were trained on, or were in the test part before.

    Published datasets contain some recordings twice, under two names; `clocs info` counts them.
    `clocs.frames.splits` keeps them in one part. What is left out of the test part is counted too.
    """
    test, others = np.zeros((2, len(frames.digests)), bool)
    test[frames.recording[frames.split == TEST]] = True
    others[frames.recording[(frames.split >= 0) & (frames.split < TEST)]] = True
    first = np.unique(frames.digests[test], return_index=True)[1]
    seen = test & np.isin(frames.digests, frames.digests[others])
    seen[np.delete(np.flatnonzero(test), first)] = True
    salts = {checkpoint.card.salt for checkpoint in checkpoints}
    hashed = {salt: _hashed(salt, frames.digests[test]) for salt in salts}
    for checkpoint in checkpoints:
        seen[test] |= np.isin(hashed[checkpoint.card.salt], checkpoint.recordings)
    return seen


def seen_by(
    checkpoint: Checkpoint,
    dataset: str,
    patients: Sequence[str],
    digests: NDArray[np.uint64],
    folds: Sequence[str] | None = None,
) -> NDArray[np.bool_]:
    """(recordings,) whether the encoder was trained or validated on its patient or its samples.

    A patient counts as seen who belongs to a part that it was trained or validated on.

    patients, digests, folds: (recordings,) the patient, the content key and the fold of each.
    """
    keyed = [f"{dataset}:{patient}" for patient in patients]
    seen = np.isin(_hashed(checkpoint.card.salt, digests), checkpoint.recordings)
    for one in checkpoint.card.trained_on:
        seen |= _seen_in(one, keyed, folds)
    return seen


def seen_patients(checkpoint: Checkpoint, frames: Frames) -> NDArray[np.bool_]:
    """(patients,) whether the encoder was trained or validated on them or a recording of theirs."""
    seen = _owners_of_known_recordings(checkpoint, frames)
    for one in checkpoint.card.trained_on:
        seen |= _seen_patients(checkpoint, one, frames)
    return seen


def _seen_patients(checkpoint: Checkpoint, one: TrainedOn, frames: Frames) -> NDArray[np.bool_]:
    """(patients,) of these frames, whether each was on the side that was trained on."""
    seen = _seen_in(one, frames.keyed(frames.patient_ids), frames.fold or None)
    if one.folds and not frames.fold and checkpoint.card.recording_hashes:
        seen &= _owners_of_known_recordings(checkpoint, frames)  # as the folds are not known here
    return seen


def _owners_of_known_recordings(checkpoint: Checkpoint, frames: Frames) -> NDArray[np.bool_]:
    """(patients,) whether a recording of theirs has the content of one that was trained on."""
    known = np.isin(_hashed(checkpoint.card.salt, frames.digests), checkpoint.recordings)
    owners = np.zeros(len(frames.patient_ids), np.bool_)
    owners[frames.patient[known[frames.recording]]] = True
    return owners


def _seen_in(
    one: TrainedOn, patients: Sequence[str], folds: Sequence[str] | None
) -> NDArray[np.bool_]:
    """(patients,) whether each, as "dataset:patient", is in its training or validation part."""
    own = np.array([patient.startswith(f"{one.dataset}:") for patient in patients], np.bool_)
    if one.folds is None:
        parts: NDArray[np.int8] = parts_of(patients, one.split_seed)
    elif folds is None:  # any patient of that dataset could have been this one
        return own
    else:
        parts = one.folds.parts(patients, folds, one.split_seed)
    return np.asarray(own & (parts != TEST), np.bool_)


def _hashed(salt: str, digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return keys_of(f"{salt}:content:{digest}" for digest in digests)
