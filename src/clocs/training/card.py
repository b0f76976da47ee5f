"""Cards: what one must know to use a checkpoint's weights, as JSON beside them, or a classifier.

The card ends with a sha256 of all its fields. The hash of the weights file is one of them, so that
this one digest covers both files. A card may come from a stranger: everything in it that sizes,
names or switches something is compared with limits before anything is made from it.

The card of a classifier lies inside its file; both are read without torch. Also the models inside
the package, by name: one row per model in `clocs/weights/models.toml`.
"""

from __future__ import annotations

import builtins
import json
import math
import re
import tomllib
import types
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from clocs._version import __version__
from clocs.errors import CheckpointError, ClocsError, SettingError, StoreError, suggestion, warn
from clocs.frames.splits import Folds
from clocs.recording import FrameSpec
from clocs.sealed import ArrayFile, own_hash, spelled_for_files, spelled_in_code

FORMAT = 2
CLASSIFIER = ArrayFile(
    "a clocs classifier",
    key="clocs classifier",
    format=1,
    remedy="give one that `clocs finetune` has made, or make it again",
)  # which holds cards, and checkpoints: `clocs.models.classifier`
NORMALIZATION = "min-max per frame and lead"
CENTERED = "min-max per frame and lead, minus 0.5"
IN_MV = "none: in mV"
STANDARDIZED = "standardised per frame and lead"  # mean 0, variance 1; as cards spell it
# added to frames that are scaled to 0 … 1, or to those in mV
INPUT_OFFSETS = {NORMALIZATION: 0.0, CENTERED: -0.5, IN_MV: 0.0, STANDARDIZED: 0.0}
NOTICE = (
    "Embeddings are learned to tell patients apart: treat them as data that can identify a person."
)
UNKNOWN = "unknown"  # the dataset of an outside encoder whose training data nobody states
NOT_FINITE = "not finite"  # the status of a training that diverged

MAX_BYTES = 1 << 20  # of a card; real ones have 2,000
MAX_DIMENSIONS = 1 << 20  # of embeddings
MAX_ITEMS = 10_000  # of a list: leads, labels, datasets, folds
HIGHEST_RATE = 1e5  # of a frame, in Hz
LONGEST_NAME, LONGEST_TEXT = 1000, 10_000  # characters
MAX_MEMBERS = 100  # of a classifier
INTENDED_USE = (
    "Research: reading recordings like those it was trained on. Not a medical device: no diagnosis "
    "and no treatment may rest on it."
)
SHIPPED_FOLDER: Final = Path(__file__).parent.parent / "weights"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LARGEST = 1e300  # number: larger integers do not fit into a float


@dataclass(frozen=True)
class TrainedOn:
    """A dataset whose training and validation patients have shaped the weights.

    Which patients those are follows from `split_seed` (`clocs.frames.splits`), so that the leak
    guard needs no list of them; where official folds were the split, from `folds` and the folds of
    the store that is evaluated.
    """

    dataset: str
    split_seed: int  # random seed of its patient split
    content: str  # content hash of the store
    folds: Folds | None = None  # those that were not trained on; None where the hash decided


