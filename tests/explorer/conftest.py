"""An explorer on forty simulated patients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import polars as pl
import pytest

import clocs
from clocs import Store

pytest.importorskip("fastapi", reason="the explorer needs the extra `web`")
pytest.importorskip("faiss", reason="the explorer needs the extra `search`")

from clocs.explorer.open import open_session
from clocs.explorer.patient_map import MAP
from clocs.explorer.server import make_api
from clocs.explorer.session import Session
from clocs.models.measure import kept_measurements, measure_table
from clocs.web.server import Connection, ConnectionLimits, GracefulServer, listen
from clocs.web.shield import Shield

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="session")
def encoder(small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained encoder: enough to give patients positions."""
    folder = tmp_path_factory.mktemp("encoder")
    clocs.pretrain(small_store, method="random", out=folder)
    return folder


def keep_some_measurements(store: Store) -> None:
    """As `clocs measure` keeps them: one is measured, of the others the numbers are drawn."""
    table, n = measure_table(store, recording=store.table["id"][0]), len(store)
    drawn = np.random.default_rng(5)
    numbers = {
        "heart_rate": drawn.uniform(45, 170, n),
        "pr": np.where(drawn.random(n) < 0.6, np.nan, drawn.uniform(110, 260, n)),
        "qtc_fridericia": drawn.uniform(350, 520, n),
        "qrs_axis": drawn.uniform(-90, 150, n),
        "quality": drawn.uniform(0.3, 1, n),
    }
    columns = [pl.Series(name, own).fill_nan(None) for name, own in numbers.items()]
    reason = pl.when(pl.col("quality") < 0.5).then(pl.lit("noise")).alias("quality_reason")
    names = store.table.select("patient", recording="id")
    every = pl.concat([table] * n).with_columns(*columns, *names.get_columns())
    kept_measurements(store).write(every.with_columns(reason))


@pytest.fixture(scope="session")
def session(small_store: Store, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """With a cached map, as after a first visit."""
    cache = tmp_path_factory.mktemp("cache")
    report = tmp_path_factory.mktemp("runs") / "index.html"
    report.write_text("<!doctype html><title>r</title><h1>Results of a run</h1>", encoding="utf-8")

    def opened() -> Session:
        return open_session(
            stores=[small_store.path],
            checkpoint=encoder,
            runs=report.parent,
            cache=cache,
        )

    first = opened()
    assert first.projection.now[1].state == "working"
    keep_some_measurements(small_store)
    generator = np.random.default_rng(1)
    places = generator.normal(size=(len(first.embeddings), 2)).astype(np.float32)
    MAP.write(first.projection.file, {}, {"positions": places})
    second = opened()
    assert second.projection.now[1].kind == "umap"
    return second


@dataclass(frozen=True)
class Served:
    url: str
    session: Session
    port: int
    connections: set[Connection]  # open ones
    token: str | None = None

    @property
    def address(self) -> str:
        """What the explorer prints and opens."""
        return f"{self.url}/?token={self.token}" if self.token else self.url


@contextmanager
def serving(
    session: Session, token: str | None = None, limits: ConnectionLimits | None = None
) -> Iterator[Served]:
    """The explorer on a free port of this machine, in a thread."""
    with listen().socket as listening:
        port = listening.getsockname()[1]
        server = GracefulServer(Shield(make_api(session), token=token), limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        connections = cast("set[Connection]", server.server_state.connections)
        yield Served(f"http://127.0.0.1:{port}", session, port, connections, token)
        server.should_exit = True
        thread.join(600)


@pytest.fixture(scope="session")
def served(session: Session) -> Iterator[Served]:
    """The explorer without a token, as with --no-token."""
    with serving(session) as made:
        yield made


@pytest.fixture(scope="session")
def guarded(session: Session) -> Iterator[Served]:
    """The explorer with a token, as by default."""
    with serving(session, "a-token-that-is-long-enough") as made:
        yield made


@pytest.fixture
def page(new_page: Callable[..., Page], guarded: Served) -> Iterator[Page]:
    """The explorer, opened with its token; any error in the page fails the test."""
    page = new_page(viewport={"width": 1280, "height": 800})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: problems.append(message.text) if message.type == "error" else None,
    )
    page.goto(guarded.address)
    page.wait_for_selector("html[data-ready=all]")
    yield page
    assert [p for p in problems if "status of 4" not in p] == []
