"""Tests of Triton kernels run on a GPU (`-m gpu`), and without one in Triton's interpreter."""

from __future__ import annotations

import os

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
