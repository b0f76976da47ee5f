"""Every Triton kernel compiles for a GPU; none is needed for that."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_every_kernel_compiles_as_it_is_launched() -> None:
    pytest.importorskip("triton", reason="needs triton: pip install triton")
    # the interpreter's kernels cannot be compiled, so not in this process
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_all.py")
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    compiled = {line.split()[0] for line in done.stdout.splitlines()}
    sources = (Path(__file__).parents[2] / "src" / "clocs").rglob("*triton*.py")
    text = "\n".join(path.read_text("utf-8") for path in sources)
    kernels = set(re.findall(r"@triton\.jit.*\ndef (\w+)", text))
    launched = {name for name in kernels if re.search(rf"\b{name}\[.*\]\(", text)}
    assert launched <= compiled
