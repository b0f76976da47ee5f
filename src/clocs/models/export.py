"""`clocs.export`: a model for other programs, in ONNX, as a program of torch, or for a hub.

What was written is loaded again, each by its own runtime, and compared with this package.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.fx.experimental import _config

from clocs.errors import ClocsError, SettingError, needing
from clocs.files import PUBLIC, write_atomic
from clocs.models.classifier import Classifier, first_encoder, load
from clocs.models.explain import module_input
from clocs.models.model_card import EMBEDDING, INPUT, PROBABILITIES, export_facts
from clocs.models.predict import predict_recordings
from clocs.patients.embed import embed_recordings
from clocs.recording import Recording, with_derived
from clocs.store.store import Store, as_store
from clocs.training.card import SHIPPED
from clocs.training.checkpoint import Checkpoint, RecordingModule, mean_direction

AXES = ("batch", "leads", "samples")  # names of the input's axes in the files
SUFFIXES = {"onnx": ".onnx", "onnx-int8": ".onnx", "torch": ".pt2", "hub": ""}
EXTRA_FILE = "clocs.json"  # the facts in a program of torch
MAX_RECORDINGS = 200  # of a store, evenly spread, to compare on
Run = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # (batch, leads, samples) -> (batch, …)


@dataclass(frozen=True)
class Difference:
    """Greatest absolute differences, over all numbers of all recordings compared.

    Attributes:
        recordings: How many were compared.
        to_module: Between the exported model, in its own runtime, and `to_module()`.
        to_package: Between the exported model and this package's embedding or prediction.
    """

    recordings: int
    to_module: float
    to_package: float


def export(
    model: Checkpoint | Classifier | Path | str,
    *,
    to: str,
    out: Path | str,
    level: Literal["recording", "frame"] = "recording",
    check: Store | Path | str | None = None,
) -> Difference | None:
    """Write a model for other programs: raw mV in, embeddings or calibrated probabilities out.

    Batch and length are free; cutting into frames and normalization are inside. A receiver brings
    signals in mV, at the model's rate, with its leads.

    Args:
        model: An encoder or a classifier, its file, or the name of a shipped one.
        to: 'onnx', one file; 'onnx-int8', the same with weights of 8 bits, a quarter as large;
            'torch', one file for `torch.export.load`; or 'hub', a folder in the layout of Hugging
            Face.
        out: The file (NAME.onnx, NAME.pt2) or folder to write.
        level: What a vector of an encoder represents: a 'recording', or a 'frame' (in one lead, or
            in all leads where it sees many at once), as its own output, for `clocs evaluate`.
        check: A store: what was written is loaded again and compared on its recordings.

    Returns:
        With `check`, the greatest difference.
    """
    if to not in SUFFIXES:
        raise SettingError(f"`to` is {to!r}; choose one of {', '.join(SUFFIXES)}")
    path = Path(out)
    if path.suffix != SUFFIXES[to] and to != "hub":
        raise SettingError(f"`out` is {path}; give a name that ends in {SUFFIXES[to]}")
    if to == "hub" and path.exists() and not path.is_dir():
        raise SettingError(f"`out` is {path}, which is a file; give a folder")
    loaded = model if isinstance(model, Checkpoint | Classifier) else load(model)
    store = None if check is None else as_store(check)
    if level != "recording" and (level != "frame" or to == "hub" or isinstance(loaded, Classifier)):
        raise SettingError(
            f"`level` is {level!r}; an encoder is written to ONNX or torch with 'recording' or "
            "'frame', a classifier and a model for a hub without `level`"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    name = model if isinstance(model, str) and model in SHIPPED else None
    if to == "hub":
        _hub().hub_model(loaded, name).save_pretrained(path)
    else:
        facts = export_facts(loaded, name, level)
        write = {"onnx": _onnx_file, "onnx-int8": _int8_file, "torch": _torch_file}[to]
        module = loaded.to_module(level) if isinstance(loaded, Checkpoint) else loaded.to_module()
        write_atomic(path, write(module, facts), mode=PUBLIC)
    return None if store is None else difference(loaded, path, to, store)


def traced(module: RecordingModule) -> ExportedProgram:
    """The module as one graph for any batch and any length of at least one frame.

    Where each lead is seen by itself, also for any number of leads.
    """
    least = dict(zip(AXES, (1, 1, module.samples), strict=True))
    free = {
        axis: Dim(name, min=least[name])
        for axis, name in enumerate(AXES)
        if name != "leads" or not module.leads
    }
    example = torch.zeros(2, len(module.leads) or 2, 2 * module.samples + 1)
    # sizes of 1 are not to be special cases, and the graph checks no sizes itself
    tracing: Any = _config
    with tracing.patch(backed_size_oblivious=True):
        made = torch.export.export(
            module.eval(),
            (example,),
            dynamic_shapes=(free,),
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    for part in made.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of this machine, which exports carry along
    return made


def _torch_file(module: RecordingModule, facts: dict[str, Any]) -> bytes:
    content, about = io.BytesIO(), json.dumps(facts, indent=2, ensure_ascii=False)
    torch.export.save(traced(module), content, extra_files={EXTRA_FILE: about})
    return content.getvalue()


def _onnx_file(module: RecordingModule, facts: dict[str, Any]) -> bytes:
    onnx, _ = _onnx_packages()
    program = traced(module)
    output = EMBEDDING if facts["kind"] == "encoder" else PROBABILITIES
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)  # it warns of packages for images
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
            made: Any = torch.onnx.export(
                program,
                (),
                dynamo=True,
                verbose=False,
                input_names=[INPUT],
                output_names=[output],
            )
    finally:
        registry.setLevel(level)
    proto = made.model_proto
    del proto.graph.value_info[:]  # sizes of tensors inside, by the tracer's names for axes
    for value in (*proto.graph.input, *proto.graph.output):
        axes = AXES if value.name == INPUT else ("batch", "views")
        for axis, size in zip(axes, value.type.tensor_type.shape.dim, strict=False):
            if size.dim_param:
                size.dim_param = axis
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in facts.items()
    }
    onnx.helper.set_model_props(proto, texts)
    proto.producer_name, proto.producer_version = "clocs", facts["clocs"]
    proto.doc_string = f"{facts['input']}. {facts['output']}. {facts['notice']}"
    onnx.checker.check_model(proto, full_check=True)
    content: bytes = proto.SerializeToString()
    return content


def _int8_file(module: RecordingModule, facts: dict[str, Any]) -> bytes:
    """Weights of convolutions and linear layers in 8 bits, with one scale per channel.

    What the layers read is brought to 8 bits as they run, with a scale of each batch, so that no
    recordings are needed to choose scales beforehand.
    """
    content = _onnx_file(module, facts | {"weights": "int8"})
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with TemporaryDirectory() as folder:
        floats, made = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        floats.write_bytes(content)
        logging.disable(logging.WARNING)  # advice about pictures, by the root logger
        try:
            quantize_dynamic(floats, made, per_channel=True, weight_type=QuantType.QInt8)
        finally:
            logging.disable(logging.NOTSET)
        return made.read_bytes()


def _onnx_packages() -> tuple[Any, Any]:
    """`onnx` and `onnxruntime`."""
    with needing("ONNX needs onnx, onnxscript and onnxruntime", "onnx"):
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # which torch needs to write ONNX
    return onnx, onnxruntime


def _hub() -> Any:
    """`clocs.models.hub`, which needs a package."""
    with needing("a model for a hub needs the package huggingface_hub", "huggingface"):
        import huggingface_hub  # noqa: F401
    from clocs.models import hub

    return hub


def load_exported(path: Path, to: str) -> Run:
    """What `clocs.export` wrote, ready to run; `to` as it was given there."""
    if to == "torch":
        return _run_of(torch.export.load(path).module())
    if to == "hub":
        return _run_of(_hub().HubModel.from_pretrained(path))
    _, onnxruntime = _onnx_packages()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def by_onnx(x: NDArray[np.float32]) -> NDArray[np.float32]:
        made: NDArray[np.float32] = session.run(None, {name: x})[0]
        return made

    return by_onnx


def _run_of(module: nn.Module) -> Run:
    """A module of torch as a function of arrays."""

    @torch.no_grad()
    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        made: NDArray[np.float32] = module(torch.from_numpy(x)).numpy()
        return made

    return run


def difference(
    model: Checkpoint | Classifier, path: Path, to: str, store: Store, *, most: int = MAX_RECORDINGS
) -> Difference:
    """Run an exported model, its module and this package on recordings of a store.

    Args:
        model: What was exported.
        path: Where to.
        to: In which format.
        store: Recordings; those too short or without the leads are left out.
        most: How many, evenly spread over the store.
    """
    encoder = first_encoder(model)
    leads: Sequence[str] | None = None  # of a store with none of an encoder's leads, its own
    known = encoder.encoder.leads or set(with_derived(store.leads)) & set(encoder.card.leads)
    if isinstance(model, Checkpoint) and not known:
        leads = store.leads
    places = np.linspace(0, len(store) - 1, min(most, len(store))).round().astype(int)
    used: list[Recording] = []
    inputs = []
    for place in np.unique(places).tolist():
        one = store.recording(place)
        try:
            inputs.append(module_input(encoder, one, leads))
            used.append(one)
        except ClocsError:
            continue
    if not used:
        raise SettingError("no recording of this store has a frame of the model's leads")
    exported, module = load_exported(path, to), _run_of(model.to_module())
    maxima = first_encoder(model).card.maxima
    each = [(_of_recording(exported(x[None]), maxima)[0], module(x[None])[0]) for x in inputs]
    found, expected = (np.stack(some) for some in zip(*each, strict=True))
    package = _by_package(model, used, leads)
    return Difference(
        len(used), float(np.abs(found - expected).max()), float(np.abs(found - package).max())
    )


def _of_recording(made: NDArray[np.float32], maxima: Sequence[int]) -> NDArray[np.float32]:
    """(batch, dim), also where a model was written at the level 'frame': (batch, views, dim)."""
    if made.ndim == 2:
        return made
    views = torch.from_numpy(made)
    mean = mean_direction(views.nan_to_num(), ~views[..., 0].isnan(), maxima)
    return np.asarray(mean)


def _by_package(
    model: Checkpoint | Classifier, recordings: Sequence[Recording], leads: Sequence[str] | None
) -> NDArray[np.float32]:
    """(recordings, …) embeddings, or probabilities of classes."""
    if isinstance(model, Classifier):
        table = predict_recordings(model, recordings)
        return table.select(f"p({label})" for label in model.card.labels).to_numpy()
    embedded = embed_recordings(model, recordings, level="recording", leads=leads)
    rows = dict(zip(embedded.rows["recording"], embedded.vectors, strict=True))
    nothing = np.zeros(model.encoder.embedding_dim, np.float32)  # all its vectors are zero
    return np.stack([rows.get(one.id, nothing) for one in recordings])
