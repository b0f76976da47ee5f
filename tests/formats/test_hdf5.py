"""HDF5 files, written by h5py, in the layouts that datasets are published in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import clocs
from clocs.errors import UnusableError
from clocs.formats.base import Part, ReadOptions
from clocs.formats.hdf5 import HDF5
from clocs.formats.read import Found, find_recordings
from clocs.formats.source import hold_files, open_source
from clocs.recording import STANDARD_LEADS, Recording

RATE = 400.0
ECG = np.random.default_rng(3).normal(0, 0.3, (4, 1024, 12)).astype(np.float32)  # mV


def read(folder: Path, **options: Any) -> Recording:
    return HDF5.read(open_source(folder), "x.h5", ReadOptions(**options))


def parts(folder: Path, **options: Any) -> list[Part]:
    return list(HDF5.parts(open_source(folder), "x.h5", ReadOptions(**options)))


def test_one_array_of_all_exams_with_their_ids(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("tracings", data=ECG, chunks=(1, 1024, 12), compression="gzip")
        file["exam_id"] = [1001, 1002, 1003, 1007]
    assert parts(tmp_path, rate=RATE) == [Part(str(i), 2.56) for i in (1001, 1002, 1003, 1007)]
    recording = read(tmp_path, rate=RATE, part="1003")
    assert recording.leads == STANDARD_LEADS
    assert (recording.id, recording.patient) == ("x_1003", "x")
    np.testing.assert_allclose(recording.signal, ECG[2].T, atol=5.1e-5)
    assert "samples by leads" in recording.extra["notice"]


def test_a_group_per_recording_with_attributes_of_its_own_and_of_the_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["fs"] = 500.0
        file.attrs["units"] = "uV"
        for number in range(3):
            group = file.create_group(f"study/r{number}")
            group["ecg"] = (ECG[number].T * 1000).astype(np.int16)
            group["leads"] = list(STANDARD_LEADS)
            group.attrs["patient_id"] = f"p{number}"
            group.attrs["sex"] = "F"
        file["study/r2"].attrs["sampling_rate"] = 250
    found = parts(tmp_path)
    assert [part.name for part in found] == [f"study/r{number}/ecg" for number in range(3)]
    assert [part.patient for part in found] == ["p0", "p1", "p2"]
    recording = read(tmp_path, part="study/r1/ecg")
    assert (recording.rate, recording.patient, recording.sex) == (500, "p1", "female")
    assert recording.leads == STANDARD_LEADS
    assert "notice" not in recording.extra
    np.testing.assert_array_equal(recording.digital, (ECG[1].T * 1000).astype(np.int16))
    assert read(tmp_path, part="study/r2/ecg").rate == 250


def test_a_dataset_per_lead(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for number, lead in enumerate(("I", "II", "V1")):
            file[f"leads/{lead}"] = ECG[0, :, number]
        file["leads"].attrs["rate"] = RATE
    recording = read(tmp_path)
    assert recording.leads == ("I", "II", "V1")
    assert recording.rate == RATE


def test_a_stretch_of_a_long_recording_is_what_the_whole_has_there(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("ecg", data=np.tile(ECG[0], (20, 1)), chunks=True)
    whole, some = read(tmp_path, rate=RATE), read(tmp_path, rate=RATE, start=10.0, stop=12.0)
    np.testing.assert_allclose(some.signal, whole.signal[:, 4000:4800], atol=1e-9)


def test_a_file_in_memory_is_read_too(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["ecg"] = ECG[0]
    source = hold_files({"y": (tmp_path / "x.h5").read_bytes()})
    assert HDF5.recognize is not None and HDF5.recognize(source.head("y", 4096))
    recording = HDF5.read(source, "y", ReadOptions(rate=RATE))
    np.testing.assert_array_equal(recording.digital, read(tmp_path, rate=RATE).digital)


def test_no_link_leads_out_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    with h5py.File(tmp_path / "secret" / "y.h5", "w") as file:
        file["ecg"] = ECG[0]
    (tmp_path / "secret" / "raw").write_bytes(ECG[0].tobytes())
    folder = tmp_path / "in"
    folder.mkdir()
    with h5py.File(folder / "x.h5", "w") as file:
        file["linked"] = h5py.ExternalLink(str(tmp_path / "secret" / "y.h5"), "/ecg")
        raw = [(str(tmp_path / "secret" / "raw"), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("outside", (1024, 12), "f4", external=raw)
        layout = h5py.VirtualLayout((1024, 12), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "secret" / "y.h5"), "ecg", (1024, 12))
        file.create_virtual_dataset("virtual", layout)
    with pytest.raises(UnusableError, match="no array of numbers"):
        read(folder, rate=RATE)


def test_groups_that_hold_themselves_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["ecg"] = ECG[0]
        file["again"] = file["/"]
    with pytest.raises(UnusableError, match="without end"):
        read(tmp_path, rate=RATE)


def test_sizes_that_the_file_cannot_hold_are_refused_unread(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("ecg", (10**7, 4096, 12), "f4", chunks=(1, 4096, 12))
    with pytest.raises(UnusableError, match="exceeds limits"):
        read(tmp_path, rate=RATE)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        data = file.create_dataset(
            "ecg", (12, 2**26), "i2", chunks=(1, 2**26), compression="gzip", shuffle=True
        )
        data[0, :10] = 1
    with pytest.raises(UnusableError, match="exceeds limits"):
        read(tmp_path, rate=RATE, stop=10.0)


def test_a_changed_file_is_opened_anew(tmp_path: Path) -> None:
    for scale in (1, 2):
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file["tracings"] = ECG * scale
            file["note"] = "x" * scale  # another size
        recording = read(tmp_path, rate=RATE, part="1")
        np.testing.assert_allclose(recording.signal, ECG[1].T * scale, atol=6e-5)


def test_a_file_of_several_recordings_is_opened_once_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["tracings"] = ECG
    opened: list[object] = []
    original = h5py.File

    def counted(*args: Any, **options: Any) -> Any:
        opened.append(args)
        return original(*args, **options)

    monkeypatch.setattr(h5py, "File", counted)
    for part in ("0", "1"):
        read(tmp_path, rate=RATE, part=part)
    assert len(opened) == 1


def test_every_cut_of_a_file_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["ecg"] = ECG[0]
        file.attrs["fs"] = RATE
    data = (tmp_path / "y.h5").read_bytes()
    for cut in range(0, len(data), len(data) // 40):
        with pytest.raises(UnusableError) as caught:
            HDF5.read(hold_files({"x.h5": data[:cut]}), "x.h5", ReadOptions())
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 2**64 - 16, 2**32])
def test_texts_without_end_are_refused_where_hdf5_reads_for_ever(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("ecg", data=np.zeros((3, 500))).attrs["leads"] = ["I", "II", "V1"]
    data = bytearray(path.read_bytes())
    heap = data.index(b"GCOL\1\0\0\0")
    data[heap + 16 : heap + 18] = b"\0\0"
    data[heap + 24 : heap + 32] = size.to_bytes(8, "little")
    path.write_bytes(data)
    for source in (open_source(tmp_path), hold_files({"x.h5": bytes(data)})):
        with pytest.raises(UnusableError, match="have no end"):
            HDF5.read(source, "x.h5", ReadOptions(rate=250.0))


def test_a_damaged_attribute_that_crashes_the_library_is_left_alone(tmp_path: Path) -> None:
    """One wrong byte in the type of a text makes HDF5 read memory that it does not own."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("ecg", data=ECG[0].T)
        file.attrs["patient"], file.attrs["fs"] = "P1", RATE
    data = (tmp_path / "x.h5").read_bytes()
    text = bytes([0x19, 1, 1, 0, 16, 0, 0, 0])  # a type of variable length, of 16 bytes
    assert data.count(text) == 1
    assert read(tmp_path).patient == "P1"
    (tmp_path / "x.h5").write_bytes(data.replace(text, bytes([0x19, 0x2C]) + text[2:]))
    assert read(tmp_path).patient == "x"


