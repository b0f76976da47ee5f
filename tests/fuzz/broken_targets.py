"""Targets that do everything wrong, to show that the fuzzer notices."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from clocs.errors import SourceError
from fuzz.target import Given, Target

_GOOD = b"0123456789" * 10


def _content(given: Given) -> bytes:
    return given.files["a"]


def _escape(given: Given) -> Any:
    return None if _content(given) == _GOOD else 1 / 0


def _silent(given: Given) -> Any:
    return str(_content(given))


def _crash(given: Given) -> Any:
    if _content(given) != _GOOD:
        os.abort()


def _hang(given: Given) -> Any:
    while _content(given) != _GOOD:
        time.sleep(1)


def _hog(given: Given) -> Any:
    return bytearray(0 if _content(given) == _GOOD else 1 << 40)


def _greedy(given: Given) -> Any:
    if _content(given) != _GOOD:
        sys.stderr.write("memory allocation of 687194767200 bytes failed\n")
        sys.stderr.flush()
        os.abort()


def _slow(given: Given) -> Any:
    ends = time.process_time() + (0 if _content(given) == _GOOD else 0.6)
    while time.process_time() < ends:
        pass


def _sound(given: Given) -> Any:
    if _content(given) != _GOOD:
        raise SourceError("it is damaged; give another file")
    return "good"


_READERS = {
    "escape": _escape,
    "silent": _silent,
    "crash": _crash,
    "hang": _hang,
    "hog": _hog,
    "greedy": _greedy,
    "slow": _slow,
    "sound": _sound,
}
TARGETS = {
    name: Target(
        name, lambda: [{"a": _GOOD}], read, name in ("silent", "sound"), None, name == "greedy"
    )
    for name, read in _READERS.items()
}
