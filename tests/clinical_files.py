"""Writes ECGs in the formats of electrocardiographs, by the layouts that are published."""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clocs.recording import STANDARD_LEADS

Steps = NDArray[np.int16]  # (leads, samples)

ISHNE_CODES = {"I": 5, "II": 6, "III": 7, "V1": 11, "V5": 15}
SCP_CODES = {"I": 1, "II": 2, "V1": 3, "V5": 7, "III": 61}


def ishne(
    steps: Steps, leads: Sequence[str], *, nanovolts: int, rate: int = 200, variable: bytes = b""
) -> bytes:
    """A Holter recording of patient H-1, born on 2 March 1950, taken on 5 April 2020 at 6:07:08."""
    head = bytearray(512)

    def put(at: int, form: str, *values: object) -> None:
        struct.pack_into("<" + form, head, at - 10, *values)

    put(10, "iiii", len(variable), steps.shape[1], 522, 522 + len(variable))
    put(26, "h", 1)
    put(28, "40s40s20s", b"Jane", b"Doe", b"H-1")
    put(128, "hh", 2, 1)
    put(132, "3h3h3h3h", 2, 3, 1950, 5, 4, 2020, 6, 4, 2020, 6, 7, 8)
    put(156, "h", len(leads))
    codes = [ISHNE_CODES[lead] for lead in leads]
    none = [-9] * (12 - len(leads))
    put(158, "12h", *codes, *none)
    put(182, "12h", *[1] * len(leads), *none)
    put(206, "12h", *[nanovolts] * len(leads), *none)
    put(232, "40s", b"digital")
    put(272, "h", rate)
    checksum = binascii.crc_hqx(bytes(head) + variable, 0xFFFF)
    numbers = np.ascontiguousarray(steps.T, "<i2").tobytes()
    return b"ISHNE1.0" + struct.pack("<H", checksum) + bytes(head) + variable + numbers


