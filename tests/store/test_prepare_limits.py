"""A dataset with files that would take all memory or hours is prepared without them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bombs import GIB, zip_of
from clocs.errors import SourceError
from clocs.store.prepare import prepare
from clocs.store.store import open_store

# Whether polars is imported decides how reading processes start: forked, or afresh.
SCRIPT = """
import json, re, resource, sys
from pathlib import Path
{imported}
from clocs.store.prepare import prepare
prepare("physionet2020", sys.argv[1], out=sys.argv[2], workers=2)
# ru_maxrss of this process would be at least what its parent, pytest, had when it started this
own = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps([own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))  # KiB
"""
DX = "#Dx: 426783006\n"
GOOD = [f"A{number:04}" for number in range(40)]
BOMBS = {
    "B_gap": ("exceeds limits", "B_gap/2 1 500 1000005000\nB_part 1000000000\nA0000 5000\n"),
    "B_hole": ("exceeds limits", "B_hole/2 1 500 1000005000\n~ 1000000000\nA0000 5000\n"),
    "B_line": ("unreadable", "1" * 200_000 + "!\n"),
    "B_long": ("truncated", "B_long 1 500 1000000000\nA0000.dat 16 200/mV 16 0 0 0 0 II\n"),
    "B_sparse": ("exceeds limits", "B_sparse 1 500\nB_sparse.dat 16 200/mV 16 0 0 0 0 II\n"),
    "B_zipped": ("exceeds limits", "B_zipped 1 500 5000\nB_zipped.dat 16 200/mV 16 0 0 0 0 II\n"),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    samples = np.random.default_rng(0).integers(-900, 900, 5000).astype("<i2")
    for name in GOOD:
        (folder / f"{name}.hea").write_text(
            f"{name} 1 500 5000\n{name}.dat 16 200/mV 16 0 0 0 0 II\n{DX}"
        )
        (folder / f"{name}.dat").write_bytes(samples.tobytes())
    for name, (_, text) in BOMBS.items():
        if name != "B_zipped":
            (folder / f"{name}.hea").write_text(text + DX)
    (folder / "B_part.hea").write_text(f"B_part 1 500 1000\nA0000.dat 16 200 16 0 0 0 0 II\n{DX}")
    with (folder / "B_sparse.dat").open("wb") as file:
        file.truncate(3 * GIB)  # within the sizes that are read, not within this test's memory
    header = BOMBS["B_zipped"][1] + DX
    bomb = zip_of({"B_zipped.hea": header.encode()}, {"B_zipped.dat": (6 * GIB, 6 * GIB)})
    (folder / "bomb.zip").write_bytes(bomb)
    return folder


@pytest.mark.parametrize("imported", ["", "import polars"], ids=["forked", "started afresh"])
def test_bombs_go_to_quarantine_and_the_dataset_goes_on(
    source: Path, tmp_path: Path, imported: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(imported=imported), str(source), str(tmp_path / "o")],
        env=os.environ | {"CLOCS_READ_GIB": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert max(json.loads(done.stdout)) * 1024 < 1.5 * GIB
    store = open_store(tmp_path / "o")
    assert store.table["id"].to_list() == GOOD
    reasons = dict(store.quarantine.select("id", "reason").iter_rows())
    assert reasons == {name: reason for name, (reason, _) in BOMBS.items()} | {
        "B_part": "too short"
    }
    details = dict(store.quarantine.select("id", "detail").iter_rows())
    assert details["B_sparse"] == "B_sparse.hea took more than 1 GiB of memory to read"


CELLS = '<row r="1"><c r="A1" t="s"><v>0</v></c></row>'
FAR = '<row r="1048576"><c r="XFD1048576" t="s"><v>0</v></c></row>'


def excel(cells: str, bombs: dict[str, tuple[int, int]]) -> bytes:
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    links = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    sheet = f'<sheet name="S" sheetId="1" r:id="rId1" xmlns:r="{links}"/>'
    types = "http://schemas.openxmlformats.org/package/2006/relationships"
    files = {
        "xl/workbook.xml": f'<workbook xmlns="{space}"><sheets>{sheet}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{types}"><Relationship Id="rId1" '
        f'Type="{links}/worksheet" Target="worksheets/sheet1.xml"/><Relationship Id="rId2" '
        f'Type="{links}/sharedStrings" Target="sharedStrings.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{space}"><sheetData>{cells}</sheetData>'
        "</worksheet>",
        "xl/sharedStrings.xml": f'<sst xmlns="{space}"><si><t>FileName</t></si></sst>',
    }
    held = {name: text.encode() for name, text in files.items() if name not in bombs}
    return zip_of(held, bombs)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (excel(CELLS, {"xl/sharedStrings.xml": (6 * GIB, 6 * GIB)}), "exceeds limits"),
        (excel(CELLS, {"xl/sharedStrings.xml": (6 * GIB, 10_000)}), "not the published table"),
        (excel(CELLS + FAR, {}), "memory|not the published table"),
    ],
    ids=["6 GiB of strings", "6 GiB of strings that state 10 kB", "a cell a trillion cells away"],
)
def test_a_label_table_that_takes_all_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: bytes, expected: str
) -> None:
    assert zipfile.is_zipfile(io.BytesIO(table))
    monkeypatch.setenv("CLOCS_READ_GIB", "1")
    source = tmp_path / "source"
    source.mkdir()
    (source / "MUSE_1.csv").write_text("1,2\n")
    (source / "Diagnostics.xlsx").write_bytes(table)
    with pytest.raises(SourceError, match=expected):
        prepare("chapman", source, out=tmp_path / "store")
