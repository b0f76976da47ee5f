"""Files of electrocardiographs: the values that were written, and what is refused."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import numpy as np
import pytest

import clinical_files as files
from clocs.errors import SettingError, UnusableError
from clocs.formats.base import FileFormat, ReadOptions
from clocs.formats.clinical import AECG, ISHNE, MFER, MUSE, SCP, SIERRA
from clocs.formats.read import format_of
from clocs.formats.source import hold_files
from clocs.recording import Recording

LEADS = ("I", "II", "V1", "V5")
STEPS = np.random.default_rng(6).integers(-400, 400, (4, 1500)).astype(np.int16)
SAMPLES = {
    "ISHNE": files.ishne(STEPS, LEADS, nanovolts=2500),
    "HL7 aECG": files.aecg(STEPS, LEADS, microvolts=2.5).encode(),
    "GE MUSE": files.muse(STEPS, LEADS, microvolts=2.5).encode(),
    "SCP-ECG": files.scp(STEPS, LEADS, nanovolts=2500),
    "Philips Sierra": files.sierra(STEPS, LEADS, microvolts=2.5).encode(),
    "MFER": files.mfer(STEPS, LEADS, microvolts=2),
}
FORMATS = {one.name: one for one in (ISHNE, AECG, MUSE, SCP, SIERRA, MFER)}


def read(own: FileFormat, data: bytes, **options: Any) -> Recording:
    return own.read(hold_files({"x": data}), "x", ReadOptions(**options))


@pytest.mark.parametrize("name", SAMPLES)
def test_content_tells_the_format_whatever_the_name(name: str) -> None:
    assert format_of("anything", SAMPLES[name][:4096]) is FORMATS[name]


def test_what_is_xml_or_has_the_suffix_ecg_is_told_by_its_content() -> None:
    assert format_of("x.ecg", SAMPLES["ISHNE"][:4096]) is ISHNE
    xml = b'<?xml version="1.0"?>\n<restingecgdata xmlns="http://www3.medical.philips.com">'
    assert format_of("x.xml", xml) is SIERRA
    assert format_of("x.xml", b"<?xml version='1.0'?><note/>") is None


@pytest.mark.parametrize(
    ("name", "step", "zero", "rate", "patient", "sex", "taken"),
    [
        ("ISHNE", 0.0025, 0, 200, "H-1", "female", "2020-04-05T06:07:08"),
        ("HL7 aECG", 0.0025, 10, 500, "S-7", "female", "2002-05-22T14:33:01"),
        ("GE MUSE", 0.0025, 0, 500, "M-3", "male", "2021-07-14T10:11:12"),
        ("SCP-ECG", 0.0025, 0, 500, "C-9", "female", "2019-02-03T04:05:06"),
        ("Philips Sierra", 0.0025, 10, 500, "P-4", "female", "2018-09-10T11:12:13"),
        ("MFER", 0.002, 0, 500, "F-2", None, None),
    ],
)
def test_values_are_those_that_were_written(
    name: str, step: float, zero: int, rate: float, patient: str, sex: str, taken: str
) -> None:
    recording = read(FORMATS[name], SAMPLES[name])
    assert recording.leads == LEADS
    assert recording.rate == rate
    np.testing.assert_array_equal(recording.digital, STEPS)
    np.testing.assert_allclose(
        recording.signal, (STEPS - float(zero)) * step, rtol=1e-9, atol=1e-12
    )
    assert (recording.patient, recording.sex, recording.recorded_at) == (patient, sex, taken)
    stretch = read(FORMATS[name], SAMPLES[name], start=1.0, stop=2.0)
    first = round(rate)
    np.testing.assert_array_equal(stretch.digital, STEPS[:, first : 2 * first])


def test_ages_and_statements_are_kept() -> None:
    muse = read(MUSE, SAMPLES["GE MUSE"])
    assert (muse.age, muse.extra["statements"]) == (61.0, "Sinus rhythm")
    assert read(AECG, SAMPLES["HL7 aECG"]).age == 49.0
    assert read(ISHNE, SAMPLES["ISHNE"]).age == 70.0


def test_a_rate_that_is_no_whole_number_is_not_rounded() -> None:
    data = files.aecg(STEPS, LEADS, microvolts=2.5, increment="0.0078").encode()
    assert read(AECG, data).rate == pytest.approx(1 / 0.0078)


def test_a_lead_that_was_off_has_a_gap() -> None:
    steps = STEPS.copy()
    steps[1, 100:200] = -32768
    recording = read(ISHNE, files.ishne(steps, LEADS, nanovolts=2500, variable=b"comment"))
    assert [(gap.start, gap.stop, gap.lead) for gap in recording.gaps] == [(100, 200, "II")]
    assert "notice" not in recording.extra


def test_a_damaged_header_of_a_holter_is_noticed() -> None:
    data = bytearray(SAMPLES["ISHNE"])
    data[30] ^= 1
    assert "checksum" in read(ISHNE, bytes(data)).extra["notice"]
    (part,) = ISHNE.parts(hold_files({"x": bytes(data)}), "x", ReadOptions())
    assert (part.seconds, part.patient) == (7.5, "H-1")


@pytest.mark.parametrize("kind", ["HL7 aECG", "GE MUSE", "Philips Sierra"])
def test_entities_are_refused(kind: str) -> None:
    bomb = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
    head, _, rest = SAMPLES[kind].partition(b"?>")
    rest = rest.replace(b'<!DOCTYPE RestingECG SYSTEM "restecg.dtd">', b"")
    data = head + b"?>" + bomb + rest
    with pytest.raises(UnusableError, match=r"(?i)entity|entities"):
        read(FORMATS[kind], data)


@pytest.mark.parametrize(
    ("how", "notice"),
    [
        ({"packed": True}, ""),
        ({"first": 0}, ""),  # as counted by makers that begin with 0
        ({"stated": 37_855}, "states 37,855 samples of a lead; section 6 holds 1,500"),  # Contec's
    ],
)
def test_scp_records_are_read_as_makers_write_them(how: dict[str, Any], notice: str) -> None:
    recording = read(SCP, files.scp(STEPS, LEADS, nanovolts=2500, **how))
    np.testing.assert_array_equal(recording.digital, STEPS)
    assert notice in recording.extra.get("notice", "") and recording.patient == "C-9"


def test_an_scp_file_that_is_not_the_standards_is_refused_with_the_section_that_is_missing() -> (
    None
):
    handheld = bytes.fromhex("309d0000f07240fd00004c0000000d0d0000000000000000") + bytes(32_744)
    with pytest.raises(UnusableError, match=r"x has no section 0.*handheld recorders"):
        read(SCP, handheld)
    data = bytearray(SAMPLES["SCP-ECG"])
    data[54:58] = bytes(4)  # the length of section 3 in the table
    with pytest.raises(UnusableError, match=r"Section 3 \(lead definition\) is missing"):
        read(SCP, bytes(data))


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [one for one in sys.modules if one.startswith("ecgdatakit")]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def absent(name: str, *given: Any, **more: Any) -> Any:
        if name.startswith("ecgdatakit"):
            raise ImportError(name)
        return real(name, *given, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.setitem(sys.modules, "ecgdatakit", None)
    with pytest.raises(SettingError, match=r"pip install '\.\[formats\]'"):
        read(MUSE, SAMPLES["GE MUSE"])
    assert read(ISHNE, SAMPLES["ISHNE"]).leads == LEADS


@pytest.mark.parametrize("name", SAMPLES)
def test_every_cut_of_a_file_is_an_error_or_a_shorter_recording(name: str) -> None:
    data = SAMPLES[name]
    for cut in range(0, len(data), len(data) // 30):
        try:
            recording = read(FORMATS[name], data[:cut])
        except UnusableError as error:
            assert "\n" not in str(error)
        else:
            assert name in ("ISHNE", "MFER") and recording.samples < STEPS.shape[1]
