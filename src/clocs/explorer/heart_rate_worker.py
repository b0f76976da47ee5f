"""The process that measures heart rates: `python -m clocs.explorer.heart_rate_worker CACHE STORE…`.

It gives way to everything else, the pages above all. What it has measured is in the cache folder;
its standard output has one line of JSON per step: the store's place among those given, recordings
measured, and whether they are in the file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from clocs.errors import BusyError, ClocsError
from clocs.explorer.heart_rate_cache import measure_rates, rates_folder, read_rates
from clocs.limits import limit_process
from clocs.store.store import open_store

_MEMORY = 8 << 30  # bytes: of a recording, its copies and the store's table; as to read a file
_AGAIN = 2.0  # seconds until it looks again at what another explorer measures


def main(cache: Path, stores: list[Path]) -> None:
    limit_process(_MEMORY, os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server hears it too, and ends this process
    if hasattr(os, "nice"):
        os.nice(19)
    for place, path in enumerate(stores):
        try:
            _measure(cache, path, place)
        except (ClocsError, MemoryError, OSError) as error:  # it may name a recording and a folder
            cause = error if isinstance(error, OSError) else error.__cause__
            why = getattr(cause, "strerror", None)
            _write({"store": place, "error": why or type(error).__name__})


def _measure(cache: Path, path: Path, place: int) -> None:
    store = open_store(path)
    folder = rates_folder(store, cache)
    while True:
        try:
            measure_rates(store, folder, partial(_report, place), partial(_unreadable, place))
            return
        except BusyError:  # by another explorer of the same store: its results are ours
            time.sleep(_AGAIN)
            _report(place, read_rates(store, folder).done, True)


def _report(place: int, done: int, kept: bool) -> None:
    _write({"store": place, "done": done, "kept": kept})


def _unreadable(place: int, sentence: str) -> None:
    _write({"store": place, "unreadable": sentence})


def _write(message: dict[str, object]) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the server has ended
        os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(one) for one in sys.argv[2:]])
