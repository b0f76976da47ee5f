"""The commands about patients, as a person types them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import polars as pl
import pytest
import wfdb
from click.testing import CliRunner

import clocs as clocs_package
from clocs import Checkpoint, Store, open_store
from clocs.cli.main import Root, root_command
from clocs.errors import ClocsError
from clocs.frames.splits import PARTS
from clocs.patients.build_index import open_index
from clocs.patients.distances import METRICS
from clocs.patients.embed import embed_levels
from clocs.patients.embeddings import Embeddings
from clocs.patients.index import KindOrAuto
from clocs.patients.index_files import INDEXED
from clocs.patients.rows import LEVELS
from clocs.recording import FrameSpec
from clocs.store.manifest import MANIFEST

COMMANDS = root_command().commands


@dataclass
class Done:
    stdout: str
    stderr: str


def clocs(*arguments: object, code: int = 0) -> Done:
    """The command in this process: starting one for each takes seconds."""
    result = CliRunner().invoke(Root(), [str(one) for one in arguments])
    error = result.exception
    if error is not None and not isinstance(error, SystemExit | ClocsError):
        raise error
    assert result.exit_code == code, result.output
    words = str(error) if isinstance(error, ClocsError) else ""
    return Done(result.stdout, result.stderr + words)


def as_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(clocs(*arguments, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def run(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    checkpoint.save(folder / "seed-0.safetensors")
    return folder


@pytest.fixture(scope="module")
def index(run: Path, small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "index"
    facts = as_json("index", run, small_store.path, "--out", folder)
    assert facts["total"] == {"patient": 40, "recording": 80}
    assert facts["kind"] == {"patient": "exact", "recording": "exact"}
    return folder


@pytest.fixture(scope="module")
def record(small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first recording of the store as a WFDB record, under another name."""
    folder, one = tmp_path_factory.mktemp("record"), small_store.recording(0)
    wfdb.wrsamp(
        "mine",
        fs=one.rate,
        units=["mV"] * len(one.leads),
        sig_name=list(one.leads),
        d_signal=one.digital.T.astype(np.int64),
        fmt=["16"] * len(one.leads),
        adc_gain=one.gain.tolist(),
        baseline=one.baseline.tolist(),
        write_dir=str(folder),
    )
    return folder / "mine.hea"


