"""The examples of docs/serving.md work as they are written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clocs.models.classifier import Classifier
from service.conftest import TOKEN, serving

PAGE = Path(__file__).resolve().parent.parent.parent / "docs/serving.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_call_of_curl_is_answered(
    files: list[str], index: Path, classifier: Classifier, tmp_path: Path
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    commands = [one for one in blocks.replace("\\\n", " ").splitlines() if one.startswith("curl")]
    assert len(commands) == 12
    models = [f"cmsc-chapman={files[0]}", f"rhythm-chapman={files[1]}"]
    with serving(lambda service: service.load(models, index), token=TOKEN) as served:
        environment = os.environ | {"CLOCS_TOKEN": TOKEN}
        own = served.url.removeprefix("http://")
        answers = [
            subprocess.run(
                ["bash", "-c", command.replace("127.0.0.1:8080", own) + " --fail-with-body"],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                check=False,
            )
            for command in commands
        ]
    for command, answer in zip(commands, answers, strict=True):
        assert answer.returncode == 0, (command, answer.stdout)
    one, batch, array, file, prediction, neighbors, *_ = [a.stdout for a in answers]
    assert len(json.loads(batch)["results"]) == 2
    assert json.loads(one).keys() == json.loads(array).keys() == json.loads(file).keys()
    assert json.loads(prediction)["predicted"] in classifier.card.labels
    assert len(json.loads(neighbors)["neighbors"]) == 5
