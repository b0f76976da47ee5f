"""A dataset and a file format, each added as the one module that docs/extending.md shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
SCRIPT = """
import sys
import clocs.datasets, clocs.formats
clocs.{package}.__path__.append(sys.argv[1])
"""


def shown(heading: str) -> str:
    section = GUIDE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return str(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0])


def python(package: str, folder: Path, code: str, *arguments: str) -> str:
    script = SCRIPT.format(package=package) + code
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        beat = [round(300 * ((i + 7 * number) % 50 == 0) + i % 7, 1) for i in range(1000)]
        (folder / f"sick_{number}.txt").write_text("\n".join(map(str, beat)))
    return folder


def test_a_file_format_is_one_module(tmp_path: Path, recordings: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "one_column.py").write_text(shown("A file format"))
    code = """
import clocs
from clocs.web.uploads import read_upload
from clocs.formats.base import ReadOptions
from clocs.formats.read import find_recordings, read_several
file = sys.argv[2] + "/sick_0.txt"
one = clocs.read(file, rate=200)
print(one.id, one.leads, one.rate, one.samples)
print([r.id for r in read_several(find_recordings([sys.argv[2]]), ReadOptions(rate=200))])
print(read_upload({"sick_0.txt": open(file, "rb").read()}, 200.0).recordings[0].samples)
"""
    printed = python("formats", tmp_path / "more", code, str(recordings)).splitlines()
    assert printed == ["sick_0 ('II',) 200.0 1000", "['sick_0', 'sick_1', 'sick_2']", "1000"]


def test_a_dataset_is_one_module(tmp_path: Path, recordings: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "sick.py").write_text(shown("A dataset"))
    code = """
from clocs.cli.main import root_command
root_command()(["prepare", "sick", *sys.argv[2:4], "--rate", "250"], standalone_mode=False)
root_command()(["info", sys.argv[3]], standalone_mode=False)
"""
    out = tmp_path / "store"
    arguments = (str(recordings), f"--out={out}")
    code = code.replace("*sys.argv[2:4]", "sys.argv[2], sys.argv[3]").replace(
        '["info", sys.argv[3]]', '["info", sys.argv[3].removeprefix("--out=")]'
    )
    printed = python("datasets", tmp_path / "more", code, *arguments)
    assert "sick" in printed and "rate 250.0" in printed
    from clocs.store.store import open_store

    store = open_store(out)
    assert store.manifest.dataset == "sick" and store.manifest.settings == {"rate": "250.0"}
    assert store.table["labels"].to_list() == [["sick"]] * 3


def test_a_dataset_object_is_prepared_and_takes_no_options(tmp_path: Path) -> None:
    import clocs
    from clocs.datasets.synthetic import Synthetic

    store = clocs.prepare(Synthetic(patients=2), out=tmp_path / "store")
    assert len(store) == 4
    with pytest.raises(clocs.ClocsError, match="leave out `source`, `patients`"):
        clocs.prepare(Synthetic(), "folder", out=tmp_path / "other", patients=3)