def aecg(steps: Steps, leads: Sequence[str], *, microvolts: float, increment: str = "0.002") -> str:
    """An annotated ECG of subject S-7, a woman, taken on 22 May 2002; step 10 is 0 µV."""
    sequences = "".join(
        f"""<component><sequence>
        <code code="MDC_ECG_LEAD_{lead.upper()}" codeSystem="2.16.840.1.113883.6.24"/>
        <value xsi:type="SLIST_PQ"><origin value="{-10 * microvolts}" unit="uV"/>
        <scale value="{microvolts}" unit="uV"/><digits>{" ".join(map(str, row))}</digits></value>
        </sequence></component>"""
        for lead, row in zip(leads, steps.tolist(), strict=True)
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
    <AnnotatedECG xmlns="urn:hl7-org:v3" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
    <id root="1.2.3"/><code code="93000" codeSystem="2.16.840.1.113883.6.12"/>
    <effectiveTime><low value="20020522143301"/><high value="20020522143311"/></effectiveTime>
    <componentOf><timepointEvent><componentOf><subjectAssignment><subject><trialSubject>
    <id root="1.2.3.4" extension="S-7"/><subjectDemographicPerson>
    <administrativeGenderCode code="F" codeSystem="2.16.840.1.113883.5.1"/>
    <birthTime value="19530508"/></subjectDemographicPerson></trialSubject></subject>
    </subjectAssignment></componentOf></timepointEvent></componentOf>
    <component><series><id root="1.2.3.5"/>
    <code code="RHYTHM" codeSystem="2.16.840.1.113883.5.4"/>
    <effectiveTime><low value="20020522143301"/><high value="20020522143311"/></effectiveTime>
    <component><sequenceSet>
    <component><sequence><code code="TIME_ABSOLUTE" codeSystem="2.16.840.1.113883.5.4"/>
    <value xsi:type="GLIST_TS"><head value="20020522143301"/>
    <increment value="{increment}" unit="s"/></value></sequence></component>
    {sequences}</sequenceSet></component></series></component></AnnotatedECG>"""


def muse(steps: Steps, leads: Sequence[str], *, microvolts: float, rate: int = 500) -> str:
    """A resting ECG of patient M-3, a man of 61, taken on 14 July 2021 at 10:11:12."""
    data = "".join(
        f"""<LeadData><LeadByteCountTotal>{2 * len(row)}</LeadByteCountTotal>
        <LeadSampleCountTotal>{len(row)}</LeadSampleCountTotal>
        <LeadAmplitudeUnitsPerBit>{microvolts}</LeadAmplitudeUnitsPerBit>
        <LeadAmplitudeUnits>MICROVOLTS</LeadAmplitudeUnits><LeadSampleSize>2</LeadSampleSize>
        <LeadID>{lead}</LeadID><LeadDataCRC32>{zlib.crc32(row.tobytes())}</LeadDataCRC32>
        <WaveFormData>{base64.b64encode(row.tobytes()).decode()}</WaveFormData></LeadData>"""
        for lead, row in zip(leads, np.ascontiguousarray(steps, "<i2"), strict=True)
    )
    return f"""<?xml version="1.0" encoding="ISO-8859-1"?><!DOCTYPE RestingECG SYSTEM "restecg.dtd">
    <RestingECG><MuseInfo><MuseVersion>9.0</MuseVersion></MuseInfo>
    <PatientDemographics><PatientID>M-3</PatientID><PatientAge>61</PatientAge>
    <AgeUnits>YEARS</AgeUnits><Gender>MALE</Gender></PatientDemographics>
    <TestDemographics><AcquisitionTime>10:11:12</AcquisitionTime>
    <AcquisitionDate>07-14-2021</AcquisitionDate></TestDemographics>
    <Diagnosis><Modality>RESTING</Modality><DiagnosisStatement>
    <StmtText>Sinus rhythm</StmtText></DiagnosisStatement></Diagnosis>
    <Waveform><WaveformType>Rhythm</WaveformType><SampleBase>{rate}</SampleBase>
    <SampleExponent>0</SampleExponent>{data}</Waveform></RestingECG>"""


def scp(
    steps: Steps,
    leads: Sequence[str],
    *,
    nanovolts: int,
    microseconds: int = 2000,
    first: int = 1,
    stated: int | None = None,
    packed: bool = False,
) -> bytes:
    """A record of patient C-9, a woman, taken on 3 February 2019.

    Section 3 counts samples from `first` up to `stated`; `packed` stores second differences in
    the default Huffman code.
    """

    def section(number: int, body: bytes, reserved: bytes = bytes(6)) -> bytes:
        body += bytes(len(body) % 2)
        rest = struct.pack("<HIBB6s", number, 16 + len(body), 20, 20, reserved) + body
        return struct.pack("<H", binascii.crc_hqx(rest, 0xFFFF)) + rest

    tags = (
        (2, b"C-9\0"),
        (8, b"\2"),
        (25, struct.pack("<HBB", 2019, 2, 3)),
        (26, bytes((4, 5, 6))),
    )
    about = b"".join(struct.pack("<BH", tag, len(value)) + value for tag, value in tags)
    count, samples = steps.shape
    described = struct.pack("<BB", count, 4 | count << 3)
    for lead in leads:
        described += struct.pack("<IIB", first, stated or samples, SCP_CODES[lead])
    coded = [_huffman(row) if packed else row.astype("<i2").tobytes() for row in steps]
    rhythm = struct.pack("<HHBB", nanovolts, microseconds, 2 if packed else 0, 0)
    rhythm += struct.pack(f"<{count}H", *map(len, coded)) + b"".join(coded)
    sections = {
        1: section(1, about + b"\xff\0\0"),
        **({2: section(2, struct.pack("<H", 19999))} if packed else {}),
        3: section(3, described),
        6: section(6, rhythm),
    }
    at = 7 + 16 + 12 * 10
    pointers = struct.pack("<HII", 0, 16 + 120, 7)
    for number in range(1, 12):
        size = len(sections.get(number, b""))
        pointers += struct.pack("<HII", number, size, at if size else 0)
        at += size
    body = section(0, pointers, b"SCPECG") + b"".join(sections.values())
    whole = struct.pack("<I", 6 + len(body)) + body
    return struct.pack("<H", binascii.crc_hqx(whole, 0xFFFF)) + whole


def _huffman(row: NDArray[np.int16]) -> bytes:
    """Second differences in the standard's default code."""
    values = np.concatenate([row[:2], np.diff(row.astype(np.int64), 2)])
    bits = ""
    for value in values.tolist():
        if abs(value) <= 8:
            bits += "1" * abs(value) + "0" + ("" if value == 0 else "01"[value < 0])
        elif -128 <= value <= 127:
            bits += f"1111111110{value & 0xFF:08b}"
        else:
            bits += f"1111111111{value & 0xFFFF:016b}"
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8))


