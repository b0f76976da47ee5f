"""What embeddings hold: analyses of encoders on stores or saved frames."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

ANALYSES = ("noise", "hospital", "identity")
CONTROL_FRAME = FrameSpec(5.0)


def analyze(
    name: str,
    encoders: Sequence[Any],
    data: Sequence[Frames],
    *,
    device: str | None = None,
    **more: Any,
) -> list[dict[str, Any]]:
    """Results of one analysis, each with all its settings.

    Args:
        name: One of `ANALYSES`.
        encoders: Seeds of one method; or, for 'identity', the name of a control.
        data: Frames cut as the encoders expect them; for 'hospital' those learned on, then those
            tested on; for 'identity' those learned on and, if others, those searched.
        device: 'cpu', 'cuda' …; the best available by default.
        more: Further arguments of the analysis.
    """
    more["device"] = pick_device(device)
    if name == "noise":
        found = [noise_robustness(encoders, frames, **more) for frames in data]
    elif name == "hospital" and len(data) == 2:
        found = [other_hospital(encoders, *data, **more)]
    elif name == "identity" and 1 <= len(data) <= 2:
        found = [identity_and_disease(one, *data, **more) for one in encoders]
    else:
        raise SettingError(
            "`data` are frames for 'noise', frames to learn on and others to test on for "
            "'hospital', and frames to learn on and, perhaps, others to search for 'identity'"
        )
    return [one | {"version": __version__} for one in found]


def load_data(path: Path, encoder: Checkpoint | str, leads: Sequence[str] | None = None) -> Frames:
    """Frames of a store, cut as the encoder was trained, of its leads or of these; or saved ones.

    For a control, frames of 5 s at 500 Hz.
    """
    if not (path / MANIFEST).is_file():
        saved = Frames.load(path)
        return saved.with_leads(leads) if leads else saved
    from clocs.frames.make import make_frames
    from clocs.store.store import open_store

    store, spec, wanted = open_store(path), CONTROL_FRAME, leads
    if isinstance(encoder, Checkpoint):
        trained = encoder.card.frame_trained
        spec = FrameSpec(trained.seconds, trained.samples, encoder.card.frame.filters)
        wanted = leads or encoder.encoder.leads or encoder.card.leads
    usable = with_derived(store.leads)
    own = tuple(lead for lead in wanted or () if lead in usable) or store.choose_leads()
    return make_frames(store, spec=spec, leads=own)


def days_of(path: Path, frames: Frames) -> NDArray[np.float64] | None:
    """(recordings,) the day of each by its store, nan where unknown; None of saved frames."""
    if not (path / MANIFEST).is_file():
        return None
    from clocs.store.store import open_store

    taken = dict(open_store(path).table.select("id", "taken").iter_rows())
    texts = [taken[name] for name in frames.recording_ids]
    return np.array([date.fromisoformat(t[:10]).toordinal() if t else np.nan for t in texts])


def save(found: dict[str, Any], out: Path) -> Path:
    """Write a result under a name that its settings give, replacing an earlier one of them."""
    encoder = found["encoders"][0]
    seeds = "-".join(str(one["seed"]) for one in found["encoders"])
    where = str(found.get("dataset"))
    if found["analysis"] == "other hospital":
        where = f"{found['same']['tested_on']}-{found['other']['tested_on']}"
    elif found.get("learned_on", where) != where:
        where += " from " + found["learned_on"]
    leads = f"{len(found['leads'])} leads " if found["analysis"].startswith("identity") else ""
    parts = (
        found["analysis"], where, leads + encoder["encoder"]["name"], encoder["method"],
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
