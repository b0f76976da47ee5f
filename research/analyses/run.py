"""What embeddings hold: analyses of encoders on stores or saved frames."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clocs._version import __version__
from clocs.errors import SettingError
from clocs.files import PUBLIC, write_atomic
from clocs.frames.frames import Frames
from clocs.recording import FrameSpec, with_derived
from clocs.store.manifest import MANIFEST
from clocs.training.checkpoint import Checkpoint
from clocs.training.signals import pick_device
from research.analyses.identity import identity_and_disease
from research.analyses.label_mapping import other_hospital
from research.analyses.noise_scores import noise_robustness
from research.analyses.privacy import privacy


def analyze(
    name: str,
    checkpoints: Sequence[Checkpoint],
    data: Sequence[Frames],
    *,
    device: str | None = None,
) -> list[dict[str, Any]]:
    """Results of one analysis, each with all its settings.

    Args:
        name: One of `ANALYSES`.
        checkpoints: Seeds of one method.
        data: Frames cut as the encoders expect them; for 'hospital' those learned on, then those
            tested on.
        device: 'cpu', 'cuda' …; the best available by default.
    """
    if name not in ANALYSES:
        raise SettingError(f"there is no analysis {name!r}; choose from {', '.join(ANALYSES)}")
    found = ANALYSES[name](checkpoints, data, pick_device(device))
    return [one | {"version": __version__} for one in found]


def _noise(
    checkpoints: Sequence[Checkpoint], data: Sequence[Frames], device: Any
) -> list[dict[str, Any]]:
    return [noise_robustness(checkpoints, frames, device=device) for frames in data]


def _hospital(
    checkpoints: Sequence[Checkpoint], data: Sequence[Frames], device: Any
) -> list[dict[str, Any]]:
    if len(data) != 2:
        raise SettingError("`data` is one dataset to learn on and another to test on; give two")
    return [other_hospital(checkpoints, *data, device=device)]


def _identity(
    checkpoints: Sequence[Checkpoint], data: Sequence[Frames], device: Any
) -> list[dict[str, Any]]:
    return [
        identity_and_disease(one, frames, device=device) for frames in data for one in checkpoints
    ]


def _privacy(
    checkpoints: Sequence[Checkpoint], data: Sequence[Frames], device: Any
) -> list[dict[str, Any]]:
    found = []
    for frames in data:
        for one in checkpoints:
            found.append(privacy(one, frames, device=device))
            if frames.dataset not in {trained.dataset for trained in one.card.trained_on}:
                found.append(privacy(one, frames, patients="unseen", device=device))
    return found


ANALYSES: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "noise": _noise,
    "hospital": _hospital,
    "identity": _identity,
    "privacy": _privacy,
}


def load_data(path: Path, checkpoint: Checkpoint, seconds: float | None = None) -> Frames:
    """Frames of a store, cut as the encoder was trained or of so many seconds; or saved ones."""
    if not (path / MANIFEST).is_file():
        return Frames.load(path)
    from clocs.frames.make import make_frames
    from clocs.store.store import open_store

    store, card = open_store(path), checkpoint.card
    wanted = checkpoint.encoder.leads or card.leads
    usable = with_derived(store.leads)
    leads = tuple(lead for lead in wanted if lead in usable) or store.choose_leads()
    trained = card.frame_trained
    seconds, samples = seconds or trained.seconds, trained.samples
    if checkpoint.encoder.leads:  # it takes frames of any length, at its rate
        samples = round(seconds * trained.rate)
    return make_frames(store, spec=FrameSpec(seconds, samples, card.frame.filters), leads=leads)


def save(found: dict[str, Any], out: Path) -> Path:
    """Write a result under a name that its settings give, replacing an earlier one of them."""
    encoder = found["encoders"][0]
    seeds = "-".join(str(one["seed"]) for one in found["encoders"])
    if found["analysis"] == "other hospital":
        where = f"{found['same']['tested_on']}-{found['other']['tested_on']}"
    else:
        where = found["dataset"] + ("-unseen" if found.get("patients") == "unseen" else "")
    parts = (
        found["analysis"], where, encoder["encoder"]["name"], encoder["method"],
        encoder["trained_on"] or "nothing", f"seed {seeds}",
    )  # fmt: skip
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    write_atomic(path, (json.dumps(found, indent=1) + "\n").encode(), mode=PUBLIC)
    return path


def read_all(folder: Path) -> list[dict[str, Any]]:
    """All results in a folder, by name."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
