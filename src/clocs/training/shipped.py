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
    """The AUC of an encoder under the linear protocol, as `clocs evaluate NAME STORE` prints it."""

    dataset: str  # whose test patients
    auc: float
    low: float  # 95 % interval
    high: float


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


_LOWEST_LOSS = (
    "Of five seeds, the one with the lowest validation loss of the pre-training; no label and no "
    "test patient had a part in it."
)


def _classifier(
    name: str, summary: str, *, dataset: str, encoder: str, epochs: int, chosen: str
) -> Shipped:
    """A row of the whole network trained with labels."""
    command = (
        f"clocs finetune {encoder} stores/{dataset} --head whole --epochs {epochs} --lr 1e-3 "
        f"--schedule cosine --warm-up 0.1 --out {name}.safetensors"
    )
    prepared = f"clocs prepare {dataset} data/{dataset} --out stores/{dataset}"
    return Shipped(name, "classifier", summary, (prepared, command), chosen)


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
    _classifier(
        "rhythm-chapman",
        "rhythm of a clinical ECG of 10 s from any of four leads",
        dataset="chapman",
        encoder="cmsc-chapman",
        epochs=8,
        chosen="By the AUC on validation patients: 0.985 for the whole network, 0.975 for a linear "
        "layer on the frozen encoder.",
    ),
    _classifier(
        "diagnoses-physionet2020",
        "nine diagnoses of a clinical ECG from any of four leads",
        dataset="physionet2020",
        encoder="cmsc-physionet2020",
        epochs=10,
        chosen="By the AUC on validation patients: 0.837 for the whole network, 0.808 for a linear "
        "layer on the frozen encoder.",
    ),
    _classifier(
        "rhythm-physionet2017",
        "rhythm of a single lead, such as that of a hand-held recorder",
        dataset="physionet2017",
        encoder="cmsc-chapman",
        epochs=30,
        chosen="By the AUC on validation patients: 0.904 for the whole network with 30 epochs, "
        "0.883 with 12; 0.845 for a linear layer on the frozen encoder, and 0.773 for one on "
        "cmsc-physionet2020.",
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
