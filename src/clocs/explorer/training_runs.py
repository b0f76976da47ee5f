"""Trainings in a folder of runs: what their logs say, also while they train."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from clocs.files import LOCK

DEPTH = 3  # folders below the one that was given
MAX_RUNS = 200  # runs listed
MAX_BYTES = 16 << 20  # of a log
_PLAIN = str | int | float | None  # values that are drawn
LOG, SETTINGS = "log.jsonl", "settings.json"  # as `clocs.pretraining` writes them


def run_folders(place: Path) -> dict[str, Path]:
    """Folders of trainings in and below a place, by their names there; looked for anew."""
    found: dict[str, Path] = {}
    for depth in range(DEPTH + 1):
        for file in sorted(place.glob("/".join([*["*"] * depth, SETTINGS]))):
            folder = file.parent
            if len(found) < MAX_RUNS and ((folder / LOG).is_file() or (folder / LOCK).is_file()):
                found[str(folder.relative_to(place)) if depth else place.name or "run"] = folder
    return found


def run_facts(name: str, folder: Path) -> dict[str, Any]:
    """What is known of a run without its log."""
    facts: dict[str, Any] = {"method": "", "seeds": None, "epochs": None}
    with suppress(OSError, ValueError, LookupError, TypeError):  # a file of somebody else
        read = json.loads((folder / SETTINGS).read_bytes())
        facts |= {"method": str(read["method"]), "seeds": len(read["seeds"])}
        facts["epochs"] = int(read["settings"]["epochs"])
    logged = (folder / LOG).stat().st_size if (folder / LOG).is_file() else 0  # bytes
    return {"name": name, **facts, "state": _state(folder), "logged": logged}


def _state(folder: Path) -> str:
    """'training' while its process lives, 'finished' with its weights, else 'stopped'."""
    try:
        os.kill(int((folder / LOCK).read_text(encoding="utf-8")), 0)
        return "training"
    except PermissionError:  # of another user, and alive
        return "training"
    except (OSError, ValueError):
        pass
    return "finished" if next(folder.rglob("seed-*.safetensors"), None) else "stopped"


def log_lines(folder: Path) -> list[dict[str, Any]]:
    """The epochs in a log, without a line that is being written."""
    lines: list[dict[str, Any]] = []
    with suppress(FileNotFoundError), (folder / LOG).open("rb") as file:
        for line in file.readlines(MAX_BYTES):
            with suppress(ValueError):
                facts = json.loads(line, parse_constant=lambda _: None)  # not a number
                if isinstance(facts, dict):
                    lines.append({k: v for k, v in facts.items() if isinstance(v, _PLAIN)})
    return lines
