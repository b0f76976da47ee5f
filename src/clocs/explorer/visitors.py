"""Visitors: their own recordings, kept for a while and placed among a session's patients.

Knows nothing about HTTP, and nothing about how files become recordings.
"""

from __future__ import annotations

import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.explorer.describing import described, packed_signal
from clocs.explorer.patient_map import between
from clocs.explorer.session import NEIGHBOURS, Session, UnknownPatientError
from clocs.explorer.uploads import Upload, Uploads
from clocs.recording import Recording

if TYPE_CHECKING:
    from clocs.training.checkpoint import Checkpoint


class Visitors:
    """The recordings that visitors of a session have given."""

    def __init__(self, session: Session) -> None:
        self._session, self._uploads = session, Uploads()
        self._lock = threading.Lock()
        self._encoder: Checkpoint | None = None

    def place(self, recording: Recording, k: int = NEIGHBOURS) -> dict[str, Any]:
        """Keep an uploaded recording, place it on the map and find its neighbours."""
        vector, notes = self._embedded(recording)
        code = secrets.token_hex(8)
        self._uploads.add(code, Upload(recording, vector, notes))
        return self.upload(code, k)

    def upload(self, code: str, k: int = NEIGHBOURS) -> dict[str, Any]:
        """What is known about an upload."""
        kept = self._kept(code)
        recording = kept.recording
        facts: dict[str, Any] = {
            "code": code,
            "name": recording.id,
            "notes": kept.notes,
            "recording": described(
                recording.leads, recording.samples, recording.rate, recording.unit
            ),
            "position": None,
            "neighbours": [],
            "predictions": [],
        }
        if kept.vector is not None:
            near = self._session.near(kept.vector, k)
            positions, _ = self._session.projection.now()
            rows = np.array([one["row"] for one in near], np.int64)
            cosine = np.array([one["cosine"] for one in near], np.float32)
            facts |= {
                "position": between(positions, rows, cosine).tolist() if len(near) else None,
                "neighbours": near,
                "predictions": self._session.predictors.predict(kept.vector),
            }
        return facts

    def signal(self, code: str, *, start: float, seconds: float, lead: str | None) -> bytes:
        """An upload's samples, packed."""
        return packed_signal(self._kept(code).recording, start, seconds, lead)

    def _kept(self, code: str) -> Upload:
        kept = self._uploads.get(code)
        if kept is None:
            raise UnknownPatientError("this upload is no longer kept; drop the file again")
        return kept

    def _embedded(self, recording: Recording) -> tuple[NDArray[np.float32] | None, tuple[str, ...]]:
        """Its vector, or None with the reason why it has none: the ECG can be looked at anyway."""
        from clocs.explorer.placing import embed_upload

        try:
            return embed_upload(self._loaded(), recording, self._session.embeddings.frame)
        except ClocsError as error:
            return None, (f"It is not placed on the map: {error}.",)

    def _loaded(self) -> Checkpoint:
        from clocs.training.checkpoint import load_checkpoint

        file: Path | None = self._session.checkpoint
        if file is None:
            raise SettingError("no encoder is loaded, so nothing can be placed; give --checkpoint")
        with self._lock:
            self._encoder = self._encoder or load_checkpoint(file)
            return self._encoder
