"""The folder of a fine-tuning in progress: beside the file that it will become, until then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clocs.errors import CheckpointError
from clocs.files import LOCK, locked, private_folder, write_atomic
from clocs.models.classifier import load_classifier

ENDING, SETTINGS, STATES = ".training", "settings.json", "state-*.safetensors"


@dataclass(frozen=True)
class Work:
    """Where a fine-tuning keeps what it needs to resume."""

    out: Path | None = None  # the file; None: nothing is written
    finished: bool = False  # whether it is there, made with the same settings

    @property
    def folder(self) -> Path | None:
        """RHYTHM.training for RHYTHM.safetensors."""
        return None if self.out is None else self.out.with_suffix(ENDING)

    def options(self, save_every: float) -> dict[str, Any]:
        """Those of `score_groups`."""
        return {"state": self.folder, "save_every": save_every}

    @classmethod
    @contextmanager
    def on(cls, out: Path | str | None, facts: dict[str, Any], *, resume: bool) -> Iterator[Work]:
        """Hold `out` for this `with`; what is needed to resume stays if it ends too early.

        Raises:
            CheckpointError: It exists, or another training with the same name was interrupted.
        """
        if out is None:
            yield cls()
            return
        path = Path(out)
        if path.suffix != ".safetensors":
            raise CheckpointError(f"{path} does not end in .safetensors, as a classifier does")
        facts = json.loads(json.dumps(facts))
        work = cls(path, _is_made(path, facts, resume=resume))
        folder = path.with_suffix(ENDING)
        private_folder(path.parent)
        try:
            with locked(folder):
                if not work.finished:
                    _claim(folder, facts, resume=resume)
                try:
                    yield work
                finally:
                    if path.exists() or not any(folder.glob(STATES)):  # nothing to resume
                        for file in _own_files(folder):
                            file.unlink(missing_ok=True)
        finally:
            with suppress(OSError):  # it is not empty, or another process's
                folder.rmdir()


def _is_made(path: Path, facts: dict[str, Any], *, resume: bool) -> bool:
    if not path.exists():
        return False
    if resume:
        have = load_classifier(path).card.facts()
        have |= have["training"]
        if all(have.get(name) == value for name, value in facts.items()):
            return True
        raise CheckpointError(f"{path} is another classifier; give another file as `out`")
    raise CheckpointError(f"{path} exists and is not overwritten; give another file as `out`")


def _claim(folder: Path, facts: dict[str, Any], *, resume: bool) -> None:
    """Make it the folder of this training; an interrupted one is not lost by accident."""
    ours = {LOCK, *(file.name for file in _own_files(folder))}
    if any(file.name not in ours for file in folder.iterdir()):
        raise CheckpointError(f"{folder} holds other files; give another file as `out`")
    if any(folder.glob(STATES)):
        try:
            have = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            have = {}
        differing = sorted(name for name in facts if have.get(name) != facts[name])
        if differing:
            raise CheckpointError(
                f"{folder} holds an interrupted training with other settings "
                f"({', '.join(differing)}); give another file as `out`, or delete that folder"
            )
        if not resume:
            raise CheckpointError(
                f"{folder} holds this training, interrupted; add `resume` to continue it, or "
                "delete that folder"
            )
    write_atomic(folder / SETTINGS, json.dumps(facts, indent=2).encode())


def _own_files(folder: Path) -> list[Path]:
    """All that a training writes there, unfinished writes included."""
    return [*folder.glob(f"*{STATES}*"), *folder.glob(f"*{SETTINGS}*")]
