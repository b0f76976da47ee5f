"""`clocs.export`: a model for other programs, in ONNX, as a program of torch, or for a hub."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.fx.experimental import _config

from clocs.errors import SettingError
from clocs.files import PUBLIC, write_atomic
from clocs.models.classifier import Classifier, load
from clocs.models.export_check import Difference, difference
from clocs.models.export_facts import INPUT, as_texts, export_facts, output_name
from clocs.models.exported import EXTRA_FILE, onnx_packages
from clocs.models.hub_page import hub_package
from clocs.store.store import Store, as_store
from clocs.training.card import SHIPPED
from clocs.training.checkpoint import Checkpoint, RecordingModule

AXES = ("batch", "leads", "samples")  # names of the input's axes in the files


@dataclass(frozen=True)
class Exported:
    """What `clocs.export` has written.

    Attributes:
        path: The file; for a hub, the folder.
        difference: Between what was written and this package; None where it was not compared.
    """

    path: Path
    difference: Difference | None = None


def export(
    model: Checkpoint | Classifier | Path | str,
    *,
    to: str,
    out: Path | str,
    check: Store | Path | str | None = None,
) -> Exported:
    """Write a model for other programs: raw mV in, embeddings or calibrated probabilities out.

    Batch and length are free; cutting into frames and normalization are inside. A receiver brings
    signals in mV, at the model's rate, with its leads.

    Args:
        model: An encoder or a classifier, its file, or the name of a shipped one.
        to: 'onnx', one file; 'torch', one file for `torch.export.load`; or 'hub', a folder in the
            layout of Hugging Face.
        out: The file (….onnx, ….pt2) or folder to write.
        check: A store: what was written is loaded again and compared on its recordings.

    Returns:
        Where it is and, with `check`, the greatest difference.
    """
    if to not in FORMATS:
        raise SettingError(f"`to` is {to!r}; choose one of {', '.join(FORMATS)}")
    suffix, write = FORMATS[to]
    path = Path(out)
    if path.suffix != suffix and suffix:
        raise SettingError(f"`out` is {path}; give a name that ends in {suffix}")
    if not suffix and path.exists() and not path.is_dir():
        raise SettingError(f"`out` is {path}, which is a file; give a folder")
    loaded = model if isinstance(model, Checkpoint | Classifier) else load(model)
    store = None if check is None else as_store(check)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(loaded, path, model if isinstance(model, str) and model in SHIPPED else None)
    return Exported(path, None if store is None else difference(loaded, path, to, store))


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


def _to_torch(model: Checkpoint | Classifier, path: Path, name: str | None) -> None:
    content = io.BytesIO()
    facts = json.dumps(export_facts(model, name), indent=2, ensure_ascii=False)
    program = traced(model.to_module())
    torch.export.save(program, content, extra_files={EXTRA_FILE: facts})
    write_atomic(path, content.getvalue(), mode=PUBLIC)


def _to_onnx(model: Checkpoint | Classifier, path: Path, name: str | None) -> None:
    onnx, _ = onnx_packages()
    program = traced(model.to_module())
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
                output_names=[output_name(model)],
            )
    finally:
        registry.setLevel(level)
    proto = made.model_proto
    del proto.graph.value_info[:]  # sizes of tensors inside, by the tracer's names for axes
    for value in (*proto.graph.input, *proto.graph.output):
        for axis, size in zip(AXES, value.type.tensor_type.shape.dim, strict=False):
            if size.dim_param:
                size.dim_param = axis
    facts = export_facts(model, name)
    onnx.helper.set_model_props(proto, as_texts(facts))
    proto.producer_name, proto.producer_version = "clocs", facts["clocs"]
    proto.doc_string = f"{facts['input']}. {facts['output']}. {facts['notice']}"
    onnx.checker.check_model(proto, full_check=True)
    write_atomic(path, proto.SerializeToString(), mode=PUBLIC)


def _to_hub(model: Checkpoint | Classifier, path: Path, name: str | None) -> None:
    hub_package()
    from clocs.models.hub import hub_model

    hub_model(model, name).save_pretrained(path)


_Write: TypeAlias = Callable[[Checkpoint | Classifier, Path, str | None], None]

FORMATS: dict[str, tuple[str, _Write]] = {  # with the suffix of the file
    "onnx": (".onnx", _to_onnx),
    "torch": (".pt2", _to_torch),
    "hub": ("", _to_hub),
}
