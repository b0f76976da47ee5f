"""Hot loops in C: compiled for this CPU when first used, and cached; among them the CNN's block.

With a C compiler (`cc`, `gcc` or `clang`) the hot loops run as machine code; without one, or with
CLOCS_KERNEL=torch, `compiled_library` returns None and torch does the same work.

The block of the paper's CNN computes the same function as `layers_triton` on a GPU. One instance
stays in the processor's cache from convolution to statistics, and from d_y to the gradients;
results do not depend on the number of threads. Activations are (members, n, length, channels).
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clocs.files import cache_folder, private_cache, private_folder

KERNEL, STRIDE, POOL = 7, 3, 2
EPSILON = 1e-5
_PIECE = 16  # instances that are added up together, as in block.c
COMPILERS = ("cc", "gcc", "clang")
# Scheduling before register allocation spills registers here, and CPUs reorder by themselves.
_FLAGS = ("-O3", "-ffp-contract=fast", "-fno-schedule-insns", "-shared", "-fPIC", "-pthread")
_HERE = Path(__file__).parent
_DIGEST = hashlib.sha256().digest_size


def compiled_library(source: str, *defines: str) -> ctypes.CDLL | None:
    """`source`.c with these -D…, compiled or from the cache; None where torch must do it."""
    return None if os.environ.get("CLOCS_KERNEL") == "torch" else _library(source, *defines)


def c_struct(
    *, int64: Sequence[str], float32: Sequence[str] = (), pointers: Sequence[str]
) -> type[ctypes.Structure]:
    """A C struct of these fields, in this order."""
    kinds = (int64, ctypes.c_int64), (float32, ctypes.c_float), (pointers, ctypes.c_void_p)
    fields = [(name, kind) for names, kind in kinds for name in names]
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})


@functools.cache
def _library(source: str, *defines: str) -> ctypes.CDLL | None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    named = [f"-D{define}" for define in defines]
    files = [_HERE / f"{source}.c", *sorted(_HERE.glob("*.h"))]
    texts = [file.read_text("utf-8") for file in files]
    name = hashlib.sha256(repr((texts, _FLAGS, native, named, _processor())).encode()).hexdigest()
    path = _folder() / f"{source}-{name[:20]}.so"
    if not (_is_ours(path) and _whole(path)):
        if compiler is None:
            return None
        command = [compiler, *_FLAGS, *named, str(_HERE / f"{source}.c"), "-lm"]
        if not (_compile([*command, native], path) or _compile(command, path)):
            return None
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # a folder that forbids execution
        return None


def _compile(command: list[str], path: Path) -> bool:
    """Whether it worked; `path` is then complete, even with two processes compiling at once.

    It is this user's, and nobody else can write to it (`mkstemp` makes it so).
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        done = subprocess.run([*command, "-o", name], capture_output=True, check=False)
        if done.returncode != 0:
            return False
        # the loader ignores what follows a library; without a digest, damage could crash much later
        content = temporary.read_bytes()
        temporary.write_bytes(content + hashlib.sha256(content).digest())
        temporary.chmod(0o700)  # some linkers make a file of their own, by the umask
        temporary.replace(path)
        return True
    except OSError:
        return False
    finally:
        temporary.unlink(missing_ok=True)


def _whole(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]


def _is_ours(path: Path) -> bool:
    """Whether only this user can have written it: code of others is never loaded."""
    try:
        facts = path.lstat()
    except OSError:
        return False
    if os.name != "posix":
        return True
    link, others = stat.S_ISLNK(facts.st_mode), facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return facts.st_uid == os.geteuid() and not link and not others


def _folder() -> Path:
    """The user's cache, or where that is not theirs alone, a folder that is removed at exit."""
    try:
        cache = cache_folder()
        folder = cache / "native"
        private_cache(cache)
        private_folder(folder)
        if not _is_ours(folder):
            folder.chmod(0o700)
        # someone who can write to the cache could put another folder in place of this one, unless
        # users can remove only their own files from it, as from /tmp
        safe = _is_ours(cache.resolve()) or cache.stat().st_mode & stat.S_ISVTX
        if _is_ours(folder) and safe:
            with tempfile.TemporaryFile(dir=folder):
                return folder
    except (OSError, RuntimeError):  # read-only, another user's, or no home at all
        pass
    return _temporary_folder()


@functools.cache
def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="clocs-native-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def _processor() -> tuple[str, ...]:
    """What code for this CPU depends on: different machines may share a home folder."""
    about = [sys.platform, platform.machine()]
    try:
        first = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n")[0].splitlines()
        keep = ("model", "cpu family", "flags", "Features", "CPU part", "CPU variant")
        about += [line for line in first if line.startswith(keep)]
    except OSError:
        pass
    return tuple(about)


_Adam = c_struct(  # `Step` of adam.c
    int64=("members", "weights", "statistics", "threads"),
    float32=("lr", "beta1", "beta2", "epsilon"),
    pointers=(
        "on", "loss", "gradient", "after", "theta", "moment1", "moment2", "buffers", "steps",
        "live", "broken", "moved",
    ),
)  # fmt: skip
_Contrast = c_struct(  # as in contrast.c
    int64=("members", "pairs", "batch", "threads"),
    pointers=("similarity", "positives", "value", "slope", "scratch"),
)


_Filter = c_struct(  # as in filter.c
    int64=(
        "threads", "samples", "points", "steps", "channels", "stride", "made", "tiles",
        "out_steps", "out_channels", "relu",
    ),
    pointers=("x", "of_steps", "kernel", "of_products", "bias", "added", "scratch", "y"),
)  # fmt: skip


def _run(
    function: Callable[..., Any],
    kind: type[ctypes.Structure],
    tensors: Mapping[str, Tensor | None],
    **numbers: float,
) -> None:
    """Call a C function with the address of a struct of these numbers and tensors."""
    function(ctypes.byref(_struct(kind, tensors, **numbers)))


def _struct(
    kind: type[ctypes.Structure], tensors: Mapping[str, Tensor | None], **numbers: float
) -> ctypes.Structure:
    places = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    return kind(**{"threads": torch.get_num_threads(), **numbers}, **places)


def adam(
    numbers: dict[str, float], on: Tensor, loss: Tensor, given: dict[str, Tensor], **state: Tensor
) -> Tensor | None:
    """`Replicas.step` for `given` a gradient and the buffers after it; `state` changes in place.

    Returns (members,) bool: which moved.
    """
    theta = state["theta"]
    floats = (theta, state["moment1"], state["moment2"], state["buffers"], loss, *given.values())
    usable = theta.device.type == "cpu" and all(x.dtype == torch.float32 for x in floats)
    library = compiled_library("adam") if usable else None
    if library is None or not all(x.is_contiguous() for x in state.values()):
        return None
    moved = torch.empty_like(on)
    # kept by name until the call is over
    tensors = {k: v.contiguous() for k, v in (given | {"on": on, "loss": loss}).items()}
    tensors |= state | {"moved": moved}
    members, weights = theta.shape
    sizes = {"members": members, "weights": weights, "statistics": state["buffers"].shape[1]}
    _run(library.adam, _Adam, tensors, **sizes, **numbers)
    return moved


def contrast(similarity: Tensor, positives: Tensor) -> tuple[Tensor, Tensor] | None:
    """The contrastive loss: (members, pairs) values, and the gradient of each.

    Args:
        similarity: (members, pairs, batch, batch).
        positives: (members, batch, batch) bool.
    """
    usable = similarity.device.type == "cpu" and similarity.dtype == torch.float32
    library = compiled_library("contrast") if usable else None
    if library is None:
        return None
    members, pairs, batch, _ = similarity.shape
    threads, wide = torch.get_num_threads(), -(-batch // 4) * 4
    value, slope = similarity.new_empty(members, pairs), similarity.new_empty(similarity.shape)
    tensors = {
        "similarity": similarity.contiguous(),
        "positives": positives.contiguous(),
        "value": value,
        "slope": slope,
        "scratch": similarity.new_empty(threads, 2 * wide + 7, wide),
    }
    _run(library.contrast, _Contrast, tensors, members=members, pairs=pairs, batch=batch)
    return value, slope


def native_windows(flat: Tensor, starts: Tensor, samples: int) -> Tensor | None:
    """flat: (samples,) int16, starts: (…) -> (…, samples) float32 in [0, 1] each."""
    library = compiled_library("gather")
    if library is None or not starts.numel():
        return None
    flat, starts = flat.contiguous(), starts.contiguous()
    least, greatest = map(int, torch.aminmax(starts))
    if least < 0 or greatest > len(flat) - samples:
        raise IndexError(f"windows from {least} to {greatest} are not within {len(flat)} samples")
    out = torch.empty(*starts.shape, samples)
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (flat, starts, out))
    sizes = map(ctypes.c_int64, (starts.numel(), samples, torch.get_num_threads()))
    library.gather(*pointers, *sizes)
    return out


_Block = c_struct(  # as in block.c
    int64=("members", "n", "length", "h_stride", "threads", "threshold"),
    float32=("boost", "epsilon"),
    pointers=(
        "h", "w", "w_turned", "gamma", "beta", "keys", "y", "o", "mean", "variance", "deviation",
        "scale", "shift", "g", "dh", "dw", "dgamma", "dbeta", "sums", "parts", "scratch",
    ),
)  # fmt: skip


def convolved(length: int) -> int:
    """Steps that the kernel makes over `length` samples."""
    return (length - KERNEL) // STRIDE + 1 if length >= KERNEL else 0


def can_use_native_block(h: Tensor, weight: Tensor) -> bool:
    """Whether compiled code can compute this block: by device, type and shape alone."""
    return (
        h.device.type == "cpu"
        and h.dtype == weight.dtype == torch.float32
        and weight.shape[2] % 4 == 0
        and h.shape[1] > 0
        and convolved(h.shape[2]) >= POOL
        and _block_library(h, weight) is not None
    )


