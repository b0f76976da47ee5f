"""Tests of Triton kernels run on a GPU (`-m gpu`), and without one in Triton's interpreter."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, by whichever test

ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
INTERPRETED = pytest.param("cpu", id="interpreter")


@pytest.fixture(scope="module", params=[INTERPRETED, ON_GPU])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the kernels run: skipped by name where they cannot."""
    pytest.importorskip("triton", reason="needs triton: pip install triton")
    kind = str(request.param)
    if kind == "cpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU: script/test -m gpu runs the kernels on it")
    return torch.device(kind)


@pytest.fixture(scope="session", autouse=True)
def scalars_are_numbers() -> None:
    """In the interpreter they are arrays of one element, which numpy 2.4 does not take as such."""
    if find_spec("triton") is None or torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched
