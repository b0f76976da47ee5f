"""Where compiling fails, the function itself is called."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from clocs.kernels.gpu import Compiled, is_compiled_for


def waits_for_the_host(x: Tensor) -> Tensor:
    return x + float(x.sum().item()) if float(x[0].item()) > 0 else x


def test_what_cannot_be_compiled_works_and_warns_once() -> None:
    function = Compiled(waits_for_the_host)
    x = torch.ones(2)
    with pytest.warns(UserWarning, match=r"torch.compile failed .*\(CLOCS_COMPILE=0"):
        assert torch.equal(function(x), x + 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(function(x), x + 2)


def test_memory_that_runs_out_is_not_taken_for_a_failure_of_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    function = Compiled(waits_for_the_host)
    monkeypatch.setitem(function.__dict__, "_fast", full)
    with pytest.raises(torch.OutOfMemoryError):
        function(torch.ones(2))


def test_on_a_cpu_nothing_is_compiled() -> None:
    assert not is_compiled_for(torch.ones(2))


@pytest.mark.gpu
def test_on_a_gpu_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, device="cuda")
    monkeypatch.delenv("CLOCS_COMPILE", raising=False)
    assert is_compiled_for(x)
    assert not is_compiled_for(x.double())
    monkeypatch.setenv("CLOCS_COMPILE", "0")
    assert not is_compiled_for(x)
