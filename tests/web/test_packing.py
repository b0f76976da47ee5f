from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clocs.web.packing import pack, unpack

DTYPES = ("uint8", "int16", "uint16", "int32", "uint32", "float32", "float64")


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.sampled_from(DTYPES).flatmap(
            lambda name: hnp.arrays(name, hnp.array_shapes(max_dims=2, min_side=0, max_side=5))
        ),
        max_size=4,
    ),
    st.dictionaries(st.text(min_size=1).filter(lambda k: k != "arrays"), st.integers(), max_size=3),
)
def test_packed_facts_and_arrays_are_restored(
    arrays: dict[str, Any], facts: dict[str, Any]
) -> None:
    unpacked, found = unpack(pack(facts, arrays))
    assert unpacked == facts
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@given(st.binary(max_size=200))
def test_unpacking_arbitrary_bytes_raises_an_ordinary_error(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        unpack(data)