def test_a_file_that_ends_the_process_which_lists_it_spoils_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(tmp_path / "endless.h5", "w") as file:
        for number in range(9000):
            file.create_group(f"g{number}").attrs["a"] = number  # takes seconds to list
    with h5py.File(tmp_path / "sound.h5", "w") as file:
        file.create_dataset("ecg", data=ECG[0].T)
        file.attrs["fs"] = RATE
    monkeypatch.setenv("CLOCS_READ_SECONDS", "0.7")
    bad, sound = find_recordings([tmp_path / "endless.h5", tmp_path / "sound.h5"])
    assert isinstance(bad, tuple) and "endless.h5 took more than" in str(bad[1])
    assert isinstance(sound, Found) and sound.name.endswith("sound.h5")
    store = clocs.prepare("folder", tmp_path, out=tmp_path.with_name("store"))
    assert store.table["id"].to_list() == ["sound"]
    assert store.quarantine["reason"].to_list() == ["exceeds limits"]


def test_threads_read_files_of_several_recordings_side_by_side(tmp_path: Path) -> None:
    """No thread closes the file that another one reads."""
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["signals"] = np.random.default_rng(0).normal(size=(8, 12, 2000))
    options = ReadOptions(rate=500.0, unit="mV")
    found = [
        one
        for one in find_recordings([tmp_path / "a.h5", tmp_path / "b.h5"], options)
        if isinstance(one, Found)
    ]
    assert len(found) == 16
    with ThreadPoolExecutor(8) as pool:
        both = pool.map(lambda i: found[i % 16 if i % 2 else -1 - i % 16].read(options), range(200))
        assert {one.digital.shape for one in both} == {(12, 2000)}
