"""WFDB headers are parsed as wfdb parses them."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.errors import UnusableError
from clocs.formats.read import read
from clocs.formats.wfdb_header import parse_header

HEADERS = [
    "A00001 1 300 9000 05:05:15 1/05/2000 \nA00001.mat 16+24 1000/mV 16 0 -127 0 0 ECG \n",
    "A0001 1 500 7500 12-May-2020 12:33:59\nA0001.mat 16+24 1000/mV 16 0 28 -1716 0 aVR\n#Age: 7\n",
    "r 1 500/250.5(3) 10\nr.dat 16 200(-5)/mV 12 7 0 0 0 II with words\n",
    "r 1 500\nr.dat 16 1000.0(0)/uV 16 0 0 0 0 V1",
    "r 1\nr.dat 16",
    "# first\n\nr 1 360.00000000001 5\nr.dat 212 0 12 1024 995 -22131 0 MLII\n#last: 1\n",
    "r 1 250 5\nr.dat 16x2:3+4 1e3/nV 12\n",
    "r 2 500 5\nr.dat 16\nr.dat 16 5 5 5 V1\n",
    "r 2 500 5\nr.dat 16  1000 16 0 5 6 I\nr.dat 16  1000 16 3 5 6 II\n",
    "r 2 500 5\nr.dat 16 200 (0)/mV 12 0 0 0 I\nr.dat 16 200 (0)/mV 12 0 0 0 II\n",
    "r 6 500 5\n"
    "r.mat 16+24 1000/mV 16 0 28 -1716 0 I\nr.mat 16+24 1000/mV 16 0 7 2029 0 II\n"
    "r.mat 16+24 1000/mV 16 0 -7 2029 x III\nr.mat 16+24 1000/mV 16 0 7 2029 0 a b \n"
    "r.mat 16+24 1000/mV 16 3 7 2029 0 V1\nr.mat 16+24 1000/mV 16 3 7 2029 V2\n",
]


def assert_header_equals_wfdb(folder: Path, text: str) -> None:
    (folder / "r.hea").write_text(text)
    theirs = wfdb.rdheader(str(folder / "r"))
    ours = parse_header(text.encode(), name="r.hea")
    assert (ours.rate, ours.samples) == (theirs.fs, theirs.sig_len)
    assert list(ours.comments) == theirs.comments
    for i, signal in enumerate(ours.signals):
        assert signal.file == theirs.file_name[i]
        assert signal.format == theirs.fmt[i]
        assert signal.samples_per_frame == theirs.samps_per_frame[i]
        assert signal.skew == (theirs.skew[i] or 0)
        assert signal.offset == (theirs.byte_offset[i] or 0)
        assert signal.gain == theirs.adc_gain[i]
        assert signal.baseline == theirs.baseline[i]
        assert signal.unit == theirs.units[i]
        assert signal.name == (theirs.sig_name[i] or "")


@pytest.mark.parametrize("text", HEADERS)
def test_headers_of_the_wild_are_parsed_as_wfdb_parses_them(tmp_path: Path, text: str) -> None:
    assert_header_equals_wfdb(tmp_path, text)


NAMES = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=8)


GAINS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.floats(0.001, 1e5).map(lambda g: f"{g:.4f}"),
    st.sampled_from(["1e3", "2.5e-2", "-200"]),
)


@st.composite
def signal_lines(draw: st.DrawFn) -> str:
    """A signal line that breaks off anywhere the format allows."""
    form = draw(st.sampled_from(["16", "212", "516", "16+24", "16x2", "80:3", "16x2:1+8"]))
    gain = draw(GAINS) + draw(st.sampled_from(["", "(0)", "(-37)"]))
    gain += draw(st.sampled_from(["", "/mV", "/uV", "/mmHg", "/V"]))
    numbers = [str(draw(st.integers(low, 99))) for low in (0, -99, -99, -99, 0)]
    name = draw(st.sampled_from(["II", "aVR", "lead of words", "V1 "]))
    fields = [f"{draw(NAMES)}.dat", form, gain, *numbers, name]
    return draw(st.sampled_from([" ", "\t", "  "])).join(fields[: draw(st.integers(2, 9))])


@settings(max_examples=100, deadline=None)
@given(
    name=NAMES,
    rate=st.sampled_from(["", " 500", " 257.5", " 360/360(10)", " 100.0/4"]),
    samples=st.sampled_from(["", " 5000"]),
    lines=st.lists(signal_lines(), min_size=1, max_size=3).map(lambda lines: lines + lines[-1:]),
    comments=st.lists(st.sampled_from(["# Age: 5", "#", "#Dx: 1,2"]), max_size=2),
)
def test_generated_headers_are_parsed_as_wfdb_parses_them(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    rate: str,
    samples: str,
    lines: list[str],
    comments: list[str],
) -> None:
    first = f"{name} {len(lines)}{rate}{samples if rate else ''}"
    text = "\n".join([first, *lines, *comments])
    assert_header_equals_wfdb(tmp_path_factory.getbasetemp(), text)


@pytest.mark.parametrize(
    "text",
    ["", "#only a comment", "r", "r 2 500 5\nr.dat 16\n", "r 1 0 5\nr.dat 16", "r 0 500 5\n",
     "r 1 . 5\nr.dat 16", "r 1 500 5\nr.dat 16 -\n", "\0\0\0", "r 1 500 5\n../etc/x 16\n",
     f"r 1 500 {'9' * 400}\nr.dat 516", f"r 1 500 5\nr.dat 16+{'9' * 400}"],
)  # fmt: skip
def test_a_damaged_header_is_unreadable_in_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.hea").write_text(text)
    with pytest.raises(UnusableError, match=r"unreadable: .*r\.hea") as caught:
        read(tmp_path / "r.hea")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        ("", None),
        (" 11:39:16 05/02/2020", "2020-02-05T11:39:16"),
        (" 05-Feb-2020 11:39:16", "2020-02-05T11:39:16"),
        (" 11:39 05/02/2020", "2020-02-05T11:39:00"),
        (" 31/01/1999", "1999-01-31"),
        (" 11:39:16", None),
        (" 31/02/2020", None),
    ],
)
def test_a_header_says_when_recording_began(words: str, taken: str | None) -> None:
    text = f"r 1 500 5000{words}\nr.dat 16 200/mV 16 0 0 0 0 II\n"
    assert parse_header(text.encode(), name="r.hea").recorded_at == taken
