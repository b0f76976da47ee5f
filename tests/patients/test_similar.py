"""A file is compared by the leads of the index, and a mix of leads is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Checkpoint, Store
from clocs.errors import SettingError, StoreError
from clocs.patients.build_index import open_index
from clocs.patients.index_files import INDEXED, index_facts
from clocs.sealed import own_hash
from clocs.store.manifest import MANIFEST


@pytest.fixture(scope="module")
def one_lead(
    checkpoint: Checkpoint, small_store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An index made from lead II alone, by an encoder trained on four leads."""
    folder = tmp_path_factory.mktemp("one-lead") / "index"
    assert clocs.index(checkpoint, small_store, out=folder, leads=["II"]).leads == ("II",)
    return folder


def csv_file(store: Store, folder: Path, leads: list[str]) -> Path:
    """The store's first recording with some leads, slightly changed."""
    one = store.recording(0).select(leads)
    microvolts = np.rint(one.signal.T * 1000)
    microvolts[0] += 1
    path = folder / "mine.csv"
    header = f"# rate: {one.rate:g}\n{','.join(leads)}"
    np.savetxt(path, microvolts, fmt="%d", delimiter=",", header=header, comments="")
    return path


def test_a_file_is_compared_by_the_leads_of_the_index(
    one_lead: Path, small_store: Store, tmp_path: Path
) -> None:
    assert [open_index(one_lead, level).leads for level in INDEXED] == [("II",), ("II",)]
    assert index_facts(one_lead)["leads"] == ["II"]
    file = csv_file(small_store, tmp_path, ["I", "II"])
    found = clocs.similar(one_lead, file=file, level="recording", k=1)
    assert found["recording"].to_list() == [small_store.table["id"][0]]
    assert found["distance"][0] < 1e-3


def test_a_file_without_the_leads_of_the_index_is_refused_by_name(
    one_lead: Path, small_store: Store, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match="has none of the leads II; choose from V2 with `leads`"):
        clocs.similar(one_lead, file=csv_file(small_store, tmp_path, ["V2"]))


def test_an_index_of_the_format_without_leads_says_what_to_do(one_lead: Path) -> None:
    path = one_lead / "patient" / MANIFEST
    before = path.read_bytes()
    manifest = json.loads(before) | {"format": 2}
    del manifest["leads"], manifest["sha256"]
    path.write_text(json.dumps(manifest | {"sha256": own_hash(manifest)}))
    with pytest.raises(StoreError, match=r"index of format 2, .* run `clocs index` again"):
        clocs.similar(one_lead, patient="x")
    path.write_bytes(before)
