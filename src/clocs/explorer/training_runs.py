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
MAX_BYTES = 4 << 20  # of a log in one answer
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
    facts: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        read = json.loads((folder / SETTINGS).read_bytes())
        facts = read if isinstance(read, dict) else {}
    settings = facts.get("settings")
    epochs = settings.get("epochs") if isinstance(settings, dict) else None
    seeds = facts.get("seeds")
    return {
        "name": name,
        "method": str(facts.get("method", "")),
        "seeds": len(seeds) if isinstance(seeds, list) else None,
        "epochs": epochs if isinstance(epochs, int) else None,
        "state": _state(folder),
    }


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


def log_lines(folder: Path, start: int, version: str) -> dict[str, Any]:
    """Lines of a log from a byte on; from the first one where the file is not the one known.

    A training that is resumed writes its log anew, without the epochs that are computed again.
    """
    try:
        with (folder / LOG).open("rb") as file:
            own = str(os.fstat(file.fileno()).st_ino)
            if own != version or start > os.fstat(file.fileno()).st_size:
                start = 0
            file.seek(start)
            data = file.read(MAX_BYTES)
    except FileNotFoundError:
        return {"version": "", "start": 0, "next": 0, "lines": []}
    whole = data[: data.rfind(b"\n") + 1]
    lines = []
    for line in whole.splitlines():
        with suppress(ValueError):
            facts = json.loads(line)
            if isinstance(facts, dict):
                lines.append({k: v for k, v in facts.items() if _is_plain(v)})
    return {"version": own, "start": start, "next": start + len(whole), "lines": lines}


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)
