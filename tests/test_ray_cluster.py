"""Connecting to Ray: one sentence wherever it cannot work. No cluster is started here."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from clocs.errors import SettingError
from clocs.ray_cluster import ClusterError, Resources, connect


def test_without_ray_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"pip install '\.\[cluster\]'"), connect("auto"):
        pass


def test_an_address_where_nothing_answers_is_named_at_once() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    with socket.socket() as taken:  # bound, but it does not listen
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"answers at {address} .*ray start"):
            connect(address).__enter__()


def test_a_machine_without_a_cluster_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(ClusterError, match="no Ray cluster runs on this machine; start one"):
        connect("auto").__enter__()


def test_what_is_no_address_is_refused() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    with pytest.raises(SettingError, match="'head'; it must be 'auto' or HOST:PORT"):
        connect("head").__enter__()


def test_a_node_fits_as_many_tasks_as_its_scarcest_resource() -> None:
    node = Resources(cpus=16, gpus=2, memory=8 * 2**30)
    assert node.fits(Resources(cpus=1)) == 16
    assert node.fits(Resources(cpus=1, gpus=0.25)) == 8
    assert node.fits(Resources(cpus=1, gpus=0.25, memory=3 * 2**30)) == 2
    assert Resources(16, 0, 8 * 2**30).fits(Resources(gpus=1)) == 0
