"""The command line in this process: starting one for each command takes seconds."""

from __future__ import annotations

import io
import json
import sys
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from clocs.cli.main import run


@dataclass(frozen=True)
class Done:
    """What a command has printed."""

    stdout: str
    stderr: str


def clocs(
    *arguments: object, code: int = 0, cwd: Path | None = None, encoding: str = "utf-8"
) -> Done:
    """Run `clocs ARGUMENTS` as its process would, with streams of this encoding."""
    printed, said = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    argv = ["clocs", *map(str, arguments)]
    with (
        chdir(cwd or Path.cwd()),
        patch.object(sys, "argv", argv),
        warnings.catch_warnings(),
        redirect_stdout(printed),
        redirect_stderr(said),
    ):
        found = run()
    streams = []
    for stream in (printed, said):
        stream.flush()
        stream.seek(0)
        streams.append(stream.read())
    done = Done(*streams)
    assert found == code, done.stderr
    return done


def as_json(*arguments: object, code: int = 0) -> Any:
    """What `clocs ARGUMENTS --json` prints, which must be JSON alone."""
    return json.loads(clocs(*arguments, "--json", code=code).stdout)
