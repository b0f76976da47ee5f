"""Annotations of WFDB records are those that wfdb reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wfdb
from hypothesis import given, settings
from hypothesis import strategies as st

from clocs.errors import ClocsError, UnusableError
from clocs.formats.source import hold_files, open_files
from clocs.formats.wfdb import BEATS, Annotations, read_annotations
from clocs.recording import Episode

HEADER = b"r 1 360 650000\nr.dat 212 200 11 1024 995 -22131 0 MLII\n"
TABLE = wfdb.io.annotation.ann_label_table
SYMBOLS = [s for s in TABLE["symbol"] if s != " "]


def annotate(folder: Path, samples: list[int], symbols: list[str], **fields: Any) -> Annotations:
    (folder / "r.hea").write_bytes(HEADER)
    wfdb.wrann("r", "atr", np.array(samples), symbols, write_dir=str(folder), **fields)
    return read_annotations(open_files(folder), "r.hea", "atr")


def decoded(data: bytes) -> Annotations:
    return read_annotations(hold_files({"r.hea": HEADER, "r.atr": data}), "r.hea", "atr")


def test_rhythms_last_until_the_next_change_or_the_end(tmp_path: Path) -> None:
    found = annotate(
        tmp_path,
        [18, 77, 370, 5000, 100_000, 640_000],
        ["+", "N", "A", "+", "V", "+"],
        aux_note=["(N\0", "", "", "(AFIB\0", "", "(VT"],
    )
    assert found.rhythms == (
        Episode(18, 5000, "N"),
        Episode(5000, 640_000, "AFIB"),
        Episode(640_000, 650_000, "VT"),
    )
    assert found.beats == ((77, "N"), (370, "A"), (100_000, "V"))


def test_other_texts_in_brackets_are_no_rhythms(tmp_path: Path) -> None:
    found = annotate(tmp_path, [5, 9, 12], ["s", "+", '"'], aux_note=["(ST0+", "", "(note"])
    assert found.rhythms == ()
    assert [note.text for note in found.notes] == ["(ST0+", "", "(note"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3_000_000),
            st.sampled_from(SYMBOLS),
            # wfdb takes texts that begin with ## for definitions of its own and drops them
            st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40).filter(
                lambda text: not text.startswith("##")
            ),
            st.integers(-9, 9),
            st.integers(0, 3),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_what_wfdb_writes_is_read_as_wfdb_reads_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str, str, int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("ann")
    rows = sorted(rows, key=lambda row: row[0])
    samples, symbols, texts, subtypes, channels, numbers = map(list, zip(*rows, strict=True))
    ours = annotate(
        folder,
        samples,
        symbols,
        aux_note=texts,
        subtype=np.array(subtypes),
        chan=np.array(channels),
        num=np.array(numbers),
    )
    theirs = wfdb.rdann(str(folder / "r"), "atr")
    assert [note.sample for note in ours.notes] == theirs.sample.tolist()
    assert [note.symbol for note in ours.notes] == theirs.symbol
    assert [note.text for note in ours.notes] == [text.rstrip("\0") for text in theirs.aux_note]


def test_the_symbols_of_beats_are_those_of_wfdb() -> None:
    known = wfdb.io.annotation.is_qrs
    wanted = {
        s for s, code in zip(TABLE["symbol"], TABLE["label_store"], strict=True) if known[code]
    }
    assert wanted == BEATS


def test_annotations_on_a_clock_of_their_own_are_moved_to_that_of_the_signals(
    tmp_path: Path,
) -> None:
    found = annotate(tmp_path, [100, 200], ["N", "V"], fs=720)
    assert found.beats == ((50, "N"), (100, "V"))


def test_symbols_that_a_file_defines_are_used(tmp_path: Path) -> None:
    import pandas as pd

    labels = pd.DataFrame(
        [[42, "y", "own"], [43, "z", "other"]], columns=["label_store", "symbol", "description"]
    )
    found = annotate(tmp_path, [100, 200, 300], ["y", "N", "z"], custom_labels=labels)
    assert [note.symbol for note in found.notes] == ["y", "N", "z"]


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\0\0" * 200])
def test_files_without_annotations_are_empty(data: bytes) -> None:
    assert decoded(data).notes == ()


def test_a_leap_in_time_may_be_negative_and_an_end_may_be_missing() -> None:
    skip = (59 << 10).to_bytes(2, "little")
    beat = (1 << 10 | 7).to_bytes(2, "little")
    far = (100_000).to_bytes(4, "little")
    back = (2**32 - 50_000).to_bytes(4, "little")
    data = skip + far[2:] + far[:2] + beat + skip + back[2:] + back[:2] + beat
    assert decoded(data).beats == ((50_014, "N"), (100_007, "N"))


def test_beats_behind_the_end_are_none() -> None:
    skip, far = (59 << 10).to_bytes(2, "little"), (650_000).to_bytes(4, "little")
    beat = (1 << 10).to_bytes(2, "little")
    found = decoded(skip + far[2:] + far[:2] + beat)
    assert len(found.notes) == 1
    assert found.beats == ()


def test_a_record_without_the_file_has_no_label() -> None:
    with pytest.raises(
        UnusableError, match=r"no label: r\.hea has no annotations r\.atr beside it"
    ):
        read_annotations(hold_files({"r.hea": HEADER}), "r.hea", "atr")


@given(st.binary(max_size=200))
def test_any_bytes_are_annotations_or_an_error(data: bytes) -> None:
    try:
        found = decoded(data)
    except ClocsError:
        return
    assert all(0 <= one.start < one.stop <= 650_000 for one in found.rhythms)