@dataclass(frozen=True)
class Card:
    """What a person or a program must know to use the weights elsewhere."""

    method: str  # how the encoder was learned
    seed: int  # its random seed
    dataset: str | None  # that it was trained on; None where no data was seen
    content: str | None  # content hash of the store it was trained on
    split_seed: int  # random seed of the patient split; training and validation patients were seen
    trained_on: tuple[TrainedOn, ...]  # all that shaped the weights, those of `init` first
    leads: tuple[str, ...]  # names of the leads it was trained on
    frame_trained: FrameSpec  # the frame of its training views
    frame: FrameSpec  # the frame to use it with
    encoder: dict[str, Any]  # arguments of `make_encoder`
    labels: tuple[str, ...]  # class names of the dataset
    training: dict[str, Any] = field(default_factory=dict)  # its settings
    metrics: dict[str, Any] = field(default_factory=dict)  # losses, epochs and how training ended
    environment: dict[str, Any] = field(default_factory=dict)  # versions, device and threads
    recording_hashes: bool = True  # whether the weights file lists the recordings it has seen
    salt: str = ""  # salt of these hashes, hexadecimal
    normalization: str = NORMALIZATION  # how the encoder's input is normalized
    # first and last + 1 of the numbers of which a recording has the greatest of its frames
    maxima: tuple[int, ...] = ()  # of all others it has the mean
    notice: str = NOTICE  # for anyone who passes the checkpoint on
    weights_sha256: str = ""  # hash of the weights file
    clocs: str = __version__  # the version that wrote it
    format: int = FORMAT  # version of this card's format

    @property
    def input_offset(self) -> float:
        """What is added to frames scaled to 0 … 1 to give the input that the encoder learned on."""
        return INPUT_OFFSETS[self.normalization]

    @property
    def in_mv(self) -> bool:
        """Whether the encoder takes frames in mV, not scaled."""
        return self.normalization == IN_MV

    @property
    def standardized(self) -> bool:
        """Whether the encoder takes frames with mean 0 and variance 1 in each lead."""
        return self.normalization == STANDARDIZED

    def json(self) -> bytes:
        """The content of the file."""
        facts = asdict(self)
        facts |= {name: getattr(self, name).to_dict() for name in ("frame", "frame_trained")}
        for one in facts["trained_on"]:
            if one["folds"] is None:  # as in cards of earlier versions
                del one["folds"]
        if not facts["maxima"]:  # as in cards of earlier versions
            del facts["maxima"]
        facts = spelled_for_files(facts)
        facts["sha256"] = own_hash(facts)
        return json.dumps(facts, indent=2, ensure_ascii=False).encode()


def expect_readable(card: Card) -> None:
    """Refuse, before it is trained, a checkpoint whose card could not be read again."""
    try:
        parse_card(card.json())
    except (ValueError, KeyError, TypeError) as error:
        raise SettingError(
            f"a checkpoint of this training could not be read again ({error}); change that first"
        ) from error


def read_card(path: Path) -> Card:
    """Read and check a card.

    Raises:
        CheckpointError: It is missing, changed, of another version or beyond the limits.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: a checkpoint needs its card beside it")
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    try:
        return parse_card(content)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointError(
            f"{path} is not the card of a clocs checkpoint ({reason}); copy it again or train again"
        ) from error
    except ClocsError as error:
        raise CheckpointError(f"{path} cannot be used: {error}") from error


def parse_card(content: bytes) -> Card:
    """The card in a file's content; errors as they come."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
    facts = json.loads(content)
    if not isinstance(facts, dict):
        raise ValueError("it is no JSON object")
    version = facts["format"]
    if version != FORMAT:
        raise CheckpointError(
            f"it has format {version!r:.20}, but this version of clocs reads format {FORMAT}; "
            "train again, or use the version that wrote it"
        )
    if facts.pop("sha256", None) != own_hash(facts):
        raise CheckpointError(
            "it differs from its own hash, so it was damaged or changed; copy the checkpoint again"
        )
    facts = {"maxima": []} | spelled_in_code(facts)
    unknown = facts.keys() ^ {field.name for field in fields(Card)}
    if unknown:
        raise ValueError(f"its fields differ: {', '.join(sorted(unknown)):.100}")
    _check(facts)
    for name in ("frame", "frame_trained"):
        facts[name] = FrameSpec.from_dict(facts[name])
        if facts[name].rate > HIGHEST_RATE or facts[name].samples != facts["encoder"]["samples"]:
            raise ValueError(f"`{name}` is {facts[name]}")
    facts["trained_on"] = tuple(_trained_on(one) for one in facts["trained_on"])
    for name in ("leads", "labels", "maxima"):
        facts[name] = tuple(facts[name])
    return Card(**facts)


def _trained_on(facts: dict[str, Any]) -> TrainedOn:
    folds = facts.get("folds")
    return TrainedOn(**facts | {"folds": None if folds is None else Folds(**folds)})


