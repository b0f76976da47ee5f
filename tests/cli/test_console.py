from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from clocs.cli.console import PlainConsole, bar
from clocs.cli.messages import plain, print_json
from clocs.cli.tables import Whole
from clocs.errors import STEERING
from clocs.store.store import Store
from command_line import clocs
from own_files import record

ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)


def written(file: io.TextIOWrapper) -> bytes:
    buffer = file.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()


def test_what_an_encoding_lacks_is_spelled_out() -> None:
    assert plain("0.91 ± 0.02 …", "ascii") == r"0.91 \xb1 0.02 \u2026"
    assert plain("Müller … ±", "utf-8") == "Müller … ±"
    assert plain("odd\udce9.hea", "utf-8") == r"odd\xe9.hea"  # a byte of a name that is no UTF-8


def test_a_table_in_ascii_is_still_aligned() -> None:
    file = stream("ascii")
    console = PlainConsole(file=file, width=60)
    console.print(Whole("", (), [("AUC", "0.9 ± 0.1"), ("frames × leads", "1 … 2")]))
    lines = written(file).decode().splitlines()
    assert len({len(line) for line in lines}) == 1


EVIL = "\x1b]2owned\x1b[2J\x9b31m\u202e[/red][bold]:smile:"


def test_text_of_strangers_only_shows_in_every_kind_of_output() -> None:
    file = stream("utf-8")
    console = PlainConsole(file=file, width=300, force_terminal=True)
    table = Whole(EVIL, (), [(EVIL, EVIL), ("styled", Text(EVIL, "bold"))])
    for shown in (EVIL, Text(EVIL), table):
        console.print(shown)
    with bar(EVIL, "recordings", console) as tick:
        tick(1, 2)
    printed = written(file).decode()
    ours = re.sub(r"\x1b\[[0-9;?]*[mhlAK]", "", printed)  # colors and the bar's own movements
    assert not STEERING.search(ours.replace("\r", "")), ours
    shown_as = r"\x1b]2owned\x1b[2J\x9b31m\u202e[/red][bold]:smile:"
    assert ours.count(shown_as) >= 6


@pytest.mark.skipif(sys.platform != "linux", reason="names have fewer characters elsewhere")
def test_names_and_labels_of_strangers_never_steer_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    record(folder, "good")
    bad = folder / f"{EVIL.replace('/', '')}\n.edf"
    bad.write_bytes(b"0       ")
    shutil.copy(folder / "good.hea", bad.with_suffix(".hea"))
    (folder / os.fsdecode(b"caf\xe9.edf")).write_bytes(b"0       ")
    (folder / "t.csv").write_text(f"id,label\ngood,{EVIL}\n")
    source = ("prepare", "folder", folder, "--labels", "t.csv")
    for arguments, code in (
        ((*source, "--dry-run"), 0),
        ((*source, "--dry-run", "--json"), 0),
        ((*source, "--out", tmp_path / "s"), 0),
        (("info", tmp_path / "s", "--verbose"), 0),
        (("info", tmp_path / "s", "--json"), 0),
        (("info", bad), 1),
        (("info", bad, bad), 2),
        (("info", f"--{EVIL}"), 2),
        (("embed", "cmsc-chapman", bad, "--out", tmp_path / "e.parquet"), 1),
    ):
        done = clocs(*arguments, code=code)
        said = done.stdout + done.stderr
        assert not STEERING.search(said), (arguments, said)
        assert "Traceback" not in said
    assert json.loads(clocs("info", tmp_path / "s", "--json").stdout)["labels"] == {EVIL: 1}


def test_json_is_ascii_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"Müller": ["±", "odd\udce9.hea", EVIL]}
    print_json(value)
    printed = capsys.readouterr().out
    assert printed.isascii() and json.loads(printed) == value


def test_every_command_works_in_an_ascii_terminal(small_store: Store, tmp_path: Path) -> None:
    store, run = small_store.path, tmp_path / "run"

    def in_ascii(*arguments: object) -> str:
        done = clocs(*arguments, encoding="ascii")
        assert (done.stdout + done.stderr).isascii()
        return done.stdout

    assert r"frames \xd7 leads" in in_ascii("info", store)
    few = ("--epochs", 1, "--embedding-dim", 8, "--seeds", 2)
    in_ascii("pretrain", store, "--out", run, *few)
    assert r" \xb1 " in in_ascii("evaluate", run, store, "--epochs", 1, "--resamples", 20)
    in_ascii("embed", run, store, "--out", tmp_path / "vectors.parquet")
    in_ascii("evaluate", run, store, "--protocol", "retrieval")
    drawn = ("--checkpoint", run, "--out", tmp_path / "distances.png")
    in_ascii("figure", "distances", store, *drawn)
    for command in ("pretrain", "evaluate", "reproduce", "explore", "similar"):
        assert "Example: clocs" in in_ascii(command, "--help")


def test_a_process_in_an_ascii_terminal_prints_ascii(small_store: Store) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clocs", "info", small_store.path],
        capture_output=True, check=True, env=os.environ | ASCII,
    )  # fmt: skip
    assert rb"frames \xd7 leads" in done.stdout and (done.stdout + done.stderr).isascii()
