"""Uploads: recordings from a browser, embedded and placed on the map."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError
from clocs.explorer.patient_map import position_among
from clocs.explorer.session import NEIGHBORS, NotFoundError, Session, recording_facts
from clocs.recording import Recording

if TYPE_CHECKING:
    from clocs.training.checkpoint import Checkpoint

KEPT = 16  # uploads in memory, and the most bytes of their samples
KEPT_BYTES = 128 << 20


class Upload(NamedTuple):
    """A visitor's recording."""

    recording: Recording
    vector: NDArray[np.float32] | None  # (dim,), if it could be embedded
    notes: tuple[str, ...]  # sentences for the visitor


def embed_upload(
    checkpoint: Checkpoint,
    recording: Recording,
    frame: float | None = None,
    leads: Sequence[str] | None = None,
) -> Upload:
    """The recording with its unit vector, and notes for the visitor.

    Frames last `frame` seconds and come from `leads`, as for the patients on the map; by default
    they are the encoder's own. If the recording has none of these leads, all its leads are used
    where the encoder sees one lead at a time, and a note says so.
    """
    from clocs.patients.embed import embed_each
    from clocs.patients.encode import InputSpec, cut_each, frame_of, known_leads, placed

    wanted = leads or checkpoint.card.leads
    own = placed(recording, known_leads(checkpoint), wanted).leads
    common = [lead for lead in wanted if lead in own]
    used = wanted if common or checkpoint.encoder.leads else own
    takes = InputSpec.from_checkpoint(checkpoint, frame_of(checkpoint, frame), used)
    (cut,) = made = cut_each([recording], takes)
    (vector,) = embed_each(made, takes)
    if isinstance(cut, ClocsError):
        raise cut
    if isinstance(vector, ClocsError):
        raise vector
    notes = [f"{note[0].upper()}{note[1:]}." for note in cut.reading["notes"]]
    if not common:
        notes.append(
            f"This recording has none of the leads used for the patients ({', '.join(wanted)}). It "
            f"was embedded with {', '.join(own)} instead, so interpret its position with care."
        )
    elif cut.reading["leads_missing"]:
        notes.append(
            f"Embedded with {', '.join(cut.reading['leads_used'])} only; the patients were "
            f"embedded with {', '.join(wanted)}."
        )
    if recording.unit != "mV":
        notes.append("The gain is unknown: amplitudes are in arbitrary units, not mV.")
    return Upload(recording, vector, tuple(notes))


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
            sizes = [one.recording.digital.nbytes for one in self._held.values()]
            while len(sizes) > KEPT or (len(sizes) > 1 and sum(sizes) > KEPT_BYTES):
                self._held.popitem(last=False)
                del sizes[0]
        return self.facts(code)

    def facts(self, code: str) -> dict[str, Any]:
        """An upload's facts, position and neighbors."""
        upload = self.get(code)
        one, vector = upload.recording, upload.vector
        near = [] if vector is None else self._session.near(vector, NEIGHBORS)
        position = None
        if near:
            rows = np.array([patient["row"] for patient in near], np.int64)
            cosine = np.array([patient["cosine"] for patient in near], np.float32)
            position = position_among(self._session.projection.now[0], rows, cosine).tolist()
        return {
            "code": code,
            "name": one.id,
            "notes": upload.notes,
            "recording": recording_facts(one.leads, one.samples, one.rate, one.unit),
            "position": position,
            "neighbors": near,
        }

    def get(self, code: str) -> Upload:
        """As it was uploaded."""
        with self._lock:
            upload = self._held.get(code)
        if upload is None:
            raise NotFoundError("this upload is no longer in memory; upload the file again")
        return upload

    def _embedded(self, recording: Recording) -> Upload:
        """Without a vector, but with a note, if it cannot be embedded: the ECG is shown anyway."""
        from clocs.training.checkpoint import load_checkpoint

        patients, checkpoint = self._session.embeddings, self._session.checkpoint
        try:
            if checkpoint is None:
                raise SettingError("no encoder is loaded; start the explorer with `checkpoint`")
            with self._lock:
                self._encoder = self._encoder or load_checkpoint(checkpoint)
            return embed_upload(self._encoder, recording, patients.frame, patients.leads)
        except ClocsError as error:
            return Upload(recording, None, (f"This ECG is not on the map: {error}.",))
