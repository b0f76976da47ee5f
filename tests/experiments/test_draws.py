from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clocs.errors import StoreError
from clocs.experiments.draws import Draws, read_draws, write_draws


def some(seed: int = 0, size: int = 2000, missing: int = 3) -> Draws:
    draw = np.random.default_rng(seed)
    auc = 0.9 + 0.02 * draw.standard_t(4, size)
    auc[:missing] = np.nan
    return Draws(auc, auc - 0.01 if seed % 2 else None)


def same(a: Draws, b: Draws) -> bool:
    close = np.allclose(a.auc, b.auc, atol=1e-5, equal_nan=True)
    return close and np.allclose(a.logits, b.logits, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_packed_draws_come_back(seed: int) -> None:
    packed = some(seed).packed()
    assert len(packed) == 8 + (1 + seed % 2) * (16 + 4000)
    back = Draws.unpack(packed)
    assert same(back, some(seed))
    assert (back.of_logits is None) == (seed == 0)


def test_draws_that_were_read_are_written_alike() -> None:
    for seed in range(50):
        once = Draws.unpack(some(seed, size=200).packed())
        again = Draws.unpack(once.packed())
        assert again.packed() == once.packed()
        assert again.auc.tobytes() == once.auc.tobytes()


def test_draws_that_are_all_equal_or_all_missing_come_back() -> None:
    for values in (np.full(5, 0.123), np.full(5, np.nan), np.zeros(0)):
        back = Draws.unpack(Draws(values).packed()).auc
        assert np.allclose(back, values, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("content", [b"", b"abc", some().packed()[:-1], b"\xff" * 40])
def test_damaged_draws_are_refused(content: bytes) -> None:
    with pytest.raises(StoreError, match="run it again"):
        Draws.unpack(content)


def test_a_file_of_draws_holds_every_run_whatever_its_length(tmp_path: Path) -> None:
    draws = {"b": some(1), "a": some(2), "short": some(3, size=50)}
    write_draws(draws, tmp_path / "draws.safetensors")
    back = read_draws(tmp_path / "draws.safetensors")
    assert back.keys() == draws.keys()
    assert same(back["a"], draws["a"]) and same(back["b"], draws["b"])
    assert np.allclose(back["short"].auc[:50], draws["short"].auc, atol=1e-5, equal_nan=True)
    assert np.isnan(back["short"].auc[50:]).all()


def test_where_there_is_no_file_there_are_no_draws(tmp_path: Path) -> None:
    assert read_draws(tmp_path / "draws.safetensors") == {}


def test_a_damaged_file_of_draws_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "draws.safetensors"
    write_draws({"a": some()}, path)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        read_draws(path)