class NativeBlock(torch.autograd.Function):
    """h, weight, gamma, beta, keys, dropout -> output, batch mean, batch variance."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor,
        keys: Tensor,
        dropout: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        h, weight, keys = _packed(h), weight.contiguous(), keys.contiguous()
        members, n, length, _ = h.shape
        out, c_out = convolved(length), weight.shape[2]
        y, o = h.new_empty(members, n, out, c_out), h.new_empty(members, n, out // POOL, c_out)
        mean, variance, deviation, scale, shift = h.new_empty(5, members, c_out)
        given = {"gamma": gamma.contiguous(), "beta": beta.contiguous(), "keys": keys}
        made = {"deviation": deviation, "scale": scale, "shift": shift, "mean": mean}
        _call("forward", h, weight, dropout, y=y, o=o, variance=variance, **given, **made)
        ctx.save_for_backward(h, weight, y, o, *made.values())
        ctx.dropout = dropout
        ctx.mark_non_differentiable(mean, variance)
        return o, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        h, weight, y, o, deviation, scale, shift, mean = ctx.saved_tensors
        members, n, _, _ = h.shape
        d_weight, d_gamma, d_beta = (
            torch.empty_like(x, memory_format=torch.contiguous_format)
            for x in (weight, scale, scale)
        )
        d_h = None
        if ctx.needs_input_grad[0]:
            d_h = torch.empty_like(h, memory_format=torch.contiguous_format)
        _call(
            "backward", h, weight, ctx.dropout, y=y, o=o, deviation=deviation, scale=scale,
            shift=shift, mean=mean, g=gradients[0].contiguous(), dh=d_h, dw=d_weight,
            dgamma=d_gamma, dbeta=d_beta, w_turned=weight.transpose(1, 2).contiguous(),
            parts=y.new_empty(members, -(-n // _PIECE), *weight.shape[1:]),
        )  # fmt: skip
        return d_h, d_weight, d_gamma, d_beta, None, None


def native_block_eval(h: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The block with a given scale and shift per channel, (members, c_out) each."""
    h, weight = _packed(h), weight.contiguous()
    members, n, length, _ = h.shape
    o = h.new_empty(members, n, convolved(length) // POOL, weight.shape[2])
    _call("evaluate", h, weight, 0.0, o=o, scale=scale.contiguous(), shift=shift.contiguous())
    return o


def _call(name: str, h: Tensor, weight: Tensor, dropout: float, **tensors: Tensor | None) -> None:
    library = _block_library(h, weight)
    assert library is not None  # `can_use_native_block` has checked
    members, n, length, _ = h.shape
    c_out, threads = weight.shape[2], torch.get_num_threads()
    threshold = round(dropout * 65536)
    tensors |= {
        "h": h,
        "w": weight,
        "sums": h.new_empty(members, n, 2, c_out),
        "scratch": h.new_empty(threads, convolved(length) + 4, c_out),
    }
    sizes = {"members": members, "n": n, "length": length, "h_stride": h.stride(0)}
    dropping = {"threshold": threshold, "boost": 65536 / (65536 - threshold)}
    _run(getattr(library, name), _Block, tensors, **sizes, **dropping, epsilon=EPSILON)


def _block_library(h: Tensor, weight: Tensor) -> ctypes.CDLL | None:
    assert weight.shape[1] == KERNEL * h.shape[3] and STRIDE == 3  # as block.c has it
    return compiled_library("block", f"C_IN={h.shape[3]}", f"C_OUT={weight.shape[2]}")


def _packed(h: Tensor) -> Tensor:
    """Each member's activations contiguous; members may share them (`expand`)."""
    return h if h[0].is_contiguous() else h.contiguous()


def filter_width() -> int:
    """How many channels `filtered` computes at once; 0 where it cannot."""
    library = compiled_library("filter")
    return library.filter_width() if library else 0


def filtered(convs: Sequence[tuple[Mapping[str, Tensor], int, bool]]) -> None:
    """Convolutions of float32 on a CPU, one after another, by threads that start once.

    Args:
        convs: Of each, the tensors of `Filter` in filter.c, contiguous: x (n, steps, channels),
            kernel (points, blocks, depth, `filter_width`), bias, of_steps, of_products, perhaps
            added, and y, which is written; the stride; and whether a ReLU follows.
    """
    library, threads, most, jobs = compiled_library("filter"), torch.get_num_threads(), 0, []
    assert library is not None
    for tensors, stride, relu in convs:
        (n, steps, channels), (_, out_steps, out_channels) = tensors["x"].shape, tensors["y"].shape
        points, blocks, depth, width = tensors["kernel"].shape
        made = len(tensors["of_products"])
        numbers = {"samples": n, "points": points, "steps": steps, "channels": channels}
        numbers |= {"stride": stride, "made": made, "tiles": -(-out_steps // made)}
        numbers |= {"out_steps": out_steps, "out_channels": out_channels, "relu": relu}
        jobs.append((tensors, numbers))
        most = max(most, points * (depth + blocks * width))
    scratch = {"scratch": torch.empty(threads * library.filter_rows() * most)}
    structs = [_struct(_Filter, {**tensors, **scratch}, **numbers) for tensors, numbers in jobs]
    library.filter((_Filter * len(structs))(*structs), ctypes.c_int64(len(structs)))
