"""An explorer on forty simulated patients, and a browser to look at it."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console

import clocs
from clocs import Store

pytest.importorskip("fastapi", reason="the explorer needs the extra `web`")
pytest.importorskip("faiss", reason="the explorer needs the extra `search`")

import uvicorn

from clocs.explorer.open import open_session
from clocs.explorer.packing import pack
from clocs.explorer.server import make_app
from clocs.explorer.session import Session
from clocs.files import write_atomic

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def encoder(small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained encoder: enough to place patients somewhere."""
    folder = tmp_path_factory.mktemp("encoder")
    clocs.pretrain(small_store, method="random", out=folder)
    return folder


@pytest.fixture(scope="session")
def session(small_store: Store, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Its map is in the cache already, as after a first visit."""
    cache = tmp_path_factory.mktemp("cache")
    report = tmp_path_factory.mktemp("runs") / "index.html"
    report.write_text("<!doctype html><title>r</title><h1>Results of a run</h1>", encoding="utf-8")

    def opened() -> Session:
        return open_session(
            stores=[small_store.path],
            checkpoint=encoder,
            runs=report.parent,
            cache=cache,
            console=Console(quiet=True),
        )

    first = opened()
    assert first.projection.state.state == "working"
    generator = np.random.default_rng(1)
    places = generator.normal(size=(len(first.embeddings), 2)).astype(np.float32)
    write_atomic(first.projection.file, pack({}, {"positions": places}))
    second = opened()
    assert second.projection.state.kind == "umap"
    return second


@dataclass(frozen=True)
class Served:
    url: str
    session: Session


@pytest.fixture(scope="session")
def served(session: Session) -> Iterator[Served]:
    """The explorer on a free port of this machine."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(make_app(session), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", session)
    server.should_exit = True
    thread.join(5)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium; tests are skipped by name where there is none, but not in CI."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    sync_api = pytest.importorskip("playwright.sync_api")
    if path is None and os.environ.get("CI") != "true":
        pytest.skip("needs a Chromium browser on the PATH")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox"],
        )
        yield chromium
        chromium.close()
