"""What a sweep varies: options of `clocs.pretrain`, each with a list or a range of values.

As text, 'lr=0.0001,0.001' is a list, 'temperature=0.05..0.5' a range and 'lr=log:1e-5..1e-2' one
whose logarithm is drawn evenly. Names joined by '+' are one value of several, such as 'II+V5,I' of
`leads`; 'none' leaves an option at its default where that is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from inspect import Parameter, signature
from itertools import islice, product
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from clocs.encoders.make import ENCODERS, usual_dimension, usual_dropout
from clocs.errors import SettingError
from clocs.frames.make import common_leads, leads_of_any
from clocs.pretraining.methods import METHODS, find_method
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain
from clocs.recording import STANDARD_LEADS
from clocs.registry import Option
from clocs.store.store import Store
from clocs.training.settings import Settings

Point: TypeAlias = dict[str, Any]  # one value of each option that is varied
PARAMETERS = signature(pretrain).parameters
_PATIENTS = "trials would be scored on different patients"
_SAME = "it does not change what is learned"
_NOT_VARIED = {
    **dict.fromkeys(("split", "test_folds", "validation_folds", "split_seed"), _PATIENTS),
    **dict.fromkeys(("device", "tensorboard", "recording_hashes", "save_every"), _SAME),
    **dict.fromkeys(("store", "out", "resume", "on_step", "on_epoch"), _SAME),
    "seeds": "every trial has the same seeds, whose scores are averaged",
    "frame": "vary `seconds` and `rate`",
    "settings": "vary what it holds, by name",
}
_CHOICES: dict[str, tuple[str, ...]] = {"method": tuple(METHODS), "encoder": tuple(ENCODERS)}
_RANGE = re.compile(r"(log:)?\s*([^,\s]+?)\.\.([^,\s]+)")
_BETWEEN_VALUES = re.compile(r",(?![^(]*\))")  # a perturbation has commas in its brackets
_DIGITS = 4  # significant ones of a value that is drawn
_MOST_CHECKED = 10_000  # combinations
# of these the validation loss is on the same scale whatever their value
_SAME_LOSS = {f.name for f in fields(Settings)} - {"batch_size"} | {
    *("encoder", "embedding_dim", "dropout", "init", "precision", "batch_norm"),
    "instances_per_patient",
}


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool  # whether the logarithm is drawn evenly
    whole: bool  # whether numbers are whole

    def at(self, share: float) -> float:
        """The number at this share of the way, from 0 to 1, in four digits."""
        if self.log:
            value = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low + self.whole)
        if self.whole:
            value = int(value) if not self.log else round(value)
        else:
            value = float(f"{value:.{_DIGITS}g}")
        return min(max(value, self.low), self.high)

    def json(self) -> dict[str, Any]:
        return {"from": self.low, "to": self.high, "log": self.log}


@dataclass(frozen=True)
class Varied:
    """One option and the values that it takes."""

    name: str
    values: tuple[Any, ...] | Range

    @property
    def log(self) -> bool:
        """Whether a logarithmic axis shows the values best."""
        if isinstance(self.values, Range):
            return self.values.log
        numbers = [value for value in self.values if is_number(value)]
        return bool(numbers) and min(numbers) > 0 and max(numbers) >= 10 * min(numbers)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values, or the ends of the range."""
        some = self.values
        return (some.low, some.high) if isinstance(some, Range) else some

    @property
    def count(self) -> float:
        """How many values there are."""
        if not isinstance(self.values, Range):
            return len(self.values)
        return self.values.high - self.values.low + 1 if self.values.whole else math.inf

    def json(self) -> Any:
        return self.values.json() if isinstance(self.values, Range) else list(self.values)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_space(
    vary: Mapping[str, str | Sequence[Any]], fixed: Mapping[str, Any]
) -> tuple[Varied, ...]:
    """What is varied, each value compared with what `clocs.pretrain` takes.

    Args:
        vary: The values of each option: a list, or text as in the module's docstring.
        fixed: Options of all trials.
    """
    if not vary:
        raise SettingError("nothing is varied; give at least one option as `vary`, with its values")
    if both := sorted(set(vary) & set(fixed)):
        raise SettingError(f"`{both[0]}` is varied and also given for all trials; leave out one")
    own = vary.get("method", fixed.get("method", PARAMETERS["method"].default))
    names = _BETWEEN_VALUES.split(own) if isinstance(own, str) else own
    known = _known_options([find_method(str(name).strip()) for name in names])
    return tuple(_parse_one(name, values, known) for name, values in vary.items())


def combinations(space: Sequence[Varied]) -> Iterator[Point]:
    """All combinations of values, those of the last option first; of ranges, their ends."""
    names = [one.name for one in space]
    for values in product(*(one.ends for one in space)):
        yield dict(zip(names, values, strict=True))


