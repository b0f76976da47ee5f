"""The Dockerfile, read as Docker reads it: there is no Docker where the tests run."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra `serve`")

from clocs.cli.main import root_command
from clocs.service.server import ServiceShield
from clocs.training.card import SHIPPED

ROOT = Path(__file__).resolve().parent.parent.parent


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments), without comments, with continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    pairs = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in pairs]


def only(word: str) -> str:
    (found,) = [rest for name, rest in instructions() if name == word]
    return found


def test_every_file_that_is_copied_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    copied = [shlex.split(rest)[:-1] for name, rest in instructions() if name == "COPY"]
    for source in (one for some in copied for one in some):
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
    files = {one for some in copied for one in some}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {project["readme"], *project["license-files"], "constraints.txt"} <= files
    extras = re.search(r"\.\[([\w,]+)\]", " ".join(rest for _, rest in instructions()))
    assert extras is not None
    assert set(extras.group(1).split(",")) <= set(project["optional-dependencies"])


def test_what_it_runs_is_the_real_command() -> None:
    words = json.loads(only("ENTRYPOINT")) + json.loads(only("CMD"))
    assert words[:2] == ["clocs", "serve"]
    command = root_command().commands["serve"]
    given = command.make_context("serve", words[2:]).params
    assert given["host"] == "0.0.0.0" and str(given["port"]) == only("EXPOSE")
    assert given["token"] != "none"
    assert set(given["models"]) <= set(SHIPPED)


def test_it_runs_without_root_and_its_health_is_asked_without_a_token() -> None:
    names = [name for name, _ in instructions()]
    assert only("USER") not in ("root", "0")
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "RUN" not in names[names.index("USER") :]
    health = only("HEALTHCHECK")
    url = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", health)
    assert url is not None
    assert url.group(1) == only("EXPOSE") and url.group(2) in ServiceShield.open_paths


def test_it_names_no_other_host() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"://([\w.]+)", text)) == {"127.0.0.1"}
