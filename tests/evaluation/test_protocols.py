"""A protocol is one module: put into the folder, Python and the command line know it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import clocs
from clocs.cli.main import Root
from clocs.errors import SettingError
from clocs.evaluation import protocols
from clocs.evaluation.protocols import EvaluationProtocol
from clocs.registry import rows_in
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint

CENTROID = '''
"""Nearest class centroid."""

from clocs.evaluation.protocols import EvaluationProtocol
from clocs.registry import Option


def predict(given, *, temperature):
    import torch  # here, so that `clocs --help` need not load it

    train, *parts = given.embeddings()
    centroids = []
    for member, rows in enumerate(given.labeled):
        x, y = train.features[member, rows], train.targets[rows].float()
        centroids.append(y.T @ x / y.sum(dim=0).clamp(min=1)[:, None])
    logits = [-torch.cdist(part.features, torch.stack(centroids)) / temperature for part in parts]
    return given.output(*logits)


CENTROID = EvaluationProtocol(
    name="centroid",
    help="distance to the mean embedding of each class",
    predict=predict,
    options=(Option("temperature", 1.0, "Divisor of the distances", minimum=0.001),),
    class_weights=False,
)
'''


@pytest.fixture
def centroid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "centroid.py").write_text(CENTROID)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(tmp_path)])
    found = rows_in(protocols.__name__, EvaluationProtocol)
    monkeypatch.setitem(protocols.PROTOCOLS, "centroid", found["centroid"])


@pytest.mark.usefixtures("centroid")
def test_a_protocol_is_added_by_one_module(checkpoint: Checkpoint, small_store: Store) -> None:
    options: dict[str, Any] = {"protocol": "centroid", "temperature": 2.0, "resamples": 0}
    found = clocs.evaluate_many([checkpoint], small_store, **options)
    assert [one.evaluation.method for one in found] == ["random-bn", "random"]
    assert np.allclose(found[0].predictions.probabilities.sum(axis=-1), 1)
    alone = clocs.evaluate(checkpoint, small_store, **options)
    assert alone.json() == found[0].evaluation.json()
    assert alone.settings == {"temperature": 2.0}
    with pytest.raises(SettingError, match="cannot weight classes"):
        clocs.evaluate(checkpoint, small_store, protocol="centroid", class_weights=True)


@pytest.mark.usefixtures("centroid")
def test_the_command_line_has_the_protocol_and_its_numbers(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    checkpoint.save(tmp_path / "seed-0.safetensors")
    words = ["evaluate", tmp_path / "seed-0.safetensors", small_store.path]
    words += ["--protocol", "centroid", "--temperature", 2, "--resamples", 0, "--json"]
    done = CliRunner().invoke(Root(), [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(done.stdout)["settings"] == {"temperature": 2.0}


def test_a_number_of_another_protocol_is_refused(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    with pytest.raises(SettingError, match="linear does not take `k`"):
        clocs.evaluate(checkpoint, small_store, k=5)
    with pytest.raises(SettingError, match="`k` must be a whole number at least 1, not 0"):
        clocs.evaluate(checkpoint, small_store, protocol="knn", k=0)
