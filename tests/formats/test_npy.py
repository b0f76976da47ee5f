"""NumPy arrays, written by NumPy: axes, units, parts, stretches and what is refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clocs.errors import SettingError, UnusableError
from clocs.formats.array_files import NPY, NPZ
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.source import Source, hold_files, open_files, open_source
from clocs.recording import STANDARD_LEADS, Gap, Recording

RATE = 250.0
ECG = np.random.default_rng(2).normal(0, 0.3, (3, 12, 1000))  # mV; (n, leads, samples)


def saved(array: NDArray[Any]) -> Source:
    file = io.BytesIO()
    np.save(file, array)
    return hold_files({"x.npy": file.getvalue()})


def archived(**arrays: Any) -> Source:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return hold_files({"x.npz": file.getvalue()})


def read(source: Source, **options: Any) -> Recording:
    own, name = (NPY, "x.npy") if "x.npy" in source else (NPZ, "x.npz")
    return own.read(source, name, ReadOptions(**({"rate": RATE} | options)))


@pytest.mark.parametrize(
    ("array", "notice"),
    [
        (ECG[0], "leads by samples"),
        (ECG[0].T, "samples by leads"),
        (np.asfortranarray(ECG[0]), "leads by samples"),
        (ECG[0].astype("float32"), "leads by samples"),
        (ECG[0].astype(">f8"), "leads by samples"),
        (ECG[:1], "leads by samples"),
        (ECG[:1].transpose(0, 2, 1), "samples by leads"),
    ],
)
def test_either_order_of_axes_is_told_by_the_sizes(array: NDArray[Any], notice: str) -> None:
    recording = read(saved(array))
    assert recording.leads == STANDARD_LEADS
    np.testing.assert_allclose(recording.signal, ECG[0], atol=5.1e-5)
    assert notice in recording.extra["notice"]
    assert "assumed to be in mV" in recording.extra["notice"]
    assert "standard order" in recording.extra["notice"]


def test_an_array_on_disk_is_mapped_and_equals_the_one_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ECG)
    whole, part = open_files(tmp_path, ["x.npy"]), ReadOptions(rate=RATE, part="2", unit="mV")
    on_disk, held = NPY.read(whole, "x.npy", part), NPY.read(saved(ECG), "x.npy", part)
    np.testing.assert_array_equal(on_disk.digital, held.digital)
    np.testing.assert_allclose(on_disk.signal, ECG[2], atol=5.1e-5)
    assert (on_disk.id, on_disk.patient) == ("x_2", "x")


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_parts_are_the_rows_of_an_array_with_three_axes(order: tuple[int, int, int]) -> None:
    source = saved(ECG.transpose(order))
    parts = list(NPY.parts(source, "x.npy", ReadOptions(rate=RATE)))
    assert parts == [Part(str(row), 4.0) for row in range(3)]
    for row in range(3):
        recording = read(source, part=str(row))
        np.testing.assert_allclose(recording.signal, ECG[row], atol=5.1e-5)
    with pytest.raises(UnusableError, match="x has no recording '3'"):
        read(source, part="3")


def test_one_lead_may_have_one_axis_or_a_row_per_recording() -> None:
    single = read(saved(ECG[0, 1]))
    assert single.leads == ("ECG",)
    assert read(saved(ECG[0, 1]), lead_names={"ECG": "II"}).leads == ("II",)
    many = saved(ECG[:, :10].reshape(30, 1000))
    assert len(NPY.parts(many, "x.npy", ReadOptions(leads=("II",)))) == 30
    row = read(many, leads=("II",), part="4")
    assert row.leads == ("II",)
    np.testing.assert_allclose(row.signal[0], ECG[0, 4], atol=5.1e-5)


def test_one_lead_of_twelve_may_be_chosen() -> None:
    recording = read(saved(ECG[0]), leads=("II",)).select(["II"])
    np.testing.assert_allclose(recording.signal[0], ECG[0, 1], atol=5.1e-5)


def test_given_leads_tell_the_axes() -> None:
    square = saved(ECG[0, :2, :60].repeat(20, axis=0))  # 40 × 60
    with pytest.raises(UnusableError, match=r"does not tell leads from samples; .* `lead_names`"):
        read(square)
    wide = saved(ECG[0, :2])
    with pytest.raises(
        UnusableError, match=r"2 leads without names; .* `lead_names`, such as 1=I,2=II"
    ):
        read(wide)
    assert read(wide, leads=("II", "V5")).leads == ("II", "V5")
    assert read(wide, lead_names={"1": "II", "2": "V5"}).leads == ("II", "V5")  # as it says
    named = {str(number): f"x{number}" for number in range(1, 41)}
    assert read(square, lead_names=named).digital.shape == (40, 60)


def test_whole_numbers_stay_whole() -> None:
    steps = (ECG[0] * 1000).astype(np.int16)
    recording = read(saved(steps))
    np.testing.assert_array_equal(recording.digital, steps)
    assert (recording.gain == 1000).all()
    assert "assumed to be in µV" in recording.extra["notice"]
    given = read(saved(steps.astype(np.int64)), unit="uV")
    np.testing.assert_array_equal(given.digital, steps)
    assert "µV" not in given.extra["notice"]


def test_nan_is_a_gap() -> None:
    broken = ECG[0].copy()
    broken[3, 7:9] = np.nan
    broken[11] = np.nan
    recording = read(saved(broken))
    assert recording.leads == STANDARD_LEADS[:-1]
    assert recording.gaps == (Gap(7, 9, "aVR"),)
    with pytest.raises(UnusableError, match="nan"):
        read(saved(np.full((12, 1000), np.nan)))


def test_a_quiet_recording_has_the_unit_of_its_array() -> None:
    quiet = ECG.copy()
    quiet[1] /= 20  # alone, it would be taken as V
    recording = read(saved(quiet), part="1")
    np.testing.assert_allclose(recording.signal, quiet[1], atol=5.1e-5)


def test_a_stretch_is_what_the_whole_has_there(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ECG[0].T)
    source = open_source(tmp_path)
    whole = read(source)
    stretch = read(source, start=1.0, stop=3.0)
    np.testing.assert_allclose(stretch.signal, whole.signal[:, 250:750], atol=1e-9)
    assert stretch.samples == 500
    with pytest.raises(UnusableError, match="truncated"):
        read(source, start=100.0)


def test_an_archive_says_leads_rate_patients_labels_and_ids() -> None:
    names = ["II", "V1", "V5"]
    source = archived(
        signals=ECG[:, :3],
        leads=names,
        fs=500,
        patients=["p1", "p1", "p2"],
        labels=["AF", "SR", "AF"],
        ids=[101, 102, 103],
        units="mV",
        age=[50, 51, 60],
        sex=["F", "F", "M"],
    )
    parts = list(NPZ.parts(source, "x.npz", ReadOptions()))
    assert parts == [Part("101", 2.0, "p1"), Part("102", 2.0, "p1"), Part("103", 2.0, "p2")]
    recording = read(source, part="103", rate=None)
    assert recording.leads == tuple(names)
    assert (recording.rate, recording.patient, recording.labels) == (500, "p2", ("AF",))
    assert (recording.age, recording.sex) == (60.0, "male")
    assert "notice" not in recording.extra
    np.testing.assert_allclose(recording.signal, ECG[2, :3], atol=5.1e-5)


def test_an_archive_may_have_an_array_per_lead() -> None:
    source = archived(rate=RATE, II=ECG[0, 1], V1=ECG[0, 6], mask=np.zeros(3))
    recording = read(source, rate=None)
    assert recording.leads == ("II", "V1")
    assert list(NPZ.parts(source, "x.npz", ReadOptions())) == [Part("", 4.0)]


def test_several_arrays_are_several_parts() -> None:
    source = archived(first=ECG[0], second=ECG[1].T)
    parts = [part.name for part in NPZ.parts(source, "x.npz", ReadOptions())]
    assert parts == ["first", "second"]
    np.testing.assert_allclose(read(source, part="second").signal, ECG[1], atol=5.1e-5)


def test_a_rate_is_asked_for() -> None:
    with pytest.raises(UnusableError, match=r"does not say its sampling rate; .* `rate`"):
        read(saved(ECG[0]), rate=None)
    with pytest.raises(SettingError, match="`unit`"):
        read(saved(ECG[0]), unit="bananas")


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array([{"a": 1}], dtype=object), "Python objects, which are not loaded"),
        (np.zeros((2, 3)), "no array of numbers"),
        (np.zeros((0, 12)), "no array of numbers"),
        (np.zeros((12, 1000), complex), "no array of numbers"),
        (np.array(["a"] * 100), "no array of numbers"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(array: NDArray[Any], says: str) -> None:
    with pytest.raises(UnusableError, match=says):
        read(saved(array))


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    header = np.lib.format.header_data_from_array_1_0(ECG)
    for shape in ((10**9, 12, 10**6), (12, 10**15)):
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(file, header | {"shape": shape})
        data = file.getvalue() + bytes(1000)
        (tmp_path / "x.npy").write_bytes(data)
        for source in (hold_files({"x.npy": data}), open_files(tmp_path, ["x.npy"])):
            with pytest.raises(UnusableError, match="truncated: x has 1,000 of"):
                read(source)


def test_an_archive_that_unpacks_to_constants_is_refused_unread() -> None:
    source = archived(signals=np.zeros((12, 20_000_000), np.int8))
    with pytest.raises(UnusableError, match="exceeds limits"):
        read(source)


def own_of(name: str) -> FileFormat:
    return NPY if name == "x.npy" else NPZ


@pytest.mark.parametrize("source", [saved(ECG[0]), archived(signals=ECG[0])])
def test_every_cut_of_a_file_is_an_error_of_one_sentence(source: Source) -> None:
    (name,) = source.names
    data = source.read(name)
    assert (recognize := own_of(name).recognize) is not None and recognize(data[:4096])
    for cut in range(0, len(data), len(data) // 97):
        with pytest.raises(UnusableError):
            own_of(name).read(hold_files({name: data[:cut]}), name, ReadOptions(rate=RATE))


def test_an_archive_with_a_lying_member_is_refused() -> None:
    data = bytearray(archived(signals=ECG[0]).read("x.npz"))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist() == ["signals.npy"]
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = (2**31).to_bytes(4, "little")  # its unpacked size
    with pytest.raises(UnusableError):
        read(hold_files({"x.npz": bytes(data)}))
