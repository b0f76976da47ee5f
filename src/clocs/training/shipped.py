"""The models inside the package, by name: `clocs.load("cmsc-chapman")`.

One row per model; its file, and the card of an encoder, are in `clocs/weights`. What a card has no
field for stands in the row: how the model was made, and an encoder's scores.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from clocs.errors import CheckpointError, ClocsWarning

FOLDER: Final = Path(__file__).parent.parent / "weights"


@dataclass(frozen=True)
class Score:
    """The AUC of an encoder with a linear layer, as `clocs evaluate NAME STORE` prints it."""

    dataset: str  # whose test patients
    auc: float
    low: float  # 95 % interval
    high: float
    protocol: str = "linear"

    def command(self, name: str) -> str:
        """What prints it of the encoder of this name."""
        if self.protocol == "linear":  # the default
            return f"clocs evaluate {name} stores/{self.dataset}"
        return f"clocs evaluate {name} stores/{self.dataset} --protocol {self.protocol}"


@dataclass(frozen=True)
class Shipped:
    """A model inside the package."""

    name: str
    kind: Literal["encoder", "classifier"]
    summary: str  # one line on what it is for
    commands: tuple[str, ...]  # that made it
    chosen: str  # how it was chosen among others
    scores: tuple[Score, ...] = ()  # of encoders; a classifier's card has its own

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.safetensors"

    @property
    def files(self) -> list[Path]:
        """Its file and, of an encoder, the card beside it."""
        return [path for path in (self.file, self.file.with_suffix(".json")) if path.exists()]


_SOLVED = "linear-converged"
_LINEAR = (
    "The encoder was chosen on validation patients, where the layer has an AUC of {}. The whole "
    "network, fine-tuned, has {}, but needs a file as large as the encoder's (docs/encoders.md)."
)
_LOWEST_LOSS = (
    "Of five seeds, the one with the lowest validation loss of the pre-training; no label and no "
    "test patient had a part in it."
)


def _many_leads(name: str, summary: str, *, most_leads: int, scores: tuple[Score, ...]) -> Shipped:
    """A row of the larger network, which has learned on two datasets."""
    datasets = ("chapman", "physionet2020")
    command = (
        f"clocs pretrain {' '.join(f'stores/{one}' for one in datasets)} --encoder multilead "
        "--method cmsmlc --crops random --perturb 'stretch>gaussian(sigma=0.03)' --temperature 0.2 "
        "--optimizer adamw --schedule cosine --warm-up 0.05 --average 0.998 --lr 1e-3 "
        f"--batch-size 512 --epochs 200 --keep last --most-leads {most_leads} --out runs/{name}"
    )
    chosen = (
        "Its settings were chosen on validation patients of PhysioNet 2020 (docs/encoders.md), its "
        "seed was not chosen. The weights were rounded to float16."
    )
    return Shipped(name, "encoder", summary, (*map(_prepared, datasets), command), chosen, scores)


def _classifier(name: str, summary: str, *, dataset: str, encoder: str, chosen: str) -> Shipped:
    """A row of a linear layer on an encoder of the package, which its file names."""
    command = f"clocs finetune {encoder} stores/{dataset} --shared --out {name}.safetensors"
    return Shipped(name, "classifier", summary, (_prepared(dataset), command), chosen)


def _prepared(dataset: str) -> str:
    return f"clocs prepare {dataset} data/{dataset} --out stores/{dataset}"


_ROWS = (
    Shipped(
        name="cmsc-chapman",
        kind="encoder",
        summary="vectors of 10 s of any of four leads, learned on Chapman",
        commands=(
            "clocs prepare chapman data/chapman --out stores/chapman",
            "clocs pretrain stores/chapman --method cmsc --seeds 5 --out runs/chapman-cmsc",
        ),
        chosen=_LOWEST_LOSS,
        scores=(Score("chapman", 0.968, 0.963, 0.972),),
    ),
    Shipped(
        name="cmsc-physionet2020",
        kind="encoder",
        summary="vectors of 5 s of any of four leads, learned on PhysioNet 2020",
        commands=(
            "clocs prepare physionet2020 data/physionet2020 --out stores/physionet2020",
            "clocs pretrain stores/physionet2020 --method cmsc --seeds 5 "
            "--out runs/physionet2020-cmsc",
        ),
        chosen=_LOWEST_LOSS,
        scores=(Score("physionet2020", 0.720, 0.706, 0.734),),
    ),
    _many_leads(
        "cmsmlc-many-leads",
        "vectors of 5 s of any of the twelve standard leads at once",
        most_leads=2,
        scores=(
            Score("physionet2020", 0.966, 0.960, 0.972, _SOLVED),
            Score("chapman", 0.996, 0.995, 0.998, _SOLVED),
        ),
    ),
    _many_leads(
        "cmsmlc-one-lead",
        "vectors of 5 s of a single lead, whichever it is",
        most_leads=1,
        scores=(Score("physionet2017", 0.954, 0.946, 0.962, _SOLVED),),
    ),
    _classifier(
        "rhythm-chapman",
        "rhythm of a clinical ECG from any of the twelve standard leads",
        dataset="chapman",
        encoder="cmsmlc-many-leads",
        chosen=_LINEAR.format("0.996", "0.997"),
    ),
    _classifier(
        "diagnoses-physionet2020",
        "nine diagnoses of a clinical ECG from any of the twelve standard leads",
        dataset="physionet2020",
        encoder="cmsmlc-many-leads",
        chosen=_LINEAR.format("0.960", "0.971"),
    ),
    _classifier(
        "rhythm-physionet2017",
        "rhythm of a single lead, such as that of a hand-held recorder",
        dataset="physionet2017",
        encoder="cmsmlc-many-leads",
        chosen=_LINEAR.format("0.956", "0.959"),
    ),
)
SHIPPED: Final = MappingProxyType({row.name: row for row in _ROWS})


def weights_path(given: Path | str) -> Path:
    """The file or folder of a model that is given by its path or, if it is shipped, by its name.

    Raises:
        CheckpointError: It is neither a path nor the name of a shipped model.
    """
    path, name = Path(given), str(given)
    if path.exists():
        if name in SHIPPED:
            warnings.warn(
                f"{name} is a file or folder here as well as a shipped model: the former is used; "
                "for the shipped model, work in another folder",
                ClocsWarning,
                stacklevel=3,
            )
        return path
    if name in SHIPPED:
        return SHIPPED[name].file
    if path.name == name and not path.suffix:
        raise CheckpointError(f"{name} does not exist, and no shipped model {_called(name)}")
    return path


def named_path(given: Path | str) -> Path:
    """The file of a shipped model where its name is given, and else the path, whatever is there."""
    path, row = Path(given), SHIPPED.get(str(given))
    return path if row is None or path.exists() else row.file


def _called(name: str, names: Iterable[str] = SHIPPED) -> str:
    """The end of a sentence on a name that is unknown, with those close to it."""
    close = get_close_matches(name.lower(), list(names), n=3, cutoff=0.5)
    if close:
        return f"has that name; did you mean {' or '.join(close)}?"
    return f"has that name; give a path, or one of {', '.join(names)}"
