"""Lead names as people write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocs.errors import SettingError, UnusableError
from clocs.formats.base import name_leads
from clocs.recording import STANDARD_LEADS, Recording, canonical_lead, is_modified_lead

SPELLINGS = {
    "I": ["I", "i", " I ", "Lead I", "lead_i", "DI", "D1", "\u2160", "\u0399", "I-ref", "ECG I"],
    "II": [
        *("II", "ii", "Lead II", "LEAD II", "Lead_II", "LeadII", "ECG_II", "ECG II", "EKG-II"),
        *("ecg.ii", "MDC_ECG_LEAD_II", "MLII", "mlii", "ECG MLII", "DII", "D2", "d2", "II+"),
        *("\u2161", "\u2171", "\u0399\u0399", "\u0406\u0406", "\uff29\uff29", "ECG Lead II"),
    ],
    "III": [
        *("III", "D3", "DIII", "\u2162", "Lead III", "MLIII", "Ableitung III", "Abl. III"),
        *("D\u00e9rivation III", "Derivac\u0327a\u0303o III"),
    ],
    "aVR": ["aVR", "AVR", "avr", "aVr", "aVR+", "MDC_ECG_LEAD_AVR", "Lead aVR", "a\u03bdR", "aV R"],
    "aVF": ["Lead_aVF", "\u03b1VF", "AVF-REF", "ECG aVF"],
    "V1": ["V1", "v1", "V1 ", "V 1", "V_1", "ECG V1", "V1+", "Lead V1"],
    "V5": ["V5-ref", "V5 ref", "V5_REF", "ecg_v5"],
    "V4R": ["V4R", "v4r", "Lead V4R"],
}
UNKNOWN = [
    *("EKG1", "ECG1", "ECG 2", "ECG", "Lead 1", "Lead", "-aVR", "Lead -aVR", "\u2212aVR", "aVR-"),
    *("I-II", "II-", "C1", "X", "CM5", "V", "V0", "V10", "VR", "Resp", "ABP", "1", "2", "", "IV"),
    *("I" * 100, "II (inverted)", "no lead II", "D4", "MLIV", "ref", "-ref"),
]


@pytest.mark.parametrize(
    ("written", "lead"), [(text, lead) for lead, texts in SPELLINGS.items() for text in texts]
)
def test_a_lead_has_one_name_however_it_is_written(written: str, lead: str) -> None:
    assert canonical_lead(written) == lead


@pytest.mark.parametrize("written", UNKNOWN)
def test_a_name_that_is_no_lead_is_kept_and_an_inverted_lead_is_no_lead(written: str) -> None:
    assert canonical_lead(written) == written.strip()


@given(st.text(max_size=80))
def test_the_name_of_a_name_is_itself(text: str) -> None:
    lead = canonical_lead(text)
    assert canonical_lead(lead) == lead


def test_only_ambulatory_limb_leads_are_modified() -> None:
    assert [is_modified_lead(name) for name in ("MLII", "ECG mli", "II", "D2")] == [1, 1, 0, 0]


TWELVE_IN_GERMAN = [
    *(f"Ableitung {lead}" for lead in ("I", "II", "III", "aVR", "aVL", "aVF")),
    *(f"Ableitung C{number}" for number in range(1, 7)),
]


@pytest.mark.parametrize(
    ("written", "leads"),
    [
        (TWELVE_IN_GERMAN, STANDARD_LEADS),
        (["I", "II", "C1", "c 2", "C3"], ("I", "II", "V1", "V2", "V3")),
        (["Lead 1", "Lead 2", "Lead 3"], ("I", "II", "III")),
        (["ECG Lead1", "Ableitung 2", "C1"], ("I", "II", "V1")),
        (["D\u00e9rivation I", "Derivation II", "Deriva\u00e7\u00e3o III"], ("I", "II", "III")),
        (["ECG II", "C3", "C4"], ("II", "C3", "C4")),  # an EEG beside the ECG
        (["C1", "C2"], ("C1", "C2")),
        (["Lead 1", "Lead 2", "Lead 4"], ("Lead 1", "Lead 2", "Lead 4")),  # channels, counted
        (["I", "Lead 1"], ("I", "Lead 1")),
    ],
)
def test_leads_counted_or_named_by_electrode_are_told_by_the_names_beside_them(
    written: list[str], leads: tuple[str, ...]
) -> None:
    assert name_leads(written, {}, name="r")[0] == tuple(leads)


def test_a_modified_lead_keeps_its_name_in_what_the_recording_says() -> None:
    assert name_leads(["MLII", "V1"], {}, name="r") == (("II", "V1"), {"leads": "II is MLII"})
    assert name_leads(["MLII", "Lead II"], {}, name="r") == (("MLII", "II"), {})
    assert name_leads(["MLII"], {"MLII": "II"}, name="r") == (("II",), {})


def test_what_the_user_says_about_names_comes_first() -> None:
    leads, _ = name_leads(["ekg1", "V1", "c"], {"EKG1": "lead ii", "V1": "V2"}, name="r")
    assert leads == ("II", "V2", "c")


def test_every_lead_gets_a_name_of_its_own() -> None:
    leads, _ = name_leads(["ECG", "ECG", "", " ", "ECG 2"], {}, name="r")
    assert leads == ("ECG", "ECG 2", "signal 2", "signal 3", "ECG 2 2")


def test_two_leads_of_one_standard_name_are_refused() -> None:
    with pytest.raises(UnusableError, match="r has several leads of one name: 'II', 'Lead II'"):
        name_leads(["II", "Lead II"], {}, name="r")


def test_a_missing_lead_may_have_another_name() -> None:
    digital, zero = np.zeros((2, 9), np.int16), np.zeros(2, np.int32)
    one = Recording("r", "r", ("ECG1", "V1"), 250.0, digital, np.ones(2), zero)
    with pytest.raises(SettingError, match="if 'ECG1' is one of them, say so with `lead_names`"):
        one.select(["II"])
