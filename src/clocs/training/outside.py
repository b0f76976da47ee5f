"""Outside encoders: an ONNX file or a torch module, with what it must be given, as a checkpoint.

What it must be given stands in a file beside the ONNX file, `encoder.toml` beside `encoder.onnx`,
or in the arguments of `clocs.outside_encoder`: the same words for both. `clocs evaluate` then cuts,
resamples and normalizes recordings as stated, and does the rest as for encoders of its own.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from clocs.datasets.download import PUBLICATIONS
from clocs.encoders.base import Encoder
from clocs.encoders.make import ENCODERS, PREFIX, failed, make_encoder
from clocs.encoders.many_leads import WIDEST
from clocs.errors import CheckpointError, SettingError, needing
from clocs.frames.frames import SEVERAL
from clocs.frames.splits import Folds
from clocs.recording import UNITS_PER_MV, Filters, FrameSpec, canonical_lead
from clocs.training.card import (
    CENTERED,
    IN_MV,
    NORMALIZATION,
    STANDARDIZED,
    UNKNOWN,
    Card,
    TrainedOn,
    check_text,
)
from clocs.training.checkpoint import Checkpoint

NORMALIZATIONS = {
    "none": IN_MV,
    "min-max": NORMALIZATION,
    "min-max minus 0.5": CENTERED,
    "standardized": STANDARDIZED,
}  # of each frame and lead
NOTHING = "nothing"  # what `trained_on` is of an encoder that saw no data
EVERYBODY = Folds(("nobody",))  # the folds of a dataset that was trained on as a whole
MissingLeads = Literal["zero", "nan"]
_CHOICES: dict[str, tuple[Any, ...]] = {
    "normalization": tuple(NORMALIZATIONS),
    "missing_leads": (None, *get_args(MissingLeads)),
    "unit": ("mV", "µV", "uV", "nV", "V"),
}
_NO_KEYS = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class OutsideEncoder(Checkpoint):
    """An encoder that another program has trained; made by `clocs.outside_encoder`.

    Attributes:
        drawn_anew: Whether its weights can be; else the untrained encoders that it is compared with
            are of this package.
        from_file: Whether it is of a file, whose content says what it computes.
    """

    drawn_anew: bool = True
    from_file: bool = False

    @property
    def keeps_vectors(self) -> bool:
        return self.from_file

    @property
    def untrained_as(self) -> dict[str, Any]:
        own, ours = self.card.encoder, {"name": "cnn", "dropout": Encoder.dropout}
        if "leads" in own:  # `multilead` has an even number of dimensions
            even = min(WIDEST, own["embedding_dim"] + own["embedding_dim"] % 2)
            ours |= {"name": "multilead", "embedding_dim": even}
        return own if self.drawn_anew else own | ours


def outside_encoder(
    model: nn.Module | Path | str,
    *,
    rate: float,
    samples: int,
    leads: Sequence[str],
    leads_at_once: bool,
    unit: str,
    normalization: str,
    trained_on: str | Sequence[Mapping[str, Any]],
    missing_leads: MissingLeads | None = None,
    filters: Mapping[str, Any] | None = None,
    maxima: Sequence[int] = (),
    output: str | None = None,
    name: str | None = None,
    seed: int = 0,
) -> OutsideEncoder:
    """Anybody's encoder as a checkpoint, for `clocs.evaluate`; a module is copied.

    Args:
        model: A module, or an ONNX file with all its weights inside, from (batch, leads, samples)
            to (batch, dimension) or (batch, 1, dimension); of one lead at a time, from (batch, 1,
            samples). Batches have any size.
        rate: Samples per second that it takes, in Hz.
        samples: Length of a frame.
        leads: Names of the leads that it was trained on, for `leads_at_once` in its order.
        leads_at_once: Whether it sees all these leads at once, or one at a time.
        unit: Of its input: mV, µV, nV or V.
        normalization: Of each frame and lead before it is given to the encoder: 'none', 'min-max'
            (to 0 … 1), 'min-max minus 0.5', or 'standardized' (mean 0, variance 1).
        trained_on: 'nothing', 'unknown', or for each dataset its name as `dataset` and whom it was
            trained or validated on: `split_seed`, all but the test patients of that split of
            clocs; `test_folds`, all but these official folds; or `part`, which is 'all'.
        missing_leads: What it is given in place of a lead that a recording does not have: 'zero' or
            'nan'; such recordings are refused by default.
        filters: Of whole recordings: `band_pass`, `notch` and `baseline`, as `clocs.prepare` has
            them; none by default.
        maxima: First and last + 1 of the numbers of a vector that are maxima over time: of these, a
            recording has the greatest of its frames, of others the mean.
        output: Name of the output of an ONNX file that has several.
        name: For tables; that of the file or of the module's class by default.
        seed: Of its training; it also chooses the labeled rows, as for every encoder.
    """
    stated = {key: value for key, value in locals().items() if key != "model"}
    path, module = (None, model) if isinstance(model, nn.Module) else (Path(model), nn.Identity())
    name = name or (type(model).__name__ if path is None else path.stem)
    for key, choices in _CHOICES.items():
        _expect(stated[key] in choices, key, stated[key], f"one of {', '.join(map(str, choices))}")
    _expect(not name.startswith("random"), "name", name, "another one: random is untrained")
    _expect(type(rate) in (int, float) and rate > 0, "rate", rate, "a number above 0")
    _expect(type(seed) is int and seed >= 0, "seed", seed, "a whole number from 0")
    listed = [trained_on] if isinstance(trained_on, str) else list(trained_on)
    _expect(len(listed) > 0, "trained_on", trained_on, f"'{NOTHING}', '{UNKNOWN}' or datasets")
    datasets = () if listed in ([NOTHING], [UNKNOWN]) else tuple(map(_dataset, listed))
    own_leads = tuple(map(canonical_lead, leads)) if isinstance(leads, list | tuple) else ()
    _expect(0 < len(own_leads) == len(set(own_leads)), "leads", leads, "a list of distinct names")
    frame = FrameSpec(samples / rate, samples, Filters(**filters or {}))
    scale = UNITS_PER_MV[unit.lower()] if normalization == "none" else 1.0
    module = _of_file(path, output) if path else copy.deepcopy(module).cpu().float()
    adapted = _Adapted(module, scale, missing_leads).eval()
    named = (*adapted.named_parameters(), *adapted.named_buffers())
    state = {key: tensor.detach().clone().contiguous() for key, tensor in named}
    digest = hashlib.sha256(save(state) if path is None else path.read_bytes())
    digest.update(json.dumps(stated, default=str).encode())
    drawn_anew = path is None and all(
        _reset_of(layer) or not [*layer.parameters(recurse=False)] for layer in adapted.modules()
    )
    dropout = [layer.p for layer in adapted.modules() if isinstance(layer, _DropoutNd)]
    encoder: dict[str, Any] = {
        "name": f"{name} {digest.hexdigest()[:8]}",
        "embedding_dim": _dimension(adapted, len(leads) if leads_at_once else 0, samples, name),
        "samples": samples,
        "dropout": float(max(dropout, default=0)),
        **({"leads": list(own_leads)} if leads_at_once else {}),
    }
    ENCODERS[encoder["name"]] = _Maker(adapted, leads_at_once, drawn_anew)
    made = make_encoder(**encoder)
    names = SEVERAL.join(dict.fromkeys(one.dataset for one in datasets))
    card = Card(
        method=name,
        seed=seed,
        dataset=names or str(listed[0]),
        content=None,
        split_seed=datasets[0].split_seed if datasets else 0,
        trained_on=datasets,
        leads=own_leads,
        frame_trained=frame,
        frame=frame,
        encoder=encoder,
        labels=(),
        recording_hashes=False,
        normalization=NORMALIZATIONS[normalization],
        maxima=tuple(maxima),
        weights_sha256=digest.hexdigest(),
    )
    bounds = (0, *card.maxima, made.embedding_dim)
    within = len(bounds) in (2, 4) and all(type(one) is int for one in bounds)
    within = within and sorted(bounds) == [*bounds]
    _expect(within, "maxima", maxima, f"two numbers from 0 to {made.embedding_dim}")
    return OutsideEncoder(
        card,
        weights={key: state[key.removeprefix(PREFIX)][None] for key in made.parameters(_NO_KEYS)},
        buffers={key: state[key.removeprefix(PREFIX)][None] for key in made.buffers(0)},
        recordings=np.zeros(0, np.uint64),
        drawn_anew=drawn_anew,
        from_file=path is not None,
    )


def read_outside_encoder(path: Path) -> OutsideEncoder:
    """The encoder of an ONNX file, described by the .toml file of the same name beside it.

    Raises:
        CheckpointError: One of the files is missing or cannot be read.
        SettingError: What the description says cannot be used.
    """
    beside, signature = path.with_suffix(".toml"), inspect.signature(outside_encoder)
    needed = [one.name for one in signature.parameters.values() if one.default is one.empty][1:]
    for file in (path, beside):
        if not file.is_file():
            raise CheckpointError(
                f"{file} does not exist; an ONNX file is evaluated with a {beside.name} beside it "
                f"that states {', '.join(needed)}"
            )
    try:
        stated = tomllib.loads(beside.read_text("utf-8"))
        check_text(stated)
        signature.bind(path, **stated)
        return outside_encoder(path, **stated)
    except (ValueError, TypeError) as error:
        raise SettingError(f"{beside}: {error}; docs/evaluation.md shows such a file") from error


class _Adapted(nn.Module):
    """What any module becomes: (batch, leads, samples) and a mask of leads -> (batch, dim)."""

    def __init__(self, module: nn.Module, scale: float, missing: MissingLeads | None) -> None:
        """scale: Its unit in mV; missing: What stands for a lead that is not there."""
        super().__init__()
        self.module, self.scale, self.missing = module, scale, missing

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None and not bool(mask.all()):
            if self.missing is None:
                raise SettingError(
                    "frames lack leads of this encoder; state `missing_leads` as 'zero' or 'nan'"
                )
            x = x.masked_fill(~mask[..., None], 0 if self.missing == "zero" else torch.nan)
        z = self.module(x if self.scale == 1 else x * self.scale)
        if not isinstance(z, Tensor) or z.ndim != (3 if z.ndim == 3 and z.shape[1] == 1 else 2):
            found = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise SettingError(f"it gives {found}, not one vector per frame, (batch, dimension)")
        return z.flatten(1)


class _Onnx(nn.Module):
    """An ONNX file as a module without weights."""

    def __init__(self, session: Any, given: str, output: str) -> None:
        super().__init__()
        self._session, self._given, self._output = session, given, output

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise SettingError("an ONNX file cannot be trained; choose 'linear' as `protocol`")
        (made,) = self._session.run([self._output], {self._given: x.cpu().numpy()})
        return torch.from_numpy(made).to(x.device)


def _of_file(path: Path, output: str | None) -> _Onnx:
    with needing("ONNX files need onnxruntime", "onnx"):
        import onnxruntime
    try:
        # of its bytes: its hash would not cover weights that lie in other files
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(path.read_bytes(), providers=providers)
    except Exception as error:  # onnxruntime has a dozen
        raise CheckpointError(f"{path} cannot be opened ({error})") from error
    outputs = [one.name for one in session.get_outputs()]
    chosen = outputs[0] if output is None and len(outputs) == 1 else str(output)
    _expect(chosen in outputs, "output", output, f"one of {', '.join(outputs)}")
    return _Onnx(session, session.get_inputs()[0].name, chosen)


class _Maker:
    """A row of `ENCODERS`: makes the module, with new weights where these can be drawn anew."""

    def __init__(self, module: _Adapted, multilead: bool, drawn_anew: bool) -> None:
        self.module, self.multilead, self.drawn_anew = module, multilead, drawn_anew

    def __call__(self, *, dropout: float, **_: Any) -> nn.Module:
        if isinstance(self.module.module, _Onnx):
            return self.module
        made = copy.deepcopy(self.module)
        for parameter in made.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        for layer in made.modules():
            if self.drawn_anew and (reset := _reset_of(layer)):
                reset()
            if isinstance(layer, _DropoutNd) and not dropout:
                layer.p = 0.0
        return made


def _reset_of(layer: nn.Module) -> Any:
    """What draws its weights anew; torch's attention has it under another name."""
    return getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)


