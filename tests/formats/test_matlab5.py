"""MATLAB's versions 5 to 7: every kind of variable, and files that would end SciPy's process."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import scipy.io

from clocs.errors import ClocsError
from clocs.formats.base import ReadOptions
from clocs.formats.hdf5 import MATLAB, _open_matlab
from clocs.formats.source import hold_files

KINDS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")


def saved(**values: Any) -> dict[bool, bytes]:
    """A file of these variables, plain and compressed."""
    made = {}
    for compressed in (False, True):
        held: Any = io.BytesIO()
        scipy.io.savemat(held, values, do_compression=compressed)
        made[compressed] = held.getvalue()
    return made


def arrays(data: bytes) -> Mapping[str, Any]:
    return _open_matlab(hold_files({"x.mat": data}), "x.mat", ReadOptions()).arrays


@pytest.mark.parametrize("compressed", [False, True])
def test_every_kind_of_variable_becomes_arrays_by_path(compressed: bool) -> None:
    rng = np.random.default_rng(0)
    cells = np.empty((1, 3), dtype=object)
    cells[0, :] = ["a", np.eye(2), np.arange(3.0)]
    leads = np.array(["I", "lead II", ""], dtype=object)
    records = np.zeros((1, 2), dtype=[("age", object), ("data", object)])
    solid = rng.random((2, 3, 4))
    for i in range(2):
        records[0, i] = (40 + i, solid[i])
    values: dict[str, Any] = {kind: rng.integers(0, 99, (3, 5)).astype(kind) for kind in KINDS}
    values |= {"text": "patient 7", "solid": solid, "cells": cells, "records": records}
    values |= {"leads": leads, "info": {"fs": 250.0}}
    found = arrays(saved(**values)[compressed])
    for kind in KINDS:
        assert found[kind].dtype == kind
        np.testing.assert_array_equal(found[kind], values[kind])
    np.testing.assert_array_equal(found["solid"], solid)
    np.testing.assert_array_equal(found["records/1/data"], solid[1])
    assert found["records/0/age"].item() == 40
    np.testing.assert_array_equal(found["cells/1"], np.eye(2))
    assert found["cells/0"].tolist() == ["a"]
    assert found["leads"].tolist() == ["I", "lead II", ""]
    assert found["text"].tolist() == ["patient 7"]
    assert found["info/fs"].tolist() == [250.0]


@pytest.mark.parametrize("kind", [0, 8, 10, 11, 19, 99, 0xFFFF])
def test_an_unknown_type_of_element_is_refused_where_scipy_ends_the_process(kind: int) -> None:
    data = bytearray(saved(val=np.arange(100.0))[False])
    place = data.index(np.arange(3.0).tobytes()) - 8
    data[place : place + 4] = kind.to_bytes(4, "little")
    with pytest.raises(ClocsError):
        arrays(bytes(data))


def test_every_cut_and_flipped_byte_is_an_error_of_one_sentence_or_read() -> None:
    whole = saved(val=np.arange(30.0), info={"fs": 250.0, "leads": np.array(["I", "II"], object)})
    data = whole[False]
    for place in range(128, len(data)):
        for damaged in (data[:place], data[:place] + b"\xff" + data[place + 1 :]):
            try:
                MATLAB.read(hold_files({"x.mat": damaged}), "x.mat", ReadOptions(rate=250.0))
            except ClocsError as error:
                assert "\n" not in str(error)


def test_structs_without_end_are_refused() -> None:
    inner: Any = 1.0
    for _ in range(50):
        inner = {"a": inner}
    with pytest.raises(ClocsError, match="without end"):
        arrays(saved(a=inner)[False])


def test_a_file_with_a_damaged_first_line_is_not_given_to_scipy() -> None:
    data = saved(val=np.arange(100.0))[False].replace(b"MAT-file", b"EAT-file", 1)
    place = data.index(np.arange(3.0).tobytes()) - 8
    data = data[:place] + b"\x63\0\0\0" + data[place + 4 :]  # SciPy ends the process
    with pytest.raises(ClocsError):
        MATLAB.read(hold_files({"r.mat": data}), "r.mat", ReadOptions(rate=250.0))
