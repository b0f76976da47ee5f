"""MATLAB files, written by SciPy (4 to 7) and h5py (7.3): matrices, structs, cells."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.io import savemat

from clocs.errors import UnusableError
from clocs.formats.base import Part, ReadOptions
from clocs.formats.hdf5 import MATLAB
from clocs.formats.read import find_recordings, read_several
from clocs.formats.source import hold_files, open_source
from clocs.recording import STANDARD_LEADS, Recording
from wfdb_files import signals, write_mat

RATE = 500.0
ECG = np.random.default_rng(4).normal(0, 0.3, (12, 3000))  # mV


def saved(variables: dict[str, Any], **how: Any) -> bytes:
    file: Any = io.BytesIO()
    savemat(file, variables, **how)
    return bytes(file.getvalue())


def read(data: bytes, **options: Any) -> Recording:
    options = {"rate": RATE} | options
    return MATLAB.read(hold_files({"x.mat": data}), "x.mat", ReadOptions(**options))


@pytest.mark.parametrize("how", [{"format": "4"}, {}, {"do_compression": True}])
@pytest.mark.parametrize("across", [False, True])
def test_a_matrix_of_every_version_gives_the_same(how: dict[str, Any], across: bool) -> None:
    recording = read(saved({"val": ECG.T if across else ECG}, **how))
    assert recording.leads == STANDARD_LEADS
    np.testing.assert_allclose(recording.signal, ECG, atol=5.1e-5)


def test_a_struct_of_sex_age_and_data_as_a_challenge_published_it() -> None:
    data = saved({"ECG": {"sex": "Female", "age": 74, "data": ECG}}, do_compression=True)
    recording = read(data)
    assert (recording.sex, recording.age) == ("female", 74.0)
    np.testing.assert_allclose(recording.signal, ECG, atol=5.1e-5)
    missing = saved({"ECG": {"sex": "Male", "age": np.nan, "data": ECG}})
    assert read(missing).age is None


def test_fields_beside_a_matrix_are_believed() -> None:
    names = np.array(["II", "V1", "V5"], object)
    data = saved({"ecg": ECG[:3], "fs": 250, "leads": names, "units": "mV", "patient": "p7"})
    recording = read(data, rate=None)
    assert recording.leads == ("II", "V1", "V5")
    assert (recording.rate, recording.patient) == (250, "p7")
    assert "notice" not in recording.extra


def test_an_array_of_structs_is_as_many_recordings() -> None:
    records = np.array([(ECG, 60.0), (ECG * 2, 61.0)], [("ecg", object), ("age", float)])
    source = hold_files({"x.mat": saved({"data": records})})
    found = list(MATLAB.parts(source, "x.mat", ReadOptions(rate=RATE)))
    assert found == [Part("data/0/ecg", 6.0), Part("data/1/ecg", 6.0)]
    recording = read(source.read("x.mat"), part="data/1/ecg")
    assert recording.age == 61.0
    np.testing.assert_allclose(recording.signal, ECG * 2, atol=5.1e-5)


def test_a_vector_is_one_lead() -> None:
    recording = read(saved({"ecg": ECG[:1]}))
    assert recording.leads == ("ECG",)
    assert read(saved({"II": ECG[:1]})).leads == ("II",)


def test_version_7_3_is_hdf5_with_axes_turned(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.mat", "w", userblock_size=512) as file:
        file["val"] = ECG.T  # as MATLAB stores a matrix of 12 × 3000
        file["val"].attrs["MATLAB_class"] = np.bytes_("double")
        file["fs"] = np.array([[250.0]])
        name = np.frombuffer("p21".encode("utf-16-le"), np.uint16).reshape(-1, 1)
        file["patient"] = name
        file["patient"].attrs["MATLAB_class"] = np.bytes_("char")
    with (tmp_path / "x.mat").open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM")
    recording = MATLAB.read(open_source(tmp_path), "x.mat", ReadOptions())
    assert (recording.rate, recording.patient) == (250, "p21")
    np.testing.assert_allclose(recording.signal, ECG, atol=5.1e-5)


def test_a_mat_with_a_wfdb_header_beside_it_stays_wfdb(tmp_path: Path) -> None:
    write_mat(tmp_path, signals())
    (tmp_path / "alone.mat").write_bytes(saved({"val": ECG}))
    found = list(read_several(find_recordings([tmp_path]), ReadOptions(rate=RATE)))
    assert all(isinstance(one, Recording) for one in found)
    assert len(found) == 2


def test_a_compressed_bomb_is_refused_unread() -> None:
    data = saved({"val": ECG}, do_compression=True)
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(300)) + packer.flush()
    bomb = data[:128] + struct.pack("<II", 15, len(packed)) + packed
    with pytest.raises(UnusableError, match="exceeds limits"):
        read(bomb)


def test_every_cut_of_a_file_is_an_error_of_one_sentence() -> None:
    for how in ({"format": "4"}, {}, {"do_compression": True}):
        data = saved({"val": ECG}, **how)
        for cut in range(0, len(data), len(data) // 40):
            with pytest.raises(UnusableError) as caught:
                read(data[:cut])
            assert "\n" not in str(caught.value)