def test_embed_writes_what_python_gives(
    run: Path, checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    out = tmp_path / "e.parquet"
    facts = as_json("embed", run, small_store.path, "--level", "recording", "--out", out)
    assert facts["vectors"] == 80 and facts["problems"] == []
    made = Embeddings.load(out)
    expected = embed_levels(checkpoint, small_store, levels=["recording"])["recording"]
    np.testing.assert_allclose(made.vectors, expected.vectors, atol=1e-5)
    assert made.encoder == expected.encoder == facts["encoder"]


def test_a_bad_file_is_listed_and_the_rest_embedded(
    run: Path, record: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text("not,numbers\nat,all\n")
    signal = np.sin(np.arange(8000)[:, None] / 30)
    wfdb.wrsamp(
        "holter", fs=200, units=["mV"], sig_name=["MCL1"], p_signal=signal, write_dir=str(tmp_path)
    )
    out = tmp_path / "e.parquet"
    files = [tmp_path / "bad.csv", record, tmp_path / "holter.hea"]
    facts = as_json("embed", run, *files, "--level", "recording", "--out", out, code=1)
    assert facts["vectors"] == 1
    assert [Path(name).name for name, _ in facts["problems"]] == ["bad.csv", "holter"]
    words = "has none of the leads II, V2, aVL, aVR; if 'MCL1' is one of them, say so with"
    assert words in facts["problems"][1][1]
    named = ("--lead-names", "MCL1=II", "--out", tmp_path / "named.parquet")  # as the message says
    assert as_json("embed", run, tmp_path / "holter.hea", *named)["vectors"] == 1
    assert Embeddings.load(out).rows["recording"].to_list() == ["mine"]
    nothing = clocs("embed", run, tmp_path / "nowhere.hea", "--out", tmp_path / "n.parquet", code=1)
    assert "does not exist" in nothing.stderr
    assert not (tmp_path / "n.parquet").exists()


def test_embed_refuses_wrong_arguments_before_reading_and_overwrites_nothing_else(
    run: Path, record: Path, small_store: Store, tmp_path: Path
) -> None:
    mine, folder = tmp_path / "mine.parquet", tmp_path / "folder.parquet"
    pl.DataFrame({"mine": [1]}).write_parquet(mine)
    folder.mkdir()
    before = mine.read_bytes()
    out = ("--out", tmp_path / "e.parquet")
    for words, arguments in {
        "exists and is no such table; give another `out`": (run, record, "--out", mine),
        "a folder; give the name": (run, record, "--out", folder),
        "`rate` is nan": (run, record, "--rate", "nan", *out),
        "`rate` is inf": (run, record, "--rate", "inf", *out),
        "files belong to no split": (run, record, "--split", "test", *out),
        "distinct names": (run, record, "--leads", "avl,aVL", *out),
        "is not a checkpoint": (record, run, *out),
    }.items():
        assert words in clocs("embed", *arguments, code=1).stderr
    assert mine.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.parquet", "mine.parquet"]
    assert "1 vector of" in clocs("embed", run, record, *out).stdout
    clocs("embed", run, record, *out)  # its own it may replace
    assert as_json("embed", run, record, "--leads", "avl", *out)["vectors"] == 1


def test_a_split_without_patients_is_refused(run: Path, tmp_path: Path) -> None:
    store = clocs_package.prepare("synthetic", out=tmp_path / "store", patients=1, seed=1).path
    for words, arguments in {
        "the split test has no patient": ("embed", run, store, "--split", "test"),
        "0 pairs within and 0 between patients; give another `split`": (
            "figure",
            "distances",
            store,
            "--checkpoint",
            run,
        ),
        "synthetic has no patient in the split 'test'": (
            "evaluate",
            run,
            store,
            "--protocol",
            "retrieval",
        ),
    }.items():
        assert words in clocs(*arguments, code=1).stderr
    as_json("index", run, store, "--out", tmp_path / "index")
    alone = clocs("similar", tmp_path / "index", "--patient", open_store(store).table["patient"][0])
    assert "No other patient of the index passes" in alone.stdout


def test_a_file_finds_similar_recordings_but_never_itself(
    index: Path, record: Path, small_store: Store, tmp_path: Path
) -> None:
    own = small_store.table["patient"][0]
    for level, others in (("patient", 39), ("recording", 78)):
        facts = as_json("similar", index, "--file", record, "-k", 100, "--level", level)
        by_id = as_json("similar", index, "--patient", own, "-k", 100, "--level", level)
        assert len(facts["neighbors"]) == len(by_id["neighbors"]) == others
        assert own not in {one["patient"] for one in facts["neighbors"]}
    # One sample changed makes it another recording: then the original is the nearest.
    nearly = changed_copy(record, tmp_path)
    facts = as_json("similar", index, "--file", nearly, "--level", "recording")
    assert facts["neighbors"][0]["recording"] == small_store.table["id"][0]
    assert facts["neighbors"][0]["distance"] < 1e-4


def changed_copy(record: Path, folder: Path) -> Path:
    """The record with one sample changed."""
    for part in (record, record.with_suffix(".dat")):
        (folder / part.name).write_bytes(part.read_bytes())
    data = bytearray((folder / "mine.dat").read_bytes())
    data[40] ^= 1
    (folder / "mine.dat").write_bytes(data)
    return folder / record.name


def test_an_index_has_one_frame_and_files_are_cut_into_it(
    checkpoint: Checkpoint, record: Path, small_store: Store, tmp_path: Path
) -> None:
    whole = replace(checkpoint.card, frame=FrameSpec(10.0))
    assert small_store.manifest.frame != whole.frame
    run, store = tmp_path / "seed-0.safetensors", small_store.path
    replace(checkpoint, card=whole).save(run)
    nearly = changed_copy(record, tmp_path)
    for options, seconds in (((), 10.0), (("--frame", 4), 4.0)):
        folder = tmp_path / f"index-{seconds:g}"
        as_json("index", run, store, "--out", folder, *options)
        assert open_index(folder).frame == seconds
        facts = as_json("similar", folder, "--file", nearly, "--level", "recording")
        assert facts["neighbors"][0]["recording"] == small_store.table["id"][0]
        assert facts["neighbors"][0]["distance"] < 1e-4
    both = (run, store, nearly, "--out", tmp_path / "e.parquet")
    assert "frames of 5 s and 10 s" in clocs("embed", *both, code=1).stderr
    assert "such as 5" in clocs("embed", *both, "--frame", "nan", code=1).stderr
    assert as_json("embed", *both, "--frame", 8)["patients"] == 41
    assert Embeddings.load(tmp_path / "e.parquet").frame == 8.0


def test_a_patient_is_never_their_own_neighbor(index: Path, small_store: Store) -> None:
    patient = small_store.table["patient"][0]
    for level, others in (("patient", 39), ("recording", 78)):
        query = f"{small_store.manifest.dataset}:{patient}"
        facts = as_json("similar", index, "--patient", query, "-k", 100, "--level", level)
        assert len(facts["neighbors"]) == others
        assert patient not in {one["patient"] for one in facts["neighbors"]}
        distances = [one["distance"] for one in facts["neighbors"]]
        assert distances == sorted(distances)


def test_no_patient_of_a_duplicate_recording_is_returned_for_its_file(
    checkpoint: Checkpoint, record: Path, small_store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    clocs_package.index(checkpoint, small_store, out=folder)
    index = open_index(folder, "recording")
    # The same samples under another patient's name, as published datasets have them.
    first, other = small_store.table["digest"][0], small_store.table["patient"][10]
    digest = pl.when(pl.col("patient") == other).then(first).otherwise(pl.col("digest"))
    index.rows = index.rows.with_columns(digest.cast(pl.UInt64).alias("digest"))
    (folder / "recording" / MANIFEST).unlink()
    index.save(folder / "recording")
    for level in INDEXED:
        facts = as_json("similar", folder, "--file", record, "-k", 100, "--level", level)
        found = {one["patient"] for one in facts["neighbors"]}
        assert len(found) == 38
        assert not found & {small_store.table["patient"][0], other}


def test_searching_for_a_patient_never_imports_torch(index: Path, small_store: Store) -> None:
    code = (
        "import sys; from clocs.cli.main import root_command\n"
        f"sys.argv = ['clocs', 'similar', {str(index)!r}, '--patient', "
        f"{small_store.table['patient'][0]!r}]\n"
        "root_command()(standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Nearest to" in done.stdout


def test_filters_hold(index: Path, small_store: Store) -> None:
    row = small_store.table.row(0, named=True)
    label = small_store.table["labels"].explode().drop_nulls()[5]
    facts = as_json(
        "similar", index, "--patient", row["patient"], "-k", 50, "--label", label,
        "--sex", "female", "--min-age", 40,
    )  # fmt: skip
    people = small_store.table.filter(
        pl.col("labels").list.contains(label)
        & (pl.col("sex") == "female")
        & (pl.col("age") >= 40)
        & (pl.col("patient") != row["patient"])
    )["patient"]
    assert {one["patient"] for one in facts["neighbors"]} == set(people)


def test_wrong_arguments_get_one_sentence(
    index: Path, run: Path, small_store: Store, tmp_path: Path
) -> None:
    store = small_store.path
    (tmp_path / "bad.csv").write_text("not,numbers\nat,all\n")
    for words, arguments in {
        "give one of `patient` and `file`": ("similar", index),
        "holds no patient 'nobody'": ("similar", index, "--patient", "nobody"),
        "is a recording; search among recordings with 'recording' as `level`": (
            "similar", index, "--patient", small_store.table["id"][0],
        ),
        "no patient has the label 'nonsense'": (
            "similar", index, "--patient", small_store.table["patient"][0], "--label", "nonsense",
        ),
        "cannot be used: unreadable": ("similar", index, "--file", tmp_path / "bad.csv"),
        "is not an index": ("similar", tmp_path, "--patient", "x"),
        "is an index already; give another `out`": ("index", run, store, "--out", index),
        "ends in .parquet": ("embed", run, store, "--out", "x.csv"),
        "ends in .png, .svg, .pdf": (
            *("figure", "distances", store, "--checkpoint", run, "--out", tmp_path / "d.txt"),
        ),
    }.items():  # fmt: skip
        done = clocs(*arguments, code=1)
        assert words in done.stderr.replace("\n", " "), (words, done.stderr)


@pytest.mark.parametrize(
    ("command", "option", "choices"),
    [
        ("embed", "--level", LEVELS),
        ("embed", "--split", (*PARTS, "all")),
        ("figure", "--metric", METRICS),
        ("figure", "--split", (*PARTS, "all")),
        ("index", "--kind", get_args(KindOrAuto)),
        ("similar", "--level", INDEXED),
        ("similar", "--sex", ("female", "male")),
    ],
)
def test_help_lists_the_choices_and_a_wrong_one_is_named(
    command: str, option: str, choices: tuple[str, ...]
) -> None:
    (found,) = (
        parameter.type.choices
        for parameter in COMMANDS[command].params
        if option in parameter.opts and isinstance(parameter.type, click.Choice)
    )
    assert tuple(found) == choices
    assert "|".join(choices)[:20] in clocs(command, "--help").stdout
    first = "views" if command == "figure" else "a"
    said = clocs(command, first, "b", option, "nonsense", code=2).stderr
    assert choices[-1] in said and "nonsense" in said and "Traceback" not in said


def test_info_describes_an_index_and_verifies_it(
    index: Path, run: Path, small_store: Store, tmp_path: Path
) -> None:
    facts = as_json("info", index, "--verify")
    assert facts["verified"] and facts["frame"] == small_store.manifest.frame.seconds
    assert facts["recording"]["datasets"] == {"synthetic": 80}
    assert "vectors 80, replaced 0, kind exact" in " ".join(clocs("info", index).stdout.split())
    copy = tmp_path / "copy"
    shutil.copytree(index, copy)
    vectors = copy / "recording" / "vectors.f32"
    data = bytearray(vectors.read_bytes())
    data[100] ^= 1
    vectors.write_bytes(data)
    assert "its hash differs" in clocs("info", copy, "--verify", code=1).stderr
    done = clocs("figure", "distances", index / "patient", "--checkpoint", run, code=1)
    assert "the manifest of something else" in done.stderr


def test_distances_and_retrieval_print_their_numbers(
    run: Path, small_store: Store, tmp_path: Path
) -> None:
    plot = tmp_path / "new" / "d.pdf"
    facts = as_json(
        *("figure", "distances", small_store.path, "--checkpoint", run),
        *("--metric", "cosine", "--out", plot),
    )
    assert 0.5 < facts["separability"] <= 1 and 0 <= facts["overlap"] <= 1
    assert facts["intra_mean"] < facts["inter_mean"]
    assert plot.read_bytes().startswith(b"%PDF")
    score, *_ = as_json("evaluate", run, small_store.path, "--protocol", "retrieval")
    assert score["patients_seen"] == 0 and score["halves"]["top1"] > score["halves"]["chance"]
    shown = clocs("evaluate", run, small_store.path, "--protocol", "retrieval").stdout
    assert "chance" in shown and "random-bn" in shown


def test_embed_and_similar_take_the_file_of_a_cohort(
    run: Path, small_store: Store, tmp_path: Path
) -> None:
    names = small_store.table["patient"].unique().sort().to_list()[:3]
    file = tmp_path / "three.txt"
    file.write_text("\n".join(names), encoding="utf-8")
    out = tmp_path / "some.parquet"
    made = as_json("embed", run, small_store.path, "--cohort", file, "--out", out)
    assert made["patients"] == 3
    clocs("index", run, small_store.path, "--out", tmp_path / "index")
    found = as_json("similar", tmp_path / "index", "--patient", names[0], "--cohort", file)
    assert sorted(one["patient"] for one in found["neighbors"]) == names[1:]
    file.write_text("nobody", encoding="utf-8")
    for words in (
        ("embed", run, small_store.path, "--out", out),
        ("similar", tmp_path / "index", "--patient", names[0]),
    ):
        assert "'nobody'" in clocs(*words, "--cohort", file, code=1).stderr
