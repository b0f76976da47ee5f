"""DICOM ECGs, written by pydicom, against values computed by hand from the standard's formula."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)

from clocs.errors import UnusableError
from clocs.formats.base import Part, ReadOptions
from clocs.formats.dicom import DICOM
from clocs.formats.source import hold_files
from clocs.recording import STANDARD_LEADS, Gap, Recording
from dicom_files import AMBULATORY, STEPS, channel, file, group


def read_dicom(data: bytes, *, name: str, options: ReadOptions | None = None) -> Recording:
    return DICOM.read(hold_files({f"{name}.dcm": data}), f"{name}.dcm", options or ReadOptions())


def test_a_published_ecg_equals_pydicom_in_every_value() -> None:
    path = get_testdata_file("waveform_ecg.dcm")
    assert isinstance(path, str)
    source = hold_files({"ecg.dcm": open(path, "rb").read()})  # noqa: PTH123, SIM115
    microvolts = pydicom.dcmread(path).waveform_array(0)
    recording = DICOM.read(source, "ecg.dcm", ReadOptions())
    assert recording.leads == STANDARD_LEADS
    assert recording.rate == 1000
    np.testing.assert_allclose(recording.signal, microvolts.T / 1000, rtol=1e-12, atol=0)
    assert (recording.id, recording.patient) == ("ecg", "642341")
    assert (recording.age, recording.sex) == (42.0, "female")
    assert recording.recorded_at == "2013-01-25T10:59:19"
    assert recording.extra["statements"] == "RITMO SINUSALE; ECG NORMALE"
    parts = DICOM.parts(source, "ecg.dcm", ReadOptions())
    assert list(parts) == [Part("", 10.0, "642341"), Part("MEDIAN BEAT", 1.2, "642341")]
    beat = DICOM.read(source, "ecg.dcm", ReadOptions(part="MEDIAN BEAT"))
    expected = pydicom.dcmread(path).waveform_array(1).T / 1000
    np.testing.assert_allclose(beat.signal, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("baseline", "exact"), [("0", True), ("-50", True), ("7.3", False)])
def test_the_baseline_is_in_the_unit_of_the_sensitivity_and_not_in_steps(
    baseline: str, exact: bool
) -> None:
    channels = [
        channel("I", ChannelBaseline=baseline, ChannelSensitivityCorrectionFactor="0.8"),
        channel("II", unit="mV", ChannelSensitivity="0.004"),
    ]
    recording = read_dicom(file(group(channels=channels)), name="x")
    first = (STEPS[:, 0] * 2.5 * 0.8 + float(baseline)) / 1000  # µV to mV
    np.testing.assert_allclose(recording.signal[0], first, rtol=0, atol=1e-12 if exact else 5e-5)
    np.testing.assert_allclose(recording.signal[1], STEPS[:, 1] * 0.004, rtol=0, atol=5e-5)
    assert np.array_equal(recording.digital, STEPS.T) == exact


@pytest.mark.parametrize(
    "syntax",
    [
        ImplicitVRLittleEndian,
        ExplicitVRLittleEndian,
        ExplicitVRBigEndian,
        DeflatedExplicitVRLittleEndian,
    ],
)
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4"])
def test_every_transfer_syntax_and_width_gives_the_same_values(syntax: str, kind: str) -> None:
    steps = (STEPS % 120).astype(kind)
    held = steps.astype(steps.dtype.newbyteorder(">")) if syntax == ExplicitVRBigEndian else steps
    item = group(steps, WaveformData=held.tobytes())
    recording = read_dicom(file(item, syntax=syntax), name="x")
    np.testing.assert_array_equal(recording.digital, steps.T)
    np.testing.assert_allclose(recording.signal, steps.T * 0.0025, rtol=1e-12)


def test_unsigned_samples_around_the_middle_of_their_range_stay_exact() -> None:
    steps = (STEPS.astype(np.int32) + 33000).astype(np.uint16)
    channels = [channel(lead, ChannelBaseline=str(-33000 * 2.5)) for lead in ("I", "II")]
    recording = read_dicom(file(group(steps, channels)), name="x")
    np.testing.assert_allclose(recording.signal, STEPS.T * 0.0025, rtol=1e-12)


def test_wide_samples_of_32_bits_are_rescaled_to_a_tenth_of_a_microvolt() -> None:
    steps = STEPS.astype(np.int32) * 1000
    channels = [channel(lead, ChannelSensitivity="0.0025") for lead in ("I", "II")]
    recording = read_dicom(file(group(steps, channels)), name="x")
    np.testing.assert_allclose(recording.signal, STEPS.T * 0.0025, atol=5e-5)


@pytest.mark.parametrize("padding", [-300, b"\xd4\xfe"])
def test_padding_is_a_gap_and_a_channel_of_padding_alone_is_no_lead(padding: Any) -> None:
    steps = STEPS.copy()
    steps[steps == -300] = 5
    steps[100:150, 0] = -300
    steps[:, 1] = -300
    item = group(steps)
    item.add_new("WaveformPaddingValue", "OW", np.int16(-300).tobytes())
    if isinstance(padding, int):
        item.add_new("WaveformPaddingValue", "SS", padding)
    recording = read_dicom(file(item), name="x")
    assert recording.leads == ("I",)
    assert recording.gaps == (Gap(100, 150, "I"),)
    assert np.isnan(recording.signal[0, 100:150]).all()
    item = group(np.full_like(STEPS, 7), WaveformPaddingValue=np.int16(7).tobytes())
    item["WaveformPaddingValue"].VR = "OW"
    with pytest.raises(UnusableError, match="nan: x has no value"):
        read_dicom(file(item), name="x")


def test_a_skewed_channel_is_moved_by_whole_samples() -> None:
    channels = [channel("I", ChannelSampleSkew="0.3"), channel("II", ChannelTimeSkew="0.02")]
    recording = read_dicom(file(group(channels=channels)), name="x")
    np.testing.assert_array_equal(recording.digital[0], STEPS[:, 0])
    np.testing.assert_array_equal(recording.digital[1, 10:], STEPS[:-10, 1])
    assert recording.gaps == (Gap(0, 10, "II"),)


def test_groups_are_one_recording_only_where_the_file_times_them_alike() -> None:
    limb: dict[str, Any] = {"channels": [channel("I"), channel("II")]}
    chest: dict[str, Any] = {"channels": [channel("V1"), channel("V2")]}
    at_one_time: dict[str, Any] = {"MultiplexGroupTimeOffset": "0"}
    both = read_dicom(file(group(**limb, **at_one_time), group(**chest, **at_one_time)), name="x")
    assert both.leads == ("I", "II", "V1", "V2")
    later: dict[str, Any] = {"MultiplexGroupTimeOffset": "2000"}
    for second in ({}, later):
        data = file(group(**limb, **at_one_time), group(**chest, **second))
        source = hold_files({"x.dcm": data})
        parts = [part.name for part in DICOM.parts(source, "x.dcm", ReadOptions())]
        assert parts == ["", "group 2"]
        assert read_dicom(data, name="x").leads == ("I", "II")
        chosen = read_dicom(data, name="x", options=ReadOptions(part="group 2"))
        assert chosen.leads == ("V1", "V2")


def test_the_rhythm_is_the_recording_wherever_it_stands() -> None:
    beat = group(STEPS[:400], MultiplexGroupLabel="MEDIAN", WaveformOriginality="DERIVED")
    data = file(beat, group(MultiplexGroupLabel="RHYTHM"))
    assert read_dicom(data, name="x").samples == 1000
    assert read_dicom(data, name="x", options=ReadOptions(part="MEDIAN")).samples == 400
    with pytest.raises(UnusableError, match="it has '', 'MEDIAN'"):
        read_dicom(data, name="x", options=ReadOptions(part="RHYTHM"))


def test_leads_are_named_by_code_then_meaning_then_label() -> None:
    mdc, meaning, label = channel("I"), channel("aVF"), channel("I")
    mdc.ChannelSourceSequence[0].CodeValue = "2:62"
    mdc.ChannelSourceSequence[0].CodingSchemeDesignator = "MDC"
    meaning.ChannelSourceSequence[0].CodingSchemeDesignator = "99LOCAL"
    meaning.ChannelSourceSequence[0].CodeMeaning = "Lead aVF (foot)"
    del label.ChannelSourceSequence
    label.ChannelLabel = "MCL1"
    steps = np.repeat(STEPS[:, :1], 3, axis=1)
    options = ReadOptions(lead_names={"MCL1": "V1"})
    recording = read_dicom(file(group(steps, [mdc, meaning, label])), name="x", options=options)
    assert recording.leads == ("aVR", "aVF", "V1")


def test_a_channel_that_is_no_voltage_is_left_out_with_a_notice() -> None:
    pressure = channel("I", unit="mm[Hg]")
    pressure.ChannelSourceSequence[0].CodeValue = "5.6.3-9-900"
    recording = read_dicom(file(group(channels=[pressure, channel("II")])), name="x")
    assert recording.leads == ("II",)
    assert "no voltage" in recording.extra["notice"]


@pytest.mark.parametrize(
    ("age", "years"), [("045Y", 45.0), ("006M", 0.5), ("", 30.0), ("old", 30.0)]
)
def test_the_age_is_given_or_follows_from_the_date_of_birth(age: str, years: float) -> None:
    facts = {"PatientBirthDate": "19900105", "AcquisitionDateTime": "20200106101500.5"}
    recording = read_dicom(file(group(), PatientAge=age, **facts), name="x")
    assert recording.age == years
    assert recording.recorded_at == "2020-01-06T10:15:00"
    assert recording.patient == "x"


def test_a_stretch_is_what_the_whole_has_there() -> None:
    data = file(group(), SOPClassUID=AMBULATORY)
    whole = read_dicom(data, name="x")
    stretch = read_dicom(data, name="x", options=ReadOptions(start=0.5, stop=1.5))
    np.testing.assert_array_equal(stretch.digital, whole.digital[:, 250:750])
    with pytest.raises(UnusableError, match="truncated"):
        read_dicom(data, name="x", options=ReadOptions(start=99))


def test_hostile_and_broken_files_are_refused_in_one_sentence() -> None:
    with pytest.raises(UnusableError, match="truncated: x has 1,000 of 900,000,000 samples"):
        read_dicom(file(group(NumberOfWaveformSamples=900_000_000)), name="x")
    with pytest.raises(UnusableError, match="holds no waveform"):
        read_dicom(file(), name="x")
    with pytest.raises(UnusableError, match="unreadable"):
        read_dicom(b"\x08\0" * 5000, name="x")
    with pytest.raises(UnusableError, match="kind MB"):
        item = group(STEPS.astype(np.int8), WaveformSampleInterpretation="MB")
        read_dicom(file(item), name="x")
    with pytest.raises(UnusableError, match="sampling rate of 0"):
        read_dicom(file(group(SamplingFrequency="0")), name="x")
    whole = file(group())
    for cut in range(0, len(whole), 211):
        with pytest.raises(UnusableError):
            read_dicom(whole[:cut], name="x")


def test_a_deflated_bomb_is_refused_before_it_is_unpacked() -> None:
    data = file(group(), syntax=DeflatedExplicitVRLittleEndian)
    start = 144 + int.from_bytes(data[140:144], "little")
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    pieces = [packer.compress(bytes(1 << 20)) for _ in range(300)]
    bomb = data[:start] + b"".join(pieces) + packer.flush()
    with pytest.raises(UnusableError, match="exceeds limits"):
        read_dicom(bomb, name="x")
    lying = data[:140] + (0).to_bytes(4, "little") + bomb[144:]
    with pytest.raises(UnusableError, match="wrong length of its file meta"):
        read_dicom(lying, name="x")