@torch.no_grad()
def _dimension(module: _Adapted, leads: int, samples: int, name: str) -> int:
    """Of the vectors that it makes of frames of zeros; leads: 0 where it sees one at a time."""
    mask = [torch.ones(2, leads, dtype=torch.bool)] if leads else []
    try:
        return int(module(torch.zeros(2, leads or 1, samples), *mask).shape[1])
    except Exception as error:
        raise failed(name, samples, error) from error


def _dataset(stated: Any) -> TrainedOn:
    """What is stated of its training on one dataset, for the leak guard."""
    facts = dict(stated) if isinstance(stated, Mapping) else {"dataset": stated}
    dataset, parts = facts.pop("dataset", None), [*facts.items()]
    if len(parts) != 1 or parts[0][0] not in ("split_seed", "test_folds", "part"):
        raise SettingError(
            f"`trained_on` has {dataset!r:.100} with {', '.join(facts) or 'no part':.100}; give "
            "one of `split_seed` (all but the test patients of that split of clocs were trained "
            "on), `test_folds` (all but these official folds) and `part`, which is 'all'"
        )
    ((key, value),) = parts
    _expect(isinstance(dataset, str), "dataset", dataset, "a name")
    _expect(key != "split_seed" or type(value) is int, key, value, "a whole number")
    _expect(key != "part" or value == "all", key, value, "'all'")
    folds = Folds(value) if key == "test_folds" else EVERYBODY if key == "part" else None
    known = {_letters(name): name for name in PUBLICATIONS}.get(_letters(dataset), dataset)
    return TrainedOn(known, value if key == "split_seed" else 0, "", folds)


def _letters(name: str) -> str:
    """'PTB-XL' and 'ptbxl' are the same dataset."""
    return re.sub(r"[\W_]", "", name.lower())


def _expect(fits: bool, name: str, value: Any, wanted: str) -> None:
    if not fits:
        raise SettingError(f"`{name}` is {value!r:.100}; give {wanted}")
