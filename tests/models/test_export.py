"""`clocs.export`: the same numbers from ONNX and from a program of torch."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

import clocs
from clocs import Checkpoint, Frames, Store
from clocs.errors import SettingError
from clocs.frames.make import make_frames
from clocs.models.classifier import Classifier
from clocs.models.export import Run, _run_of, difference, load_exported, traced
from clocs.models.model_card import export_facts
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.recording import FrameSpec
from some_classifier import some_classifier
from tiny_leads import fewer_stages, tiny_leads

SUFFIX = {"onnx": ".onnx", "torch": ".pt2"}
Model = Checkpoint | Classifier


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    return make_frames(small_store, spec=FrameSpec(5.0, 400))


@dataclass(frozen=True)
class Both:
    """A model, exported to ONNX and to torch."""

    model: Model
    files: dict[str, Path]
    runs: dict[str, Run]


@pytest.fixture(scope="module", params=["classifier of cnn", "multilead"])
def written(
    request: pytest.FixtureRequest, frames: Frames, tmp_path_factory: pytest.TempPathFactory
) -> Both:
    """Of one lead at a time and of many, a classifier and an encoder; traced once."""
    with fewer_stages():
        return write(request.param, frames, tmp_path_factory)


@pytest.fixture
def exported(written: Both) -> Iterator[Both]:
    with fewer_stages():
        yield written


def write(kind: str, frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Both:
    model: Model
    if kind == "multilead":
        model = untrained(frames, Plan("random", encoder="multilead", embedding_dim=12))[0]
    else:
        model = some_classifier(
            *untrained(frames, Plan("random", (0, 1), encoder="cnn", embedding_dim=12)),
            multilabel=True,
        )
    program = traced(model.to_module())
    files = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clocs.models.export.traced", lambda module: program)
        for to, suffix in SUFFIX.items():
            files[to] = tmp_path_factory.mktemp(to) / f"model{suffix}"
            clocs.export(model, to=to, out=files[to])
    return Both(model, files, {to: load_exported(path, to) for to, path in files.items()})


def some_ecgs(leads: int, batch: int, samples: int) -> NDArray[np.float32]:
    """The first with a gap, the last with a flat lead."""
    x = np.random.default_rng(batch).normal(size=(batch, leads, samples)).astype(np.float32)
    x[0, 0, 7] = np.nan
    x[-1, -1] = 0.3
    return x


@pytest.mark.parametrize("to", SUFFIX)
def test_any_batch_and_length_gives_what_torch_gives(exported: Both, to: str) -> None:
    module, run = exported.model.to_module(), exported.runs[to]
    leads = [len(module.leads)] if module.leads else [2, 3, 12]
    for lead, (batch, samples) in zip(
        leads * 4, [(1, 400), (3, 400), (1, 1999), (5, 1200)], strict=False
    ):
        x = some_ecgs(lead, batch, samples)
        with torch.no_grad():
            expected = module(torch.from_numpy(x)).numpy()
        found = run(x)
        assert found.shape == expected.shape and np.isfinite(expected).all()
        assert np.abs(found - expected).max() < 1e-5
    assert np.isnan(run(np.full_like(x, np.nan))).all()


def test_what_was_written_gives_what_the_package_gives(exported: Both, small_store: Store) -> None:
    found = difference(exported.model, exported.files["onnx"], "onnx", small_store, most=6)
    assert found.recordings == 6
    assert found.to_module < 1e-5 and found.to_package < 1e-5


def test_a_check_pools_frames_as_predictions_do(
    frames: Frames, small_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fewer_stages(8):
        encoder = untrained(frames, Plan("random", encoder="voltage", embedding_dim=80))[0]
        assert encoder.card.maxima
        classifier = some_classifier(encoder)
        module = classifier.to_module()
        monkeypatch.setattr("clocs.models.export.load_exported", lambda path, to: _run_of(module))
        found = difference(classifier, Path("model.onnx"), "onnx", small_store, most=6)
    assert found.recordings == 6 and found.to_package < 1e-5


def test_weights_of_8_bits_give_nearly_the_same_from_a_quarter_of_the_bytes(
    small: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "int8.onnx"
    clocs.export(small, to="onnx-int8", out=file)
    # That of 32 bits is within 1e-5: see above.
    found = difference(small, file, "onnx", small_store, most=8)
    assert 1e-5 < found.to_package < 0.05
    kinds = {one.data_type for one in onnx.load(file).graph.initializer}
    assert onnx.TensorProto.INT8 in kinds
    session = onnxruntime.InferenceSession(file)
    assert session.get_modelmeta().custom_metadata_map["weights"] == "int8"


def test_the_facts_are_in_the_file(exported: Both) -> None:
    model, path = exported.model, exported.files["onnx"]
    expected = json.loads(json.dumps(export_facts(model)))
    with zipfile.ZipFile(exported.files["torch"]) as archive:
        name = next(one for one in archive.namelist() if one.endswith("clocs.json"))
        assert json.loads(archive.read(name)) == expected
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    assert list(path.parent.iterdir()) == [path]  # one file
    session = onnxruntime.InferenceSession(path)
    facts = session.get_modelmeta().custom_metadata_map
    assert facts.keys() == expected.keys()
    assert float(facts["rate"]) == 80 and json.loads(facts["frame_samples"]) == 400
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    if isinstance(model, Classifier):
        assert json.loads(facts["labels"]) == ["AF", "N", "O"]
        assert json.loads(facts["thresholds"]) == [0.4, None, 0.5]
        assert given.shape == ["batch", "leads", "samples"]
        assert (made.name, made.shape) == ("probabilities", ["batch", 3])
    else:
        assert json.loads(facts["leads"]) == ["II", "V2", "aVL", "aVR"]
        assert given.shape == ["batch", 4, "samples"]
        assert (made.name, made.shape) == ("embedding", ["batch", 12])
    assert given.name == "ecg" and "identify a person" in facts["notice"]


def test_a_file_carries_the_license_and_citation_of_its_data() -> None:
    for name in ("cmsc-chapman", "rhythm-chapman"):
        facts = export_facts(clocs.load(name))
        assert "CC BY 4.0" in facts["license"] and "Zheng" in facts["citation"]
    assert facts["meanings"]["AFIB"] == "Atrial fibrillation or flutter"


@pytest.fixture
def small(frames: Frames) -> Iterator[Checkpoint]:
    with tiny_leads() as name:
        yield untrained(frames, Plan("random", encoder=name, embedding_dim=4))[0]


def test_what_cannot_be_written_is_said_first(small: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match="`to` is 'tflite'; choose one of onnx, onnx-int8, torch, hub"
    ):
        clocs.export(small, to="tflite", out=tmp_path / "x")
    with pytest.raises(SettingError, match=r"`out` is .*x; give a name that ends in \.onnx"):
        clocs.export(small, to="onnx", out=tmp_path / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="is a file; give a folder"):
        clocs.export(small, to="hub", out=tmp_path / "file")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript", "huggingface_hub"])
def test_a_missing_package_is_named(
    package: str, small: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    to = "hub" if package == "huggingface_hub" else "onnx"
    with pytest.raises(
        SettingError, match=rf"pip install '\.\[{'onnx' if to == 'onnx' else 'huggingface'}\]"
    ):
        clocs.export(small, to=to, out=tmp_path / ("x.onnx" if to == "onnx" else "x"))
    assert not list(tmp_path.iterdir())
