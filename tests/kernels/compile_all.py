"""Compiles every Triton kernel for a GPU, as it is launched in training, without one.

    python tests/kernels/compile_all.py --registers

Launches are made with tensors on the CPU and replaced by compilation, for compute capability 9.0.
Prints each kernel; with --registers, which takes as long again, how many it spills to memory.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from clocs.kernels import keyed_random

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.bool: "i1",
}
LAUNCH_OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
seen: set[Any] = set()


def typed(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def compiled(fn: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **more: Any) -> None:
    """In place of a launch."""
    options = {k: more.pop(k) for k in LAUNCH_OPTIONS if k in more}
    given = dict(zip(fn.arg_names, args, strict=False)) | more
    fixed = {p.name: given[p.name] for p in fn.params if p.is_constexpr or given[p.name] is None}
    signature = {k: "constexpr" if k in fixed else typed(v) for k, v in given.items()}
    assert list(signature) == fn.arg_names, fn.__name__
    key = (fn.__name__, *signature.items(), *fixed.items(), *options.items())
    if key in seen:
        return
    seen.add(key)
    # as a launch has it: tensors begin at multiples of 16 bytes
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, t in enumerate(signature.values()) if t[0] == "*"
    }
    source = ASTSource(fn=fn, signature=signature, constexprs=fixed, attrs=aligned)
    kernel = triton.compile(source, target=TARGET, options=options)
    assert kernel.metadata.shared <= 227 * 1024, (fn.__name__, kernel.metadata.shared)
    assert max(grid[1:], default=1) <= 65535, (fn.__name__, grid)  # along y and z
    told = report(kernel.asm["ptx"]) if "--registers" in sys.argv else ""
    print(fn.__name__, fixed, options, kernel.metadata.shared, told)


def report(ptx: str) -> str:
    """Registers and bytes of memory that they spill to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [get_ptxas(TARGET.arch).path, "-v", "--gpu-name=sm_90a", path, "-o", "/dev/null"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    registers = re.search(r"Used (\d+) registers", done.stderr)
    spilled = re.search(r"(\d+) bytes spill stores", done.stderr)
    return f"registers {registers and registers[1]}, spilled {spilled and spilled[1]}"


def steps() -> None:
    from clocs.kernels import step_triton
    from clocs.training.replicas import Replicas

    fleet = Replicas.start(torch.zeros(5, 45000), torch.zeros(5, 104))
    on, loss = torch.ones(5, dtype=torch.bool), torch.zeros(5)
    state = {
        name: getattr(fleet, name)
        for name in ("theta", "moment1", "moment2", "buffers", "steps", "live", "broken")
    }
    numbers = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    given = {"gradient": fleet.theta, "after": fleet.buffers}
    step_triton.adam(numbers, on, loss, given, **state)
    order, step_keys = torch.zeros(5, 2560, dtype=torch.int64), torch.zeros(10, 5).long()
    number = torch.zeros((), dtype=torch.int64)
    step_triton.step_inputs(order, step_keys, number, 256, on, fleet.steps)


def randomness() -> None:
    from clocs.kernels.keyed_random_triton import drawn, folded

    keys = keyed_random.member_keys([1, 2, 3])
    epoch = torch.tensor(3)
    folded(keys, (keyed_random.stream("order"),))
    folded(keys, (keyed_random.stream("step"), epoch, torch.arange(9)[:, None]))
    for dtype in (torch.int64, torch.float32, torch.float64):
        drawn(keys, 1000, dtype)


def losses() -> None:
    from clocs.kernels import contrast_triton

    for shape in ((5, 2, 256, 128), (2, 4, 37, 256)):
        z = torch.zeros(shape, requires_grad=True)
        patients = torch.zeros(shape[0:3:2], dtype=torch.int64)
        contrast_triton.contrasted(z, 0.1, patients).sum().backward()
        if shape[1] == 2:  # of instances, a kernel has one group whatever the shape
            contrast_triton.contrasted(z, 0.1, None).sum().backward()
        contrast_triton.squared_distance(z[:, :2], z[:, :2].detach(), shape[2]).sum().backward()


def views() -> None:
    from clocs.kernels.windows_triton import normalized_windows, perturbed_windows
    from clocs.pretraining.batches import program
    from clocs.pretraining.methods.baselines import TASKS
    from clocs.pretraining.perturbations import parse

    flat, starts = torch.zeros(100_000, dtype=torch.int16), torch.zeros(50, 1, dtype=torch.int64)
    scale, keys = torch.ones(50, 1), keyed_random.member_keys([1, 2])
    rows = torch.zeros(2, 16, dtype=torch.int64)
    normalized_windows(flat, starts, 2500)
    methods = {("gaussian",) * 2: None, ("", *TASKS.values()): -0.5}  # SimCLR and BYOL, MT-SSL
    for names, offset in methods.items():
        made = [program(parse(name) if name else None, 2500) for name in names]
        programs = tuple(one for one in made if one is not None)
        assert len(programs) == len(names)
        table = torch.arange(len(names), dtype=torch.int32).repeat(2, 1)
        perturbed_windows(
            flat, starts, rows, scale if offset is None else None, keys, located=False,
            table=table, programs=programs, offset=offset, normalized=offset is None,
            out=torch.empty(2, 16 * len(names), 2500),
        )  # fmt: skip


def blocks() -> None:
    from clocs.kernels.layers_triton import TritonBlock, triton_block_eval

    block: Callable[..., tuple[torch.Tensor, ...]] = TritonBlock.apply
    keys = keyed_random.member_keys([1, 2])
    for length, c_in, c_out in ((2500, 1, 4), (416, 4, 16), (69, 16, 32)):
        for dtype in (torch.float32, torch.bfloat16):
            h = torch.zeros(2, 64, length, c_in, dtype=dtype, requires_grad=c_in > 1)
            weight = torch.zeros(2, 7 * c_in, c_out, requires_grad=True)
            scale = torch.zeros(2, c_out, requires_grad=True)
            block(h, weight, scale, scale, keys, 0.1, 1.0)[0].sum().backward()
            triton_block_eval(h.detach(), weight.detach(), scale.detach(), scale.detach())


def layers() -> None:
    from clocs.kernels.layers_triton import LinearReLU

    layer: Callable[..., torch.Tensor] = LinearReLU.apply
    for n, c_in, c_out in ((512, 320, 128), (512, 320, 32)):
        # the kernels of the smaller layer differ in numbers alone
        for dtype in (torch.float32, torch.bfloat16)[: 1 if c_out == 32 else 2]:
            h = torch.zeros(5, n, c_in, dtype=dtype, requires_grad=True)
            weight = torch.zeros(5, c_in, c_out, requires_grad=True)
            layer(h, weight, torch.zeros(5, c_out)).sum().backward()


if __name__ == "__main__":
    JITFunction.run = compiled
    steps()
    randomness()
    losses()
    views()
    layers()
    blocks()