def mfer(steps: Steps, leads: Sequence[str], *, microvolts: int, rate: int = 500) -> bytes:
    """A recording of patient F-2 in blocks of one sample, little-endian."""

    def tag(number: int, value: bytes) -> bytes:
        if len(value) < 128:
            return bytes((number, len(value))) + value
        return bytes((number, 0x84)) + len(value).to_bytes(4, "big") + value

    count, samples = steps.shape
    numbers = {"I": 1, "II": 2, "V1": 3, "V5": 7, "III": 61}
    out = tag(0x40, b"MFR Standard 12 leads".ljust(32)) + tag(0x01, b"\1") + tag(0x08, b"\1")
    out += tag(0x82, b"F-2")
    out += tag(0x0B, struct.pack("<bbH", 0, 0, rate))  # Hz
    out += tag(0x0C, struct.pack("<bbH", 0, -6, microvolts))  # V
    out += tag(0x04, struct.pack("<I", 1)) + tag(0x05, struct.pack("<I", count))
    out += tag(0x06, struct.pack("<I", samples)) + tag(0x0A, b"\0")
    for channel, lead in enumerate(leads):
        name = tag(0x09, struct.pack("<H", numbers[lead]))
        out += bytes((0x3F, channel, len(name))) + name
    return out + tag(0x1E, np.ascontiguousarray(steps.T, "<i2").tobytes()) + bytes((0x80, 0))


def sierra(steps: Steps, leads: Sequence[str], *, microvolts: float, rate: int = 500) -> str:
    """A resting ECG of patient P-4, without compression; step 10 is 0 µV."""
    data = base64.b64encode(np.ascontiguousarray(steps, "<i2").tobytes()).decode()
    return f"""<?xml version="1.0" encoding="UTF-8"?>
    <restingecgdata xmlns="http://www3.medical.philips.com"><documentinfo>
    <documenttype>PhilipsECG</documenttype><documentversion>1.04</documentversion></documentinfo>
    <dataacquisition date="2018-09-10" time="11:12:13"><signalcharacteristics>
    <samplingrate>{rate}</samplingrate><resolution>{microvolts}</resolution>
    <signaloffset>10</signaloffset><signalsigned>True</signalsigned>
    </signalcharacteristics></dataacquisition>
    <patient><generalpatientdata><patientid>P-4</patientid><sex>Female</sex>
    </generalpatientdata></patient>
    <waveforms><parsedwaveforms dataencoding="Base64" compression="Uncompressed"
    durationperchannel="{1000 * steps.shape[1] // rate}" samplespersecond="{rate}"
    leadlabels="{" ".join(leads)}" numberofleads="{len(leads)}">{data}</parsedwaveforms></waveforms>
    </restingecgdata>"""


def atc(steps: Steps, leads: Sequence[str], *, nanovolts: int = 500, rate: int = 300) -> bytes:
    """Of AliveCor's KardiaMobile, with a block that no reader knows."""
    texts = [(b"2016-06-01T18:15:25.777-04:00", 32), (b"cb7e7daa", 40), (b"", 44)]
    texts += [(b"Android 6.0.1", 32), (b"com.alivecor.aliveecg v4.1.1", 32)]
    texts += [(b"19kHz 200Hz/mV", 32), (b"SN=1", 52)]
    info = b"".join(text.ljust(size, b"\0") for text, size in texts)
    names = dict(
        zip(STANDARD_LEADS, [b"ecg ", *(b"ecg%c" % c for c in b"23456789abc")], strict=True)
    )
    blocks = [(b"info", info), (b"fmt ", struct.pack("<BHHBH", 1, rate, nanovolts, 0x2E, 0))]
    blocks.append((b"acc ", b"\1\2\3"))
    blocks += [
        (names[lead], row.astype("<i2").tobytes()) for lead, row in zip(leads, steps, strict=True)
    ]
    made = b"ALIVE\0\0\0" + struct.pack("<I", 3)
    for name, data in blocks:
        whole = name + struct.pack("<I", len(data)) + data
        made += whole + struct.pack("<I", sum(whole))
    return made


def kardia_json(steps: Steps, leads: Sequence[str], *, nanovolts: int = 500) -> str:
    """As the Kardia service gives it."""
    names = {"I": "leadI", "II": "leadII", "III": "leadIII"}
    samples = {names[lead]: row.tolist() for lead, row in zip(leads, steps, strict=True)}
    about = {"frequency": 300, "mainsFrequency": 50, "amplitudeResolution": nanovolts}
    facts = {
        "id": "epgstuys6lpj0dssj2tjyia1v",
        "patientID": "DwftkmZIYHm7ysxEMAhJcap1x38vz2un",
        "heartRate": 89,
        "recordedAt": "2021-04-16T15:19:09+05:30",
        "algorithmDetermination": "normal",
        "data": {"raw": about | {"numLeads": len(samples), "samples": samples}},
        "deviceInfo": {"hardwareType": "kardia_6l"},
    }
    return json.dumps(facts)
