"""A method is one module: adding the file adds it everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import clocs
from clocs import Store
from clocs.cli.main import root_command
from clocs.errors import SettingError
from clocs.pretraining import Method, methods
from clocs.pretraining.methods import METHODS
from clocs.registry import rows_in
from clocs.training.checkpoint import load_checkpoint
from clocs.training.loop import Epoch

ADDED = Path(__file__).parent / "added_methods"
QUICK = ("--epochs", "2", "--batch-size", "32", "--embedding-dim", "8")


@pytest.fixture
def vicreg(monkeypatch: pytest.MonkeyPatch) -> Iterator[Method]:
    """The row of a module that lies in the folder of methods."""
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(ADDED)])
    rows = rows_in(methods.__name__, Method)
    assert set(rows) == {*METHODS, "vicreg"}
    monkeypatch.setitem(METHODS, "vicreg", rows["vicreg"])
    yield rows["vicreg"]
    del sys.modules[f"{methods.__name__}.vicreg"]


def test_an_added_method_trains_resumes_and_is_evaluated(
    vicreg: Method, small_store: Store, tmp_path: Path
) -> None:
    def interrupt(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    def train(folder: str, **more: Any) -> clocs.Checkpoint:
        return clocs.pretrain(
            small_store, method="vicreg", covariance=0.1, out=tmp_path / folder, epochs=3,
            batch_size=32, embedding_dim=8, lr=1e-3, save_every=0, **more,
        )[0]  # fmt: skip

    with pytest.raises(KeyboardInterrupt):
        train("stopped", on_epoch=interrupt)
    resumed, whole = train("stopped", resume=True), train("whole")
    assert resumed.fingerprint == whole.fingerprint
    card = load_checkpoint(tmp_path / "whole").card
    assert card.method == "vicreg"
    assert {"variance": 1.0, "covariance": 0.1}.items() <= card.training.items()
    scores = clocs.evaluate(tmp_path / "whole", small_store, resamples=5)
    assert 0 <= scores.auc[0] <= 1


def test_an_added_method_refuses_options_and_leads_as_any_other(
    vicreg: Method, small_store: Store, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match="vicreg does not take `tau_d`; it has "
                       "`variance`, `covariance`"):  # fmt: skip
        clocs.pretrain(small_store, method="vicreg", tau_d=0.9, out=tmp_path / "run")
    with pytest.raises(SettingError, match="`covariance` must be a number at least 0"):
        clocs.pretrain(small_store, method="vicreg", covariance=-1, out=tmp_path / "run")
    with pytest.raises(SettingError, match="at least two `leads`"):
        clocs.pretrain(small_store, method="vicreg", leads=["II"], out=tmp_path / "run")


def test_the_command_line_has_the_options_of_an_added_method(
    vicreg: Method, small_store: Store, tmp_path: Path
) -> None:
    app, run = root_command(), CliRunner().invoke
    shown = " ".join(run(app, ["pretrain", "--help"]).output.split())
    assert "--variance NUMBER Weight of the variance term. Default: 1." in shown
    given = [
        "pretrain",
        str(small_store.path),
        "--out",
        str(tmp_path / "run"),
        "--method",
        "vicreg",
        *QUICK,
    ]
    done = run(app, [*given, "--covariance", "0.2", "--leads", "II,V2"])
    assert done.exit_code == 0, done.output
    assert (
        f"Next: clocs evaluate {tmp_path / 'run'} {small_store.path} --leads II,V2" in done.output
    )
    card = load_checkpoint(tmp_path / "run").card
    assert (card.training["covariance"], card.leads) == (0.2, ("II", "V2"))
    refused = run(app, [*given, "--tau-d", "0.5"])
    assert isinstance(refused.exception, SettingError)


def test_the_docs_show_the_module_that_is_tested() -> None:
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "extending.md").read_text(encoding="utf-8")
    assert (ADDED / "vicreg.py").read_text(encoding="utf-8") in page


def test_the_overview_lists_every_method() -> None:
    listed = re.findall(r"^\| ([a-z][a-z-]*) +\|", methods.__doc__ or "", re.MULTILINE)
    assert {*listed} == {"method", *METHODS}


def test_the_options_of_all_methods_are_listed_without_torch() -> None:
    code = (
        "import sys\n"
        "from clocs.cli.main import root_command\n"
        "root_command()\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