def check_space(space: Sequence[Varied], fixed: Mapping[str, Any], stores: Sequence[Store]) -> None:
    """Refuse combinations that `clocs.pretrain` would refuse, before anything is trained."""
    for point in islice(combinations(space), _MOST_CHECKED):
        _check({**fixed, **point}, stores)


def check_same_loss(space: Sequence[Varied]) -> None:
    """Refuse to compare losses that are on different scales."""
    other = [one.name for one in space if one.name not in _SAME_LOSS]
    if other:
        raise SettingError(
            f"validation losses of trials that differ in `{other[0]}` are on different scales, so "
            "the lowest says nothing; choose `score=auc`, or vary other options"
        )


def _known_options(methods: Sequence[Any]) -> dict[str, Option]:
    """What can be varied, by name: parameters of `clocs.pretrain`, and the methods' own options."""
    hints = get_type_hints(pretrain)
    found = {
        name: _as_option(name, hints[name], parameter.default)
        for name, parameter in PARAMETERS.items()
        if name not in _NOT_VARIED and parameter.kind is not Parameter.VAR_KEYWORD
    }
    return {option.name: option for row in methods for option in row.options} | found


def _as_option(name: str, hint: Any, default: Any) -> Option:
    union = get_origin(hint) in (Union, UnionType)
    kind = next(one for one in (get_args(hint) if union else (hint,)) if one is not NoneType)
    choices = _CHOICES.get(name, ())
    if get_origin(kind) is Literal:
        kind, choices = str, get_args(kind)
    elif get_origin(kind) is not None:  # a sequence of names
        kind = tuple
    return Option(name, default, "", kind=str if kind is Path else kind, choices=choices)


def _parse_one(name: str, given: str | Sequence[Any], known: Mapping[str, Option]) -> Varied:
    if name in _NOT_VARIED:
        raise SettingError(f"`{name}` cannot be varied: {_NOT_VARIED[name]}")
    if name not in known:
        close = get_close_matches(name, known, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"it has {', '.join(sorted(known))}"
        raise SettingError(f"`clocs pretrain` with this method has no option {name}; {remedy}")
    option = known[name]
    if isinstance(given, str):
        found = _RANGE.fullmatch(given.strip()) if option.value_type in (int, float) else None
        if found:
            return Varied(name, _range(option, given, *found.groups()))
        given = [_value(option, text) for text in _BETWEEN_VALUES.split(given)]
    values = tuple(option.checked(value) for value in given)
    if not values or len(set(values)) != len(values):
        raise SettingError(f"`vary` gives {name} the values {list(given)}; give distinct ones")
    return Varied(name, values)


def _range(option: Option, text: str, log: str | None, low: str, high: str) -> Range:
    first, last = (option.checked(_value(option, end)) for end in (low, high))
    if None in (first, last) or first >= last or (log and first <= 0):
        above = " above 0" if log else ""
        raise SettingError(
            f"`vary` gives {option.name} the range {text}; it must go from a number{above} up to a "
            "higher one, such as 0.01..0.1"
        )
    return Range(first, last, log=bool(log), whole=option.value_type is int)


def _value(option: Option, text: str) -> Any:
    """The value that was typed; what is none stays text, which `Option.checked` refuses."""
    text = text.strip()
    if option.default is None and text.lower() == "none":
        return None
    try:
        if option.value_type is tuple:
            return tuple(text.split("+"))
        return option.value_type(text)
    except ValueError:
        return text


def _check(options: Mapping[str, Any], stores: Sequence[Store]) -> None:
    given = {name: value for name, value in options.items() if value is not None}
    manifest, of_training = stores[0].manifest, {f.name for f in fields(Settings)}
    encoder = _known_options(())["encoder"].checked(given.pop("encoder", "cnn"))
    seeds = given.pop("seeds", 1)
    plan = Plan(
        method=given.pop("method", PARAMETERS["method"].default),
        seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
        encoder=encoder,
        embedding_dim=given.pop("embedding_dim", usual_dimension(encoder)),
        dropout=given.pop("dropout", usual_dropout(encoder)),
        settings=Settings.choose(
            None, manifest.batch_size, **{k: v for k, v in given.items() if k in of_training}
        ),
        options={k: v for k, v in given.items() if k not in PARAMETERS},
        **{f.name: given[f.name] for f in fields(Plan) if f.name in given},
    )
    if plan.embedding_dim < 1:
        raise SettingError(f"`embedding_dim` must be at least 1, not {plan.embedding_dim}")
    for name in ("seconds", "rate"):
        if not given.get(name, 1) > 0:
            raise SettingError(f"`{name}` must be above 0, not {given[name]}")
    leads = given.get("leads")
    if plan.many_leads:
        chosen = leads_of_any(stores, leads or STANDARD_LEADS)
    else:
        chosen = common_leads(stores, leads)
    plan.check_leads(chosen, manifest.dataset)
