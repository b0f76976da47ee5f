"""Whatever clocs reads, damage gives a `ClocsError` or what was there before; and fast."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from clocs.datasets.base import datasets
from clocs.formats.read import FORMATS
from fuzz import broken_targets
from fuzz.__main__ import make_parser
from fuzz.format_samples import BY_TARGET
from fuzz.mutations import damage
from fuzz.run import fuzz, replay
from fuzz.targets import TARGETS
from fuzz.worker import Tally

INPUTS = 6  # of each target; `script/fuzz` reads more


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tally]:
    out = tmp_path_factory.mktemp("failures")
    return fuzz(list(TARGETS), inputs=INPUTS, workers=1, out=out, wall_seconds=600.0)


@pytest.mark.parametrize("name", TARGETS)
def test_damage_neither_escapes_nor_goes_unnoticed(name: str, read: Mapping[str, Tally]) -> None:
    assert read[name].inputs == INPUTS
    assert [f"{one['kind']}: {one['folder']}" for one in read[name].failures] == []


def test_every_format_and_dataset_is_fuzzed() -> None:
    by_others = {"WFDB", "EDF"}
    assert {form for form, _ in BY_TARGET.values()} | by_others == FORMATS.keys()
    assert datasets().keys() - TARGETS.keys() == {"synthetic"}  # which reads nothing


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tally]:
    """The one that hangs is on its own: a limit that is soon reached could hit others by chance."""
    names = list(broken_targets.TARGETS)
    found: dict[str, Tally] = {}
    for some, wall_seconds in (([n for n in names if n != "hang"], 600.0), (["hang"], 1.0)):
        found |= fuzz(
            some,
            inputs=1,
            workers=1,
            out=tmp_path_factory.mktemp("broken"),
            table="fuzz.broken_targets",
            cpu_seconds=0.3,
            wall_seconds=wall_seconds,
        )
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("escape", "escape: ZeroDivisionError"),
        ("silent", "silent change"),
        ("crash", "escape: crash"),
        ("hang", "escape: timeout"),
        ("hog", "escape: MemoryError"),
        ("slow", "escape: TimeoutError"),
    ],
)
def test_every_kind_of_failure_is_noticed_and_kept(
    name: str, kind: str, broken: Mapping[str, Tally]
) -> None:
    tally = broken[name]
    assert tally.inputs == 1
    assert [one["kind"].startswith(kind) for one in tally.failures] == [True]
    facts = json.loads((Path(tally.failures[0]["folder"]) / "failure.json").read_text())
    assert facts["replay"].endswith(tally.failures[0]["folder"])


def test_an_error_of_clocs_is_no_failure(broken: Mapping[str, Tally]) -> None:
    assert broken["sound"].outcomes == {"error": 1}
    assert not broken["sound"].failures


def test_lack_of_memory_is_an_error_where_the_product_has_a_limit(
    broken: Mapping[str, Tally],
) -> None:
    assert broken["greedy"].outcomes == {"error": 1}


def test_a_kept_input_fails_again(broken: Mapping[str, Tally]) -> None:
    assert replay(Path(broken["escape"].failures[0]["folder"])).endswith("\nescape")
    assert replay(Path(broken["silent"].failures[0]["folder"])).endswith("\nsilent change")


def test_the_commands_in_the_docs_parse() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(?:\$ )?script/fuzz (.*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        given = make_parser().parse_args(shlex.split(command, comments=True))
        assert set(given.target or ()) <= TARGETS.keys()


def test_the_same_seed_gives_the_same_damage_and_always_some() -> None:
    files = [{"a.json": b'{"x": [1, 2.5, "y"]}', "b.csv": b"1,2\n3,4\n"}, {"a.json": b"[]"}]
    for seed in range(200):
        first, again = (damage(files[0], Random(seed), files) for _ in range(2))
        assert first == again
        assert first != files[0]
