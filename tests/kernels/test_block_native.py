"""The compiled block against the plain one; all claims need a C compiler but the last ones."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clocs.encoders.cnn import CNN, block_implementation, conv_block, conv_block_eval
from clocs.kernels import keyed_random, native
from clocs.kernels.native import NativeBlock, native_windows
from clocs.training.signals import min_max
from plain_block import plain_block

CPU = torch.device("cpu")
SHAPES = [(1, 4), (4, 16), (16, 32)]

compiled_block: Callable[..., tuple[Tensor, ...]] = NativeBlock.apply

needs_a_compiler = pytest.mark.skipif(
    block_implementation(CPU) != "native", reason="needs a C compiler (cc, gcc or clang)"
)


def inputs(length: int, c_in: int, c_out: int, n: int, members: int) -> list[Tensor]:
    torch.manual_seed(length)
    shapes = (members, n, length, c_in), (members, 7 * c_in, c_out), (members, c_out)
    sizes = zip((*shapes, shapes[-1]), (1.0, 0.3, 1.0, 1.0), strict=True)
    return [(torch.randn(shape) * size).requires_grad_() for shape, size in sizes]


def with_gradients(
    block: Callable[..., tuple[Tensor, ...]], given: list[Tensor], *more: object
) -> list[Tensor]:
    """Output, statistics and the gradients of a weighted sum of the output."""
    made = block(*given, *more)
    torch.manual_seed(1)
    weight = torch.randn(made[0].shape).to(made[0].dtype)
    gradients = torch.autograd.grad((made[0] * weight).sum(), given)
    return [x.detach() for x in (*made, *gradients)]


@needs_a_compiler
@given(
    length=st.integers(10, 120),
    shape=st.sampled_from(SHAPES),
    n=st.integers(1, 40),
    members=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_the_compiled_block_and_its_gradient_equal_the_plain_one(
    length: int, shape: tuple[int, int], n: int, members: int
) -> None:
    single = inputs(length, *shape, n, members)
    if n * ((length - 7) // 3 + 1) < 4:
        return  # so few numbers that batch norm amplifies their rounding
    double = [x.detach().double().requires_grad_() for x in single]
    native_ones = with_gradients(compiled_block, single, keyed_random.member_keys([0]), 0.0)
    for a, b in zip(native_ones, with_gradients(plain_block, double), strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-3, atol=2e-4 * float(b.abs().max()))


@needs_a_compiler
@pytest.mark.parametrize("shape", SHAPES)
def test_long_frames_agree_to_a_few_units_in_the_last_place(shape: tuple[int, int]) -> None:
    single = inputs(2500, *shape, 5, 2)
    double = [x.detach().double().requires_grad_() for x in single]
    ours = with_gradients(compiled_block, single, keyed_random.member_keys([0, 1]), 0.0)
    theirs = with_gradients(plain_block, double)
    sizes = [float(b.abs().max()) for b in theirs]
    sizes[1] = sizes[2] ** 0.5  # a mean may lie near zero: its error is measured by the spread
    for a, b, size in zip(ours, theirs, sizes, strict=True):
        assert float((a - b).abs().max()) < 4e-6 * size


@needs_a_compiler
def test_statistics_survive_a_mean_far_above_the_spread() -> None:
    h, weight, gamma, beta = (x.detach() for x in inputs(300, 1, 4, 20, 1))
    h = h * 1e-3 + 10
    _, _, variance = compiled_block(h, weight, gamma, beta, keyed_random.member_keys([0]), 0.0)
    exact = plain_block(h.double(), weight.double(), gamma.double(), beta.double())[2]
    assert torch.allclose(variance.double(), exact, rtol=0.02)


@needs_a_compiler
@pytest.mark.parametrize("shape", SHAPES)
def test_dropout_takes_the_elements_that_counter_dropout_takes(shape: tuple[int, int]) -> None:
    given, keys = inputs(61, *shape, 19, 2), keyed_random.member_keys([3, 4])
    whole = compiled_block(*given, keys, 0.0)[0]
    dropped = compiled_block(*given, keys, 0.3)[0]
    assert torch.equal(dropped, keyed_random.dropout(whole, 0.3, keys))


@needs_a_compiler
def test_dropped_elements_pass_no_gradient() -> None:
    given, keys = inputs(61, 4, 16, 19, 2), keyed_random.member_keys([3, 4])
    by_native = with_gradients(compiled_block, given, keys, 0.3)

    def slow(*x: Tensor) -> tuple[Tensor, ...]:
        out, mean, variance = plain_block(*x)
        return keyed_random.dropout(out, 0.3, keys), mean, variance

    for a, b in zip(by_native, with_gradients(slow, given), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=2e-5 * float(b.abs().max()))


@needs_a_compiler
def test_threads_runs_and_other_members_change_no_bit() -> None:
    given, keys = inputs(137, 4, 16, 50, 3), keyed_random.member_keys([0, 1, 2])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        once = with_gradients(compiled_block, given, keys, 0.1)
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            again = with_gradients(compiled_block, given, keys, 0.1)
            assert all(map(torch.equal, once, again))
    finally:
        torch.set_num_threads(threads)
    for member in range(3):
        alone = [x[member : member + 1].detach() for x in given]
        made = compiled_block(*alone, keys[member : member + 1], 0.1)
        assert all(torch.equal(a, b[member : member + 1]) for a, b in zip(made, once, strict=False))


@needs_a_compiler
@pytest.mark.parametrize("shape", SHAPES)
def test_evaluation_equals_torchs_also_where_members_share_their_input(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    h, weight, gamma, beta = (x.detach() for x in inputs(76, *shape, 21, 3))
    mean, variance = beta * 0.5, gamma.square() + 0.5
    for x in (h, h[:1].expand(3, -1, -1, -1), h.transpose(0, 1).contiguous().transpose(0, 1)):
        fast = conv_block_eval(x, weight, gamma, beta, mean, variance)
        with monkeypatch.context() as patch:
            patch.setenv("CLOCS_KERNEL", "torch")
            assert torch.allclose(
                fast, conv_block_eval(x, weight, gamma, beta, mean, variance), atol=1e-5
            )


@needs_a_compiler
def test_evaluation_keeps_a_gradient_that_someone_wants() -> None:
    h, weight, gamma, beta = inputs(76, 4, 16, 3, 1)
    out = conv_block_eval(h, weight, gamma, beta, beta.detach(), gamma.detach().square())
    (gradient,) = torch.autograd.grad(out.sum(), h)
    assert gradient.abs().sum() > 0


@needs_a_compiler
def test_gathered_windows_equal_torchs_and_flat_ones_are_zero() -> None:
    flat = torch.randint(-32768, 32768, (1000,), dtype=torch.int16)
    flat[100:200] = 7
    starts = torch.tensor([[0, 5, 910], [100, 300, 17]])
    windows = native_windows(flat, starts, 90)
    assert windows is not None
    assert torch.equal(windows, min_max(flat.unfold(0, 90, 1)[starts].float()))
    assert (windows[1, 0] == 0).all()
    with pytest.raises(IndexError, match="911"):
        native_windows(flat, starts + 1, 90)


def test_float64_and_odd_channels_are_left_to_torch() -> None:
    keys = keyed_random.member_keys([0])
    for dtype, c_out in ((torch.float64, 4), (torch.float32, 5)):
        h, weight, gamma, beta = (x.detach().to(dtype) for x in inputs(40, 1, c_out, 3, 1))
        fast = conv_block(h, weight, gamma, beta, keys, 0.0)[0]
        assert fast.dtype == dtype
        assert torch.allclose(fast, plain_block(h, weight, gamma, beta)[0], atol=1e-5)


def test_without_a_compiler_torch_serves_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, keys = CNN(embedding_dim=4, samples=400), keyed_random.member_keys([0])
    x = torch.linspace(0, 1, 800).sin().view(1, 2, 400)

    def served() -> str:
        z, _ = encoder.encode_training(encoder.parameters(keys), encoder.buffers(1), x, keys)
        return f"{block_implementation(CPU)} {float(z.detach().sum()):.4f}"

    expected = f"torch {served().split()[1]}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(native, "_library", native._library.__wrapped__)  # finds libraries anew
        patch.setenv("PATH", "")
        assert served() == expected
    monkeypatch.setenv("CLOCS_KERNEL", "torch")
    assert served() == expected
    assert not list(tmp_path.rglob("*.so"))


def loaded_from(cache: Path) -> Path | None:
    """The library that is compiled or taken from this cache as in a new process, if it is ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        found = native._library.__wrapped__("block", "C_IN=1", "C_OUT=4")
    return Path(found._name) if found is not None and hasattr(found, "evaluate") else None


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one compiled library."""
    folder = tmp_path_factory.mktemp("filled")
    made = loaded_from(folder)
    assert made is not None and made.is_relative_to(folder) and native._whole(made)
    return folder


@pytest.fixture
def cache(filled: Path, tmp_path: Path) -> Path:
    """A copy of it: compiling takes seconds."""
    return Path(shutil.copytree(filled, tmp_path / "cache"))


@needs_a_compiler
@pytest.mark.parametrize("kept", [0, 5000])
def test_a_damaged_library_is_compiled_again(cache: Path, kept: int) -> None:
    (file,) = cache.rglob("*.so")
    file.write_bytes(file.read_bytes()[:kept])
    assert loaded_from(cache) == file
    assert native._whole(file)


@needs_a_compiler
def test_a_whole_library_is_not_compiled_again(cache: Path) -> None:
    (file,) = cache.rglob("*.so")
    before = file.stat()
    assert loaded_from(cache) == file
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@needs_a_compiler
def test_a_home_that_cannot_be_written_still_gets_a_library(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert loaded_from(in_the_way) is not None


def forge(path: Path, marker: Path) -> None:
    """Put a library with a sound digest in place of another; loading it makes `marker`."""
    source = path.with_suffix(".c")
    body = f'fclose(fopen("{marker}", "w"));'
    source.write_text(
        f"#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ {body} }}\n"
    )
    path.unlink()
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    source.unlink()
    path.write_bytes(path.read_bytes() + hashlib.sha256(path.read_bytes()).digest())
    path.chmod(0o700)


@needs_a_compiler
@pytest.mark.parametrize("whose", ["ours", "writable", "another user's", "another user's folder"])
def test_code_that_others_may_have_written_is_not_loaded(cache: Path, whose: str) -> None:
    (file,) = cache.rglob("*.so")
    marker = cache / "loaded"
    forge(file, marker)
    if whose == "writable":
        file.chmod(0o720)
    elif whose.startswith("another"):
        if os.geteuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(file.parent if "folder" in whose else file, 12345, 12345)
    found = loaded_from(cache)
    if whose == "ours":  # the marker works
        assert marker.exists()
        return
    assert found is not None and not marker.exists()
    assert (found == file) == ("folder" not in whose)
    if found == file:
        assert file.stat().st_uid == os.geteuid() and not file.stat().st_mode & 0o077


@needs_a_compiler
def test_a_cache_folder_that_was_open_to_others_is_closed(cache: Path) -> None:
    folders = (cache / "clocs", cache / "clocs" / "native")
    for folder in folders:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o777)
    assert loaded_from(cache) is not None
    for folder in folders:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
