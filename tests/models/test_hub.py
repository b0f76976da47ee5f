"""Models in Hugging Face's layout: saved to a folder, pushed to a hub, and loaded from both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard, constants
from safetensors.torch import load_file, save_file

import clocs
from clocs import Checkpoint, Frames, Store
from clocs.errors import CheckpointError
from clocs.frames.make import make_frames
from clocs.models.classifier import Classifier
from clocs.models.hub import HubModel, hub_model
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.recording import FrameSpec
from hub_server import Hub, running_hub
from some_classifier import some_classifier
from tiny_leads import many_lead_checkpoints, tiny_leads

Model = Checkpoint | Classifier


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    return make_frames(small_store, spec=FrameSpec(2.5, 400))


@pytest.fixture(params=["encoder", "classifier"])
def model(request: pytest.FixtureRequest, frames: Frames) -> Iterator[Model]:
    """An encoder of many leads, or a classifier on two encoders of one."""
    with tiny_leads():
        if request.param == "encoder":
            yield many_lead_checkpoints(frames, (0,))[0]
        else:
            plan = Plan("random", (0, 1), encoder="cnn", embedding_dim=12)
            yield some_classifier(*untrained(frames, plan))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """As HF_ENDPOINT would choose it, before `huggingface_hub` is imported."""
    with running_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield server


def expect_same(found: HubModel, model: Model) -> None:
    module = model.to_module()
    x = torch.randn(3, len(module.leads) or 2, 900)
    with torch.no_grad():
        assert torch.equal(found(x), module(x))
    assert not found.training


def test_a_folder_is_loaded_as_it_was_saved(model: Model, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    clocs.export(model, to="hub", out=folder)
    assert {one.name for one in folder.iterdir()} == {
        "config.json", "model.safetensors", "README.md",
    }  # fmt: skip
    expect_same(HubModel.from_pretrained(folder), model)
    config = json.loads((folder / "config.json").read_text())
    assert config["rate"] == 160 and config["unit"] == "mV"
    assert config["kind"] == ("classifier" if isinstance(model, Classifier) else "encoder")
    assert "recordings" not in load_file(folder / "model.safetensors")


def test_what_was_written_is_compared_with_the_package(
    model: Model, tmp_path: Path, small_store: Store
) -> None:
    found = clocs.export(model, to="hub", out=tmp_path / "model", check=small_store)
    assert found is not None and found.recordings == len(small_store)
    assert found.to_module == 0 and found.to_package < 1e-5


def test_the_page_is_a_model_card_of_the_hub(model: Model, tmp_path: Path) -> None:
    clocs.export(model, to="hub", out=tmp_path)
    page = ModelCard.load(tmp_path / "README.md")
    assert page.data.library_name == "clocs" and "ecg" in page.data.tags
    assert "identify a person" in page.text and "HubModel.from_pretrained" in page.text
    if isinstance(model, Classifier):
        assert page.data.license == "cc-by-4.0" and page.data.metrics == ["roc_auc"]
        (score,) = page.data.eval_results
        assert (score.metric_value, score.dataset_name) == (0.9, "synthetic")
        assert page.text.strip().startswith("# rhythm-test")
        assert "AF, N, O" in page.text and "0.900" in page.text


def test_the_page_of_an_older_model_in_the_folder_is_written_anew(
    model: Model, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("# Another model")
    clocs.export(model, to="hub", out=tmp_path)
    assert "# Another model" not in (tmp_path / "README.md").read_text()
    assert ModelCard.load(tmp_path / "README.md").data.library_name == "clocs"


def test_a_model_is_pushed_to_a_hub_and_loaded_from_it(
    model: Model, hub: Hub, tmp_path: Path
) -> None:
    address = hub_model(model).push_to_hub("me/ecg-model", token="hf_secret")
    assert str(address).startswith(f"{hub.address}/me/ecg-model")
    assert hub.models["me/ecg-model"].keys() >= {"config.json", "model.safetensors", "README.md"}
    assert hub.tokens == {"Bearer hf_secret"}
    assert len(hub.objects) == 1  # the weights
    expect_same(HubModel.from_pretrained("me/ecg-model", cache_dir=tmp_path), model)


def test_a_trained_module_is_saved_with_what_it_learned(model: Model, tmp_path: Path) -> None:
    own = hub_model(model)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(0.01)
    own.save_pretrained(tmp_path / "model")
    again = HubModel.from_pretrained(tmp_path / "model")
    state = own.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())


def test_a_strangers_files_can_be_wrong_but_say_so(model: Model, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"me/nothing has no config\.json of clocs"):
        HubModel.from_pretrained("me/nothing", cache_dir=tmp_path / "cache")
    folder = tmp_path / "model"
    clocs.export(model, to="hub", out=folder)
    weights = load_file(folder / "model.safetensors")
    save_file(dict(list(weights.items())[:-1]), folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"does not hold this model .*; copy it again"):
        HubModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")  # a pickle, which is never read
    with pytest.raises(CheckpointError, match="does not hold this model"):
        HubModel.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    encoder = config["card"]["encoders"][0] if "encoders" in config["card"] else config["card"]
    encoder["encoder"]["embedding_dim"] = 10**12
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config\.json describes no model of clocs"):
        HubModel.from_pretrained(folder)
