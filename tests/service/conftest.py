"""A service with an encoder, a classifier and an index of simulated patients."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import clocs
import unhurried
from clocs import Checkpoint, Recording, Store

pytest.importorskip("fastapi", reason="the service needs the extra `serve`")
pytest.importorskip("msgspec", reason="the service needs the extra `serve`")
pytest.importorskip("faiss", reason="the index needs the extra `search`")

from clocs.models.classifier import Classifier
from clocs.service.bodies import Limits
from clocs.service.server import Server, make_app
from clocs.service.service import Service
from clocs.training.card import ClassifierCard
from clocs.web.server import listen

TOKEN = "a-token-that-is-long-enough"


@dataclass(frozen=True)
class Served:
    url: str
    service: Service
    server: Server

    def post(self, path: str, **given: Any) -> httpx.Response:
        return unhurried.post(f"{self.url}{path}", **given)

    def embedding(self, body: object) -> httpx.Response:
        return self.post("/models/plain/embedding", json=body)


@contextmanager
def serving(
    load: Callable[[Service], None],
    *,
    limits: Limits | None = None,
    token: str | None = None,
    show_ids: bool = False,
    kind: type[Service] = Service,
) -> Iterator[Served]:
    """A service on a free port of this machine, in a thread; loaded when it is yielded."""
    service = kind(limits, show_ids=show_ids)
    service.reader._count = 1  # process, at first: each takes most of a second to start
    with listen().socket as listening:
        server = Server(make_app(service, token=token), service, lambda: None)
        load(service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        wait_for(lambda: server.started)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        yield Served(url, service, server)
        server.should_exit = True
        thread.join(600)
        service.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds; ten minutes at most."""
    until = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < until, "it never became so"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def classifier(checkpoint: Checkpoint) -> Classifier:
    """Two members on one encoder, with different linear layers."""
    generator = torch.Generator().manual_seed(3)
    dim, labels = checkpoint.encoder.embedding_dim, ("AF", "N", "O")
    card = ClassifierCard(
        name="rhythm",
        dataset="synthetic",
        content="0",
        labels=labels,
        multilabel=False,
        protocol="linear",
        encoders=(checkpoint.card, checkpoint.card),
        temperature=(2.0, 2.0, 2.0),
        thresholds=(0.4, None, 0.5),
    )
    head = {
        "weight": torch.randn(2, dim, 3, generator=generator),
        "bias": torch.randn(2, 3, generator=generator),
    }
    return Classifier(card, (checkpoint, checkpoint), head, {})


@pytest.fixture(scope="session")
def index(
    checkpoint: Checkpoint, small_store: Store, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("index") / "index"
    clocs.index(checkpoint, small_store, out=folder)
    return folder


@pytest.fixture(scope="session")
def files(
    checkpoint: Checkpoint, classifier: Classifier, tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """The models as `clocs serve` gets them."""
    folder = tmp_path_factory.mktemp("models")
    checkpoint.save(folder / "plain" / "seed-0.safetensors")
    classifier.save(folder / "rhythm.safetensors")
    return [str(folder / "plain"), str(folder / "rhythm.safetensors")]


@pytest.fixture(scope="session")
def served(files: list[str], index: Path) -> Iterator[Served]:
    """Without a token."""
    with serving(lambda service: service.load(files, index)) as made:
        yield made


@pytest.fixture(scope="session")
def recordings(small_store: Store) -> list[Recording]:
    return [small_store.recording(i) for i in range(12)]


def as_json(recording: Recording) -> dict[str, Any]:
    return {
        "signal": recording.signal.tolist(),
        "rate": recording.rate,
        "leads": list(recording.leads),
        "unit": "mV",
    }


def as_npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
