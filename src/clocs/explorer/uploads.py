"""Uploads: recordings from a browser, embedded and placed on the map."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.explorer.patient_map import position_among
from clocs.explorer.session import NEIGHBORS, NotFoundError, Session, recording_facts
from clocs.recording import Recording, notes_of

if TYPE_CHECKING:
    from clocs.training.checkpoint import Checkpoint

KEPT = 16  # uploads in memory, and the most bytes of their samples
KEPT_BYTES = 128 << 20


def embed_upload(
    checkpoint: Checkpoint,
    recording: Recording,
    frame: float | None = None,
    leads: Sequence[str] | None = None,
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """(dim,) unit vector, and notes for the visitor.

    Frames last `frame` seconds and come from `leads`, as for the patients on the map; by default
    they are the encoder's own. If the recording has none of these leads, all its leads are used
    where the encoder sees one lead at a time, and a note says so.
    """
    from clocs.patients.embed import embed_recordings
    from clocs.patients.encode import frame_of, known_leads, placed

    wanted = leads or checkpoint.card.leads
    recording = placed(recording, known_leads(checkpoint), wanted)
    common = [lead for lead in wanted if lead in recording.leads]
    notes = [f"{note[0].upper()}{note[1:]}." for note in notes_of(recording.extra)]
    if not common and checkpoint.encoder.leads:
        raise SettingError(
            f"it has none of the leads that the encoder sees ({', '.join(wanted)}), only "
            f"{', '.join(recording.leads)}"
        )
    if not common:
        notes.append(
            f"This recording has none of the leads used for the patients ({', '.join(wanted)}). It "
            f"was embedded with {', '.join(recording.leads)} instead, so interpret its position "
            "with care."
        )
    if recording.unit != "mV":
        notes.append("The gain is unknown: amplitudes are in arbitrary units, not mV.")
    embedded = embed_recordings(
        checkpoint,
        [recording],
        level="recording",
        spec=frame_of(checkpoint, frame),
        leads=common or recording.leads,
    )
    if embedded.problems:
        raise SettingError(embedded.problems[0][1])
    if not len(embedded):
        raise SettingError("its embedding is a zero vector, which has no direction")
    used = embedded.rows["leads_used"][0].to_list()
    if common and len(used) < len(wanted):
        notes.append(
            f"Embedded with {', '.join(used)} only; the patients were embedded with "
            f"{', '.join(wanted)}."
        )
    return embedded.vectors[0], tuple(notes)


@dataclass(frozen=True)
class Upload:
    """A visitor's recording."""

    recording: Recording
    vector: NDArray[np.float32] | None  # (dim,), if it could be embedded
    notes: tuple[str, ...]  # sentences for the visitor


class Uploads:
    """The latest uploads to a session, in memory only."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Upload] = OrderedDict()
        self._encoder: Checkpoint | None = None

    def add(self, recording: Recording) -> dict[str, Any]:
        """Keep a recording, place it on the map and find its neighbors."""
        upload = self._embedded(recording)
        code = secrets.token_hex(8)
        with self._lock:
            self._held[code] = upload
            while len(self._held) > KEPT or (len(self._held) > 1 and self._bytes() > KEPT_BYTES):
                self._held.popitem(last=False)
        return self.facts(code)

    def _bytes(self) -> int:
        return sum(one.recording.digital.nbytes for one in self._held.values())

    def facts(self, code: str) -> dict[str, Any]:
        """An upload's facts, position and neighbors."""
        upload = self._get(code)
        one, vector = upload.recording, upload.vector
        near = [] if vector is None else self._session.near(vector, NEIGHBORS)
        position = None
        if near:
            rows = np.array([patient["row"] for patient in near], np.int64)
            cosine = np.array([patient["cosine"] for patient in near], np.float32)
            position = position_among(self._session.projection.now()[0], rows, cosine).tolist()
        return {
            "code": code,
            "name": one.id,
            "notes": upload.notes,
            "recording": recording_facts(one.leads, one.samples, one.rate, one.unit),
            "position": position,
            "neighbors": near,
        }

    def recording(self, code: str) -> Recording:
        """As it was uploaded."""
        return self._get(code).recording

    def _get(self, code: str) -> Upload:
        with self._lock:
            upload = self._held.get(code)
        if upload is None:
            raise NotFoundError("this upload is no longer in memory; upload the file again")
        return upload

    def _embedded(self, recording: Recording) -> Upload:
        """Without a vector, but with a note, if it cannot be embedded: the ECG is shown anyway."""
        try:
            patients = self._session.embeddings
            embedded = embed_upload(self._loaded(), recording, patients.frame, patients.leads)
            return Upload(recording, *embedded)
        except ClocsError as error:
            return Upload(recording, None, (f"This ECG is not on the map: {error}.",))

    def _loaded(self) -> Checkpoint:
        from clocs.training.checkpoint import load_checkpoint

        if self._session.checkpoint is None:
            raise SettingError("no encoder is loaded; start the explorer with `checkpoint`")
        with self._lock:
            self._encoder = self._encoder or load_checkpoint(self._session.checkpoint)
            return self._encoder
