"""`clocs serve` as a process and as a function: tokens, loading, shutting down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import clocs
import unhurried
from clocs import Checkpoint, Recording
from clocs.cli.main import app as command_line
from clocs.errors import CheckpointError, SettingError
from clocs.service.bodies import Limits
from clocs.service.example import example_body
from clocs.service.models import Result, open_models
from clocs.service.service import Service, Task
from service.conftest import serving, wait_for

ECG = example_body()


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`clocs serve` with a token, and what it prints once it is ready."""
    command = [sys.executable, "-m", "clocs", "serve", "--json", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as running:
        try:
            assert running.stdout is not None
            facts = json.loads(running.stdout.readline())
            yield running, facts
        finally:
            running.kill()


def test_terminated_it_finishes_what_it_accepted_and_ends_with_0(files: list[str]) -> None:
    folder = Path(files[0]).parent
    before = set(folder.rglob("*"))
    with process(*files, "--threads", "1") as (running, facts):
        known = {"authorization": f"Bearer {facts['token']}"}
        with httpx.Client(
            base_url=facts["url"], headers=known, timeout=unhurried.SECONDS
        ) as client:
            assert client.get("/models").status_code == 200
            many: dict[str, Any] = {"recordings": [ECG] * 64}
            answers: list[int] = []

            def ask() -> None:
                answers.append(client.post("/models/plain/embedding", json=many).status_code)

            asking = [threading.Thread(target=ask) for _ in range(4)]
            for one in asking:
                one.start()

            def accepted() -> bool:
                text = client.get("/metrics").text
                return "clocs_queue_seconds 0.0" not in text

            wait_for(lambda: accepted() or len(answers) == 4)
            running.send_signal(signal.SIGTERM)
            for one in asking:
                one.join(600)
            assert 200 in answers and set(answers) <= {200, 429, 503}
        assert running.wait(600) == 0
        with pytest.raises(httpx.TransportError):
            unhurried.get(facts["url"] + "/health")
    assert set(folder.rglob("*")) == before  # it holds nothing, so there is nothing to lose


def test_it_is_not_ready_while_it_loads_and_while_it_stops(files: list[str]) -> None:
    loaded: list[Service] = []
    with serving(loaded.append) as served:  # alive, but nothing is loaded
        service = served.service
        service.state = "loading"
        assert unhurried.get(f"{served.url}/health").status_code == 200
        for state, word in (("loading", "is loading its models"), ("stopping", "shutting down")):
            service.state = state  # type: ignore[assignment]
            ready = unhurried.get(f"{served.url}/ready")
            assert (ready.status_code, ready.json()) == (503, {"status": state})
            refused = served.embedding(ECG)
            assert refused.status_code == 503 and word in refused.json()["message"]
            assert int(refused.headers["retry-after"]) > 0


def test_a_full_queue_answers_429_and_recovers(files: list[str]) -> None:
    hold, entered = threading.Event(), threading.Event()

    class Held(Service):
        def compute(self, task: Task, recordings: list[Recording]) -> list[Result]:
            if self.state == "ready":
                entered.set()
                assert hold.wait(600)
            return super().compute(task, recordings)

    with serving(
        lambda service: service.load(files), limits=Limits(queue=15.0), kind=Held
    ) as served:
        first: list[int] = []
        asking = threading.Thread(target=lambda: first.append(served.embedding(ECG).status_code))
        asking.start()
        assert entered.wait(600)
        refused = served.embedding(ECG)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert unhurried.get(f"{served.url}/health").status_code == 200
        hold.set()
        asking.join(600)
        assert first == [200]
        assert served.embedding(ECG).status_code == 200


def test_the_command_refuses_bad_arguments_with_a_sentence(files: list[str]) -> None:
    for arguments, expected in (
        ([], "nothing to serve"),
        ([*files, "--host", "0.0.0.0", "--no-token"], "`token`"),
        ([*files, "--token", "short"], "16 to 128"),
        (["nowhere.safetensors"], "nowhere.safetensors does not exist"),
        ([files[0], files[0]], "two models are called plain"),
        ([f"a/b={files[0]}"], "no name for an address"),
        (["--index", files[0]], "is not an index"),
    ):
        result = CliRunner().invoke(command_line, ["serve", *arguments])
        assert result.exit_code != 0
        assert expected in str(result.exception)


def test_models_are_named_by_their_files_or_as_asked(
    files: list[str], checkpoint: Checkpoint
) -> None:
    seed = f"{files[0]}/seed-0.safetensors"
    assert list(open_models([seed, f"other={seed}", files[1]])) == ["plain", "other", "rhythm"]
    assert list(open_models([checkpoint])) == [checkpoint.card.method]


def test_a_model_that_cannot_be_loaded_ends_the_service(tmp_path: Path) -> None:
    broken = tmp_path / "seed-0.safetensors"
    broken.write_bytes(b"x")
    with pytest.raises(CheckpointError):
        clocs.serve(broken, token=None)
    with pytest.raises(SettingError, match="other machines"):
        clocs.serve(broken, token=None, host="0.0.0.0")


def test_what_is_told_to_end_while_it_loads_does_not_become_ready(files: list[str]) -> None:
    service = Service()
    service.state = "stopping"
    service.load(files[:1])
    service.batcher.close()
    assert service.state == "stopping"
