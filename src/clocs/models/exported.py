"""Exported models loaded again, each by its own runtime, as functions of arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clocs.errors import SettingError, with_extra
from clocs.models.hub_page import hub_package

EXTRA_FILE = "clocs.json"  # the facts in a program of torch
Run = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # (batch, leads, samples) -> (batch, …)


def onnx_packages() -> tuple[Any, Any]:
    """`onnx` and `onnxruntime`."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # which torch needs to write ONNX
    except ImportError as error:
        raise SettingError(
            f"ONNX needs the packages onnx, onnxscript and onnxruntime; {with_extra('onnx')}"
        ) from error
    return onnx, onnxruntime


def load_exported(path: Path, to: str) -> Run:
    """What `clocs.export` wrote, ready to run; `to` as it was given there."""
    if to == "onnx":
        _, onnxruntime = onnx_packages()
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name

        def by_onnx(x: NDArray[np.float32]) -> NDArray[np.float32]:
            made: NDArray[np.float32] = session.run(None, {name: x})[0]
            return made

        return by_onnx
    if to == "torch":
        return run_of(torch.export.load(path).module())
    hub_package()
    from clocs.models.hub import HubModel

    return run_of(HubModel.from_pretrained(path))


def run_of(module: nn.Module) -> Run:
    """A module of torch as a function of arrays."""

    @torch.no_grad()
    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        made: NDArray[np.float32] = module(torch.from_numpy(x)).numpy()
        return made

    return run
