"""Cells of tables as people fill them in."""

from __future__ import annotations

import time

import pytest

from clocs.datasets.table_files import (
    age_of,
    are_yes_or_no,
    dates_of,
    numbers_of,
    split_labels,
)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("AF", ("AF",)),
        (" AF ; PVC ;AF", ("AF", "PVC")),
        ("AF|PVC", ("AF", "PVC")),
        ("AF,PVC", ("AF", "PVC")),
        ("Sinus rhythm, normal", ("Sinus rhythm, normal",)),
        ('["AF", "PVC"]', ("AF", "PVC")),
        ("['AF', 'PVC']", ("AF", "PVC")),
        ("['AF' 'PVC']", ("AF", "PVC")),
        ("('AF',)", ("AF",)),
        ("{'NORM': 100.0, 'SR': 0.0}", ("NORM", "SR")),
        ("[164889003, 59118001]", ("164889003", "59118001")),
        ("[]", ()),
        ("", ()),
        ("NaN", ()),
        ("unknown", ()),
        ("[broken", ("[broken",)),
        ("__import__('os').system('true')", ("__import__('os').system('true')",)),
        ("[" * 5000, ("[" * 5000,)),
    ],
)
def test_a_cell_holds_one_label_or_several(text: str, labels: tuple[str, ...]) -> None:
    assert split_labels(text) == labels


def test_yes_and_no_are_told_from_names() -> None:
    assert are_yes_or_no(["1", "0", "", "1.0", "TRUE", "no"])
    assert not are_yes_or_no(["", "NaN"])
    assert not are_yes_or_no(["1", "2"])


@pytest.mark.parametrize(
    ("text", "age"),
    [("62", 62.0), ("062Y", 62.0), ("62.5 years", 62.5), ("300", None), ("-1", None), ("x", None)],
)
def test_ages_are_years_where_they_are_plausible(text: str, age: float | None) -> None:
    assert age_of(text) == age


@pytest.mark.parametrize(
    ("column", "dates"),
    [
        (["2020-03-04", "2020-03-04 10:11:12"], ["2020-03-04", "2020-03-04T10:11:12"]),
        (["20200304"], ["2020-03-04"]),
        (["04.03.2020", "4.3.2020 9:30"], ["2020-03-04", "2020-03-04T09:30:00"]),
        (["03/04/2020", "13/04/2020"], ["2020-04-03", "2020-04-13"]),
        (["03/04/2020", "03/14/2020"], ["2020-03-04", "2020-03-14"]),
        (["03/04/2020"], [None]),
        (["2020-13-45", "soon", ""], [None, None, None]),
        (["2020-03-04T10:11:12.5+02:00"], ["2020-03-04T10:11:12"]),
    ],
)  # fmt: skip
def test_dates_are_understood_by_the_column_or_not_at_all(
    column: list[str], dates: list[str | None]
) -> None:
    assert dates_of(column) == dates


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["51,8", "40"], [51.8, 40.0]),
        (["1.234,5", "7"], [1234.5, 7.0]),
        (["1,234.5", "1,234"], [1234.5, 1234.0]),
        (["1,234"], [None]),
        (["1.234"], [1.234]),
        (["0,123", "1,234", "5,5"], [0.123, 1.234, 5.5]),
        (["51.8", "40,2", "n/k", ""], [51.8, None, None, None]),
        (["164889003,426783006"], [None]),
        (["9" * 1000, "1e999", "-3,5"], [None, None, -3.5]),
    ],
)
def test_numbers_are_read_with_either_decimal_mark(
    cells: list[str], numbers: list[float | None]
) -> None:
    assert numbers_of(cells) == numbers


def test_an_age_of_many_zeros_is_none_at_once() -> None:
    started = time.process_time()
    assert age_of("0" * 100_000 + "x") is None
    assert time.process_time() - started < 1
    assert age_of("62,5") == 62.5
