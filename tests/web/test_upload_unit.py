"""Uploads with the amplitudes of no ECG."""

from __future__ import annotations

import numpy as np
import pytest

from clocs import Recording, Store
from clocs.web.uploads import GivenUnit, UnitQuestionError, read_upload, span_mv
from upload_files import read_in_process, wfdb_files


@pytest.fixture(scope="module")
def recording(small_store: Store) -> Recording:
    return small_store.recording(0)


def table(recording: Recording, per_mv: float) -> dict[str, bytes]:
    """As CSV, in a unit of which so many make a mV."""
    rows = "\n".join(",".join(f"{v * per_mv:.7g}" for v in row) for row in recording.signal.T)
    return {"own.csv": f"{','.join(recording.leads)}\n{rows}\n".encode()}


@pytest.mark.parametrize(
    ("per_mv", "said"),
    [
        (1.0, GivenUnit("µV")),  # drawn flat, if it were believed
        (1000.0, GivenUnit("mV")),
        (40.0, GivenUnit()),  # a size that fits no unit
        (5e5, GivenUnit()),
        (1.0, GivenUnit("steps", 2000.0)),
    ],
)
def test_amplitudes_of_no_ecg_are_a_question_and_its_answer_counts(
    recording: Recording, per_mv: float, said: GivenUnit
) -> None:
    files = table(recording, per_mv)
    with pytest.raises(UnitQuestionError, match="say in which unit its numbers are") as asked:
        read_upload(files, recording.rate, said)
    assert asked.value.facts["name"] == "own"
    assert asked.value.facts["span"] == pytest.approx(per_mv * span_mv(recording), rel=0.02)
    answer = GivenUnit("steps", per_mv, confirmed=True)
    (read,) = read_upload(files, recording.rate, answer).recordings
    assert isinstance(read, Recording)
    np.testing.assert_allclose(read.signal, recording.signal, atol=2e-3)
    assert "no ECG" not in read.extra.get("notice", "")


def test_a_wrong_gain_in_a_header_is_a_question_too(recording: Recording) -> None:
    """Also through the process that reads uploads."""
    pair = wfdb_files(recording)
    gain = f"{recording.gain[0]:.10g}("
    wrong = {"own.hea": pair["own.hea"].replace(gain.encode(), b"900000("), "own.dat": b""}
    wrong["own.dat"] = pair["own.dat"]
    with pytest.raises(UnitQuestionError) as asked:
        read_in_process(wrong)
    assert asked.value.facts["mv"] == asked.value.facts["span"] < 0.03
    said = {"unit": "steps", "gain": str(recording.gain[0]), "confirmed": "true"}
    read = read_in_process(wrong, said)
    np.testing.assert_allclose(read.signal, recording.signal, atol=1e-9)


def test_an_unlikely_answer_is_taken_and_noted(recording: Recording) -> None:
    said = GivenUnit("µV", confirmed=True)
    (read,) = read_upload(table(recording, 1.0), recording.rate, said).recordings
    assert isinstance(read, Recording)
    assert span_mv(read) < 0.03 and "which is no ECG's amplitude" in read.extra["notice"]
