"""The reader of MATLAB's versions 5 to 7 against SciPy's, and on files that end SciPy's process."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import scipy.io

from clocs.errors import ClocsError
from clocs.formats.matlab5 import Cell, Struct, read_matlab5

KINDS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")


def saved(**values: Any) -> dict[bool, bytes]:
    """A file of these variables, plain and compressed."""
    made = {}
    for compressed in (False, True):
        held: Any = io.BytesIO()
        scipy.io.savemat(held, values, do_compression=compressed)
        made[compressed] = held.getvalue()
    return made


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, Struct):
        assert len(ours.records) == theirs.size
        for mine, record in zip(ours.records, theirs.ravel(), strict=True):
            assert list(mine) == list(theirs.dtype.names)
            for name, value in mine.items():
                assert_same(value, record[name])
    elif isinstance(ours, Cell):
        for mine, one in zip(ours.items, theirs.ravel(), strict=True):
            assert_same(mine, one)
    else:
        assert ours.dtype.kind == theirs.dtype.kind
        assert np.array_equal(ours.ravel(), theirs.ravel())
        assert ours.dtype.kind == "U" or ours.shape == theirs.shape


@pytest.mark.parametrize("compressed", [False, True])
def test_every_kind_of_variable_equals_scipys(compressed: bool) -> None:
    rng = np.random.default_rng(0)
    cells = np.empty((2, 3), dtype=object)
    cells.ravel()[:] = ["a", "lead II", np.eye(2), "", np.arange(3.0), "µV"]
    records = np.zeros((1, 2), dtype=[("age", object), ("data", object)])
    for i in range(2):
        records[0, i] = (40 + i, rng.normal(size=(3, 4)))
    values: dict[str, Any] = {kind: rng.integers(0, 99, (3, 5)).astype(kind) for kind in KINDS}
    values |= {
        "flag": np.array([[True, False]]),
        "text": "patient 7",
        "solid": rng.random((2, 3, 4)),
    }
    values |= {"cells": cells, "records": records, "none": np.zeros((0, 0)), "lines": ["ab", "cd"]}
    data = saved(**values)[compressed]
    held: Any = io.BytesIO(data)
    ours, theirs = read_matlab5(data, "x"), scipy.io.loadmat(held)
    assert set(ours) == set(values)
    for name, value in ours.items():
        assert_same(value, theirs[name])


@pytest.mark.parametrize("kind", [0, 8, 10, 11, 19, 99, 0xFFFF])
def test_an_unknown_type_of_element_is_refused_where_scipy_ends_the_process(kind: int) -> None:
    data = bytearray(saved(val=np.arange(100.0))[False])
    place = data.index(np.arange(3.0).tobytes()) - 8
    data[place : place + 4] = kind.to_bytes(4, "little")
    with pytest.raises(ClocsError):
        read_matlab5(bytes(data), "x")


def test_every_cut_and_flipped_byte_is_an_error_of_one_sentence_or_read() -> None:
    whole = saved(val=np.arange(30.0), info={"fs": 250.0, "leads": np.array(["I", "II"], object)})
    data = whole[False]
    for place in range(128, len(data)):
        for damaged in (data[:place], data[:place] + b"\xff" + data[place + 1 :]):
            try:
                read_matlab5(damaged, "x")
            except ClocsError as error:
                assert "\n" not in str(error)


def test_structs_without_end_are_refused() -> None:
    inner: Any = 1.0
    for _ in range(50):
        inner = {"a": inner}
    with pytest.raises(ClocsError, match="without end"):
        read_matlab5(saved(a=inner)[False], "x")


def test_a_file_with_a_damaged_first_line_is_not_given_to_scipy() -> None:
    from clocs.formats.base import ReadOptions
    from clocs.formats.matlab import MATLAB
    from clocs.formats.source import hold_files

    data = saved(val=np.arange(100.0))[False].replace(b"MAT-file", b"EAT-file", 1)
    place = data.index(np.arange(3.0).tobytes()) - 8
    data = data[:place] + b"\x63\0\0\0" + data[place + 4 :]  # SciPy ends the process
    with pytest.raises(ClocsError):
        MATLAB.read(hold_files({"r.mat": data}), "r.mat", ReadOptions(rate=250.0))
