from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import webbrowser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from click.testing import CliRunner

import unhurried
import warm
from clocs.cli.main import Root
from clocs.errors import SettingError
from clocs.explorer import run
from clocs.explorer.session import Session
from clocs.web.server import Listening


def test_the_command_refuses_bad_arguments_with_a_sentence() -> None:
    for arguments, expected in (
        (["--host", "0.0.0.0", "--token", "none"], "`token`"),
        (["--host", "0.0.0.0", "--token", "short"], "16 to 128"),
        (["--embeddings", "nowhere.parquet"], "nowhere.parquet"),
        (["only-a-store"], "only-a-store"),
    ):
        result = CliRunner().invoke(Root(), ["explore", "--no-browse", *arguments])
        assert result.exit_code != 0
        assert expected in str(result.exception)
        assert result.exception is not None
        assert isinstance(result.exception, Exception)


def test_a_token_is_required_by_default_and_no_program_is_started_with_it(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    opened = threading.Event()
    tokens: list[str | None] = []

    def browse(address: str) -> None:
        started.append(address + Path(unquote(urlsplit(address).path)).read_text(encoding="utf-8"))
        started.append(address)
        opened.set()

    def serve(session: Session, port: Listening) -> None:
        tokens.append(port.token)
        port.socket.close()
        assert opened.wait(600) or port.token is None

    monkeypatch.setattr(webbrowser, "open", browse)
    monkeypatch.setattr("clocs.explorer.open.open_session", lambda **given: session)
    monkeypatch.setattr(run, "_serve", serve)
    urls: list[str] = []
    run.explore(on_open=lambda url, session: urls.append(url))
    token = tokens[0]
    assert token is not None and len(token) >= 32
    assert urls == [urls[0].partition("?")[0] + f"?token={token}"]
    page, address = started
    assert token in page and token not in address
    run.explore(on_open=lambda url, session: urls.append(url), token=None, browse=False)
    assert tokens[1] is None and "token" not in urls[1]
    run.explore(on_open=lambda url, session: urls.append(url), browse=False)
    assert tokens[2] not in (None, token)
    with pytest.raises(SettingError, match="other machines"):
        run.explore(host="0.0.0.0", token=None)


def test_an_explorer_that_is_terminated_leaves_no_temporary_files(
    session: Session, tmp_path: Path
) -> None:
    file = tmp_path / "patients.parquet"
    session.embeddings.save(file)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, webbrowser, clocs\n"
        "webbrowser.open = lambda address: print(address, flush=True)\n"
        "clocs.explore(embeddings=sys.argv[1])\n"
    )
    running = warm.Process(
        *(script, file, tmp_path / "cache"),
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert running.stdout is not None
    opened = running.stdout.readline().strip()
    assert opened.startswith("file://")
    assert list(temporary.glob("clocs-explorer-*"))
    page = Path(opened.removeprefix("file://")).read_text("utf-8")
    (port,) = set(re.findall(r"127\.0\.0\.1:(\d+)", page))
    while running.poll() is None:  # until it serves
        with contextlib.suppress(httpx.ConnectError):
            unhurried.get(f"http://127.0.0.1:{port}/")
            break
    running.terminate()
    assert running.wait(600) == 0
    assert not list(temporary.glob("clocs-*"))