@dataclass(frozen=True)
class _EncoderFacts:
    name: str
    embedding_dim: int
    samples: int
    dropout: float
    leads: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Metrics:
    status: str
    epochs: int
    best_epoch: int
    validation_loss: float | None


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of a type: texts, numbers and lists within the limits."""
    inner = get_args(kind)
    match get_origin(kind) or kind:
        case builtins.str:
            return isinstance(value, str) and len(value) <= LONGEST_NAME
        case builtins.int:
            return type(value) is int and abs(value) < 2**63
        case builtins.float:  # false for NaN, too
            return type(value) in (int, float) and abs(value) <= _LARGEST
        case builtins.tuple:
            fits = isinstance(value, list) and len(value) <= MAX_ITEMS
            return fits and all(_fits(one, inner[0]) for one in value)
        case types.UnionType:
            return any(_fits(value, one) for one in inner)
        case other:
            known = is_dataclass(kind)
            return isinstance(value, dict) and _has(value, kind) if known else type(value) is other


def _has(facts: dict[str, Any], kind: Any, *, more: bool = False) -> bool:
    """Whether an object has the fields of a dataclass, those with a default being optional."""
    hints = get_type_hints(kind)
    known = {one.name: one.default is one.default_factory for one in fields(kind)}  # MISSING both
    needed = {name for name, required in known.items() if required}
    return (needed <= facts.keys() and (more or facts.keys() <= known.keys())) and all(
        _fits(facts[name], hints[name]) for name in known.keys() & facts.keys()
    )


def check_text(value: Any) -> None:
    """Refuse control characters in any text of it: they could steer a terminal."""
    if isinstance(value, str) and _CONTROL.search(value):
        raise ValueError("it holds control characters")
    for part in (*value, *value.values()) if isinstance(value, dict) else ():
        check_text(part)
    for part in value if isinstance(value, list) else ():
        check_text(part)


def _check(facts: dict[str, Any]) -> None:
    """Compare every field with its type and limits."""
    check_text(facts)
    hints, encoder = get_type_hints(Card), facts["encoder"]
    kinds = hints | {"encoder": _EncoderFacts, "metrics": dict}
    fits = {name: _fits(facts[name], kind) for name, kind in kinds.items()}
    fits["encoder"] &= fits["encoder"] and (
        1 <= encoder["embedding_dim"] <= MAX_DIMENSIONS
        and 1 <= encoder["samples"] <= FrameSpec.MAX_SAMPLES
        and 0 <= encoder["dropout"] < 1
    )
    fits["metrics"] &= fits["metrics"] and (
        _has(facts["metrics"], _Metrics, more=True)
        and min(facts["metrics"]["epochs"], facts["metrics"]["best_epoch"]) >= 0
    )
    bounds = (0, *facts["maxima"], encoder["embedding_dim"]) if fits["encoder"] else ()
    fits["maxima"] &= fits["maxima"] and len(bounds) in (2, 4) and sorted(bounds) == [*bounds]
    fits["training"] &= fits["training"] and type(facts["training"].get("lr", 0)) in (int, float)
    _expect_fits(facts, fits)
    if facts["metrics"]["status"] == NOT_FINITE:
        raise CheckpointError("its training diverged; train again with a lower `lr`")
    if facts["normalization"] not in INPUT_OFFSETS:
        raise CheckpointError(
            f"its input is normalized by {facts['normalization']!r:.100}, which this version of "
            "clocs cannot do; use the version that wrote it"
        )


# the fewest leads of recordings that are calibrated together
LEAD_GROUPS = ("1", "2", "6", "12")
LIMITS = ("ecg_share", "distance", "confidence")


@dataclass(frozen=True)
class ClassifierCard:
    """A classifier in words and numbers."""

    name: str
    dataset: str  # whose labels it learned
    content: str  # content hash of that store
    labels: tuple[str, ...]  # classes, in the order of the probabilities
    multilabel: bool  # whether a recording can have several of them
    protocol: str  # 'linear', on frozen encoders, or 'finetune'
    encoders: tuple[Card, ...]  # of each member, as it is used here
    temperature: tuple[float, ...]  # by which the logits of each class are divided
    # from which calibrated probability on a class is predicted; None where validation had none
    thresholds: tuple[float | None, ...]
    # beyond which no prediction is made, from a number of leads on ("1", "2", "6", "12"): the least
    # "ecg_share" and "confidence", the greatest "distance"
    limits: dict[str, dict[str, float]] = field(default_factory=dict)
    # what the logits of each class are multiplied by ("scale"), and what is then added ("bias"),
    # of a number of leads; interpolated in between: those of few leads lie elsewhere
    by_leads: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)  # its settings
    scores: dict[str, Any] = field(default_factory=dict)  # on the test patients
    intended_use: str = INTENDED_USE
    license: str = ""  # of these weights, and of the data behind them
    citation: str = ""  # of the data
    clocs: str = __version__  # the version that wrote it

    @property
    def meanings(self) -> dict[str, str]:
        """What each class holds, in words: AFIB of Chapman is atrial fibrillation or flutter."""
        from clocs.datasets.label_names import meanings

        return meanings(self.labels, self.dataset)

    def limits_of(self, leads: int) -> dict[str, float]:
        """Those of recordings with so many leads; nan where there is none."""
        fits = [self.limits[g] for g in LEAD_GROUPS if g in self.limits and int(g) <= leads]
        return dict.fromkeys(LIMITS, math.nan) | (fits[-1] if fits else {})

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        cards = [json.loads(card.json()) for card in self.encoders]
        return spelled_for_files(asdict(self)) | {"encoders": cards}

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> ClassifierCard:
        """The card of these facts; ValueError, KeyError or TypeError say what is wrong."""
        facts = {"by_leads": {}} | spelled_in_code(facts)
        limits = facts.get("limits")
        if isinstance(limits, dict) and not limits.keys() <= set(LEAD_GROUPS):
            # of earlier versions: the same for all leads; "quality" stood for two measures
            renamed = {"ecg_share" if name == "quality" else name: v for name, v in limits.items()}
            facts = {**facts, "limits": {"1": renamed}}
        if differing := facts.keys() ^ {one.name for one in fields(cls)}:
            raise ValueError(f"its fields differ: {', '.join(sorted(differing)):.100}")
        _check_classifier(facts)
        try:
            cards = [parse_card(json.dumps(one).encode()) for one in facts["encoders"]]
        except CheckpointError as error:
            raise ValueError(f"of one of its encoders: {error}") from error
        lists = {name: tuple(facts[name]) for name in ("labels", "temperature", "thresholds")}
        return cls(**facts | lists | {"encoders": tuple(cards)})


def is_classifier(path: Path | str) -> bool:
    """Whether the file, or the shipped model of that name, is a classifier."""
    path = named_path(path)
    return path.suffix == ".safetensors" and path.is_file() and CLASSIFIER.is_kind_of(path)


def read_classifier_card(path: Path | str) -> ClassifierCard:
    """The card of a classifier's file, or of the shipped one of that name.

    Raises:
        CheckpointError: It is no classifier, or is damaged.
    """
    path = named_path(path)
    refuse_encoder(path)
    try:
        return ClassifierCard.from_dict(CLASSIFIER.read_facts(path))
    except StoreError as error:
        raise CheckpointError(str(error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise not_a_classifier(path, error) from error


def not_a_classifier(path: Path, why: Exception) -> CheckpointError:
    """What is said of a file that cannot be used as one."""
    return CheckpointError(f"{path} is not {CLASSIFIER.what} ({why}); {CLASSIFIER.remedy}")


def refuse_encoder(path: Path) -> None:
    """CheckpointError for an encoder in place of a classifier; it names the classifiers on it."""
    if path.is_dir() or not (beside := path.with_suffix(".json")).is_file():
        return
    card = read_card(beside)
    name = shipped_as(card.weights_sha256) or str(path)
    found = [
        row.name
        for row in SHIPPED.values()
        if row.kind == "classifier"
        and read_classifier_card(row.file).encoders[0].weights_sha256 == card.weights_sha256
    ]
    hint = f"use {' or '.join(found)}, which are on it" if found else "none in the package is on it"
    raise CheckpointError(
        f"{name} is an encoder, not a classifier; {hint}; to make one of your own, run "
        f"`clocs finetune {name} STORE --out classifier.safetensors`"
    )


def _check_classifier(facts: dict[str, Any]) -> None:
    """Compare every field with its type and limits."""
    check_text({name: value for name, value in facts.items() if name != "encoders"})
    fits = {name: _fits(facts[name], kind) for name, kind in get_type_hints(ClassifierCard).items()}
    for name in ("intended_use", "license", "citation"):
        fits[name] = isinstance(facts[name], str) and len(facts[name]) <= LONGEST_TEXT
    encoders, labels, limits = facts["encoders"], facts["labels"], facts["limits"]
    fits["encoders"] = isinstance(encoders, list) and 1 <= len(encoders) <= MAX_MEMBERS
    fits["protocol"] = facts["protocol"] in ("linear", "finetune")
    fits["labels"] &= fits["labels"] and 1 <= len(set(labels)) == len(labels)
    fits["limits"] &= (
        fits["limits"]
        and limits.keys() <= set(LEAD_GROUPS)
        and all(isinstance(own, dict) and own.keys() <= set(LIMITS) for own in limits.values())
        and all(_fits(limit, float) for own in limits.values() for limit in own.values())
    )
    scales = facts["by_leads"] if fits["by_leads"] and fits["labels"] else {}
    fits["by_leads"] &= scales.keys() <= set(LEAD_GROUPS) and all(
        isinstance(own, dict)
        and own.keys() == {"scale", "bias"}
        and all(_fits(x, tuple[float]) and len(x) == len(labels) for x in own.values())
        for own in scales.values()
    )
    for name, low, high in (("temperature", 1e-6, 1e6), ("thresholds", 0, 1)):
        fits[name] &= (
            fits[name]
            and fits["labels"]
            and len(facts[name]) == len(labels)
            and all(value is None or low <= value <= high for value in facts[name])
        )
    _expect_fits(facts, fits)


def _expect_fits(facts: dict[str, Any], fits: dict[str, bool]) -> None:
    for name, fit in fits.items():
        if not fit:
            raise ValueError(f"`{name}` is {facts[name]!r:.100}")


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
    fault: str = ""  # what is known to have been wrong with its training, and what that did
    fails: Sequence[str] = ()  # where it is weak, with numbers
    scores: tuple[Score, ...] = ()  # of encoders; a classifier's card has its own

    @property
    def file(self) -> Path:
        return SHIPPED_FOLDER / f"{self.name}.safetensors"

    @property
    def files(self) -> list[Path]:
        """Its file and, of an encoder, the card beside it."""
        return [path for path in (self.file, self.file.with_suffix(".json")) if path.exists()]


def _shipped() -> Iterator[Shipped]:
    for name, row in tomllib.loads((SHIPPED_FOLDER / "models.toml").read_text("utf-8")).items():
        scores = tuple(Score(**one) for one in row.pop("scores", ()))
        yield Shipped(name, **row | {"commands": tuple(row["commands"])}, scores=scores)


SHIPPED: Final = types.MappingProxyType({row.name: row for row in _shipped()})
# Encoders of earlier versions, and what does as well.
RETIRED: Final = types.MappingProxyType({"cmsmlc-one-lead": "cmsmlc-many-leads"})


def weights_path(given: Path | str) -> Path:
    """The file or folder of a model that is given by its path or, if it is shipped, by its name.

    Raises:
        CheckpointError: It is neither a path nor the name of a shipped model.
    """
    path, name = Path(given), str(given)
    if path.exists():
        if name in SHIPPED:
            warn(
                f"{name} is a file or folder here as well as a shipped model: the former is used; "
                "for the shipped model, work in another folder"
            )
        return path
    if name in SHIPPED:
        return SHIPPED[name].file
    if name in RETIRED:
        raise CheckpointError(
            f"{name} is in the package no longer; use {RETIRED[name]}, whose scores are the same, "
            "and make again what was made with it"
        )
    if path.name == name and not path.suffix:
        hint = suggestion(name, SHIPPED, "give a path, or one of")
        raise CheckpointError(f"{name} does not exist, and no shipped model has that name; {hint}")
    return path


def named_path(given: Path | str) -> Path:
    """The file of a shipped model where its name is given, and else the path, whatever is there."""
    path, row = Path(given), SHIPPED.get(str(given))
    return path if row is None or path.exists() else row.file


def shipped_encoders() -> list[str]:
    """The names of the encoders inside the package."""
    return [row.name for row in SHIPPED.values() if row.kind == "encoder"]


def shipped_as(weights_sha256: str) -> str | None:
    """The name of the encoder inside the package that has these weights."""
    for name in shipped_encoders() if weights_sha256 else ():
        if weights_sha256.encode() in SHIPPED[name].file.with_suffix(".json").read_bytes():
            return name
    return None
