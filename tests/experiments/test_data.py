"""The library: stores and saved files give the same frames, whatever the split and the leads."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Frames, Store
from clocs.errors import SettingError
from clocs.experiments.data import library_from_frames, open_library, save_frames
from clocs.frames.frames import join
from clocs.frames.make import make_frames
from clocs.recording import PAPER_LEADS, STANDARD_LEADS


def same(a: Frames, b: Frames) -> bool:
    rows = np.arange(len(a))
    return (
        a.leads == b.leads
        and (a.split_seed, a.spec, a.content) == (b.split_seed, b.spec, b.content)
        and np.array_equal(a.split, b.split)
        and all(np.array_equal(a.windows(rows, i), b.windows(rows, i)) for i in range(len(a.leads)))
    )


def test_frames_take_another_split_and_other_leads_as_if_cut_so(small_store: Store) -> None:
    every = make_frames(small_store, leads=STANDARD_LEADS)
    cut = make_frames(small_store, leads=PAPER_LEADS, split_seed=3)
    assert same(every.with_leads(PAPER_LEADS).with_split_seed(3), cut)
    assert not np.array_equal(every.split, cut.split)
    with pytest.raises(SettingError, match="not V9"):
        every.with_leads(["II", "V9"])


def test_a_saved_file_gives_the_same_frames_as_its_store(
    small_store: Store, tmp_path: Path
) -> None:
    (name,) = save_frames(small_store.path, tmp_path / "saved", progress=lambda done, total: None)
    assert name.name == "synthetic-frame.safetensors"
    # the library looks for the paper's datasets alone
    frames = replace(Frames.load(name), dataset="chapman").with_split_seed(0)
    frames.save(tmp_path / "saved" / "chapman-frame.safetensors")
    library = open_library(tmp_path / "saved")
    assert tuple(library.sources) == ("chapman",)
    loaded = library.frames("chapman", leads=4, pair=True, split_seed=2)
    assert same(loaded, frames.with_leads(PAPER_LEADS).with_split_seed(2))
    assert library.sources["chapman"].content == small_store.manifest.content_hash


def test_missing_leads_are_named(small_frames: Frames) -> None:
    four = replace(small_frames, dataset="chapman")
    one = replace(small_frames.with_leads(["II"]), dataset="cardiology")
    library = library_from_frames({"chapman": four, "cardiology": one})
    assert library.lacks("chapman", 4) is None
    assert library.lacks("chapman", 12) == "needs a 12-lead store"
    assert library.lacks("cardiology", 12) is None  # one lead is used as it is
    assert library.lacks("physionet2020", 4) == "needs a store of physionet2020"
    assert library.frames("cardiology", leads=12).leads == ("II",)
    with pytest.raises(SettingError, match="needs a 12-lead store"):
        library.frames("chapman", leads=12)


def test_folders_without_data_or_with_wrong_names_are_refused(
    small_store: Store, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match="neither stores"):
        open_library(tmp_path)
    shutil.copytree(small_store.path, tmp_path / "chapman")
    with pytest.raises(SettingError, match="synthetic under the name of chapman"):
        open_library(tmp_path)
    with pytest.raises(SettingError, match="is not a folder"):
        open_library(tmp_path / "nowhere")


def test_a_saved_file_says_what_it_is_without_being_read(
    small_frames: Frames, tmp_path: Path
) -> None:
    small_frames.save(tmp_path / "f.safetensors")
    facts = Frames.facts(tmp_path / "f.safetensors")
    assert facts["leads"] == small_frames.leads and facts["spec"] == small_frames.spec
    with pytest.raises(clocs.ClocsError, match="cannot be read: it does not exist"):
        Frames.facts(tmp_path / "absent.safetensors")


def test_joined_frames_take_another_split_patient_by_patient(small_store: Store) -> None:
    def both(split_seed: int) -> Frames:
        one = make_frames(small_store, split_seed=split_seed)
        return join([one, replace(one, dataset="another").with_split_seed(split_seed)])

    assert np.array_equal(both(0).with_split_seed(4).split, both(4).split)


def test_frames_of_another_length_and_rate_are_saved_small(
    small_store: Store, tmp_path: Path
) -> None:
    written = save_frames(
        small_store.path,
        tmp_path / "saved",
        seconds=2.5,
        rate=100,
        leads=("I", "II", "III"),
        step=0.005,
    )
    (frames,) = (Frames.load(path) for path in written)
    assert (frames.spec.seconds, frames.spec.samples) == (2.5, 250)
    assert frames.leads == ("I", "II", "III")
    assert float(frames.scale[:, 0].max()) == pytest.approx(0.005)
