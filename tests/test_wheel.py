"""The built package works when installed outside the repository.

The environment there has the wheel and the packages that it declares to need, nothing else. They
are links to those of the environment that runs the tests, which pip has installed from wheels.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distribution
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import edf_files
from clocs._version import __version__

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("onnx", "serve", "web")
PATIENTS = 30  # of the demo
# all files but sources
NEEDED = tuple(
    str(path.relative_to(ROOT / "src"))
    for path in (ROOT / "src" / "clocs").rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
)
OFFLINE = """
import socket
_connect = socket.socket.connect
def connect(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"no network here: {address}")
    return _connect(self, address)
socket.socket.connect = connect
"""


def outside() -> dict[str, str]:
    """The environment of a process with nothing of the repository on its path."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {k: v for k, v in os.environ.items() if k not in hidden}


def run(*command: object, cwd: Path) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=outside(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, from a copy of what is in the repository."""
    folder = tmp_path_factory.mktemp("build")
    listed = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        if (ROOT / name).is_file() and name.startswith(("src/", "README", "LICENSE", "pyproject")):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "source" / name)
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist"),
        cwd=folder / "source",
    )
    return next((folder / "dist").glob("*.whl")), next((folder / "dist").glob("*.tar.gz"))


def test_the_wheel_and_the_sdist_hold_all_files_that_are_read_at_run_time(
    built: tuple[Path, Path],
) -> None:
    wheel, sdist = built
    with zipfile.ZipFile(wheel) as file:
        assert set(NEEDED) <= set(file.namelist())
    with tarfile.open(sdist) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    assert {f"src/{name}" for name in NEEDED} <= inside


def needed(
    requirements: Iterable[str], extras: Collection[str], known: dict[str, Distribution]
) -> dict[str, Distribution]:
    """The packages that these requirements name, and what those require in turn, by name."""
    for text in requirements:
        one = Requirement(text)
        name = canonicalize_name(one.name)
        if one.marker and not any(one.marker.evaluate({"extra": e}) for e in ("", *extras)):
            continue
        found = distribution(name)
        assert one.specifier.contains(found.version, prereleases=True), text
        key = f"{name}[{','.join(sorted(one.extras))}]"
        if key not in known:
            known[key] = found
            needed(found.requires or (), one.extras, known)
    return known


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that holds the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "env", with_pip=False)
    commands = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    run(
        *(sys.executable, "-m", "pip", "--python", commands / "python", "install"),
        *("--quiet", "--no-deps", "--no-index", built[0]),
        cwd=folder,
    )
    packages = purelib(commands, folder)
    (own,) = (PathDistribution(path) for path in packages.glob("clocs-*.dist-info"))
    for one in needed(own.requires or (), EXTRAS, {}).values():
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists() and not name.endswith(".pth"):
                (packages / name).symlink_to(Path(str(one.locate_file(name))).resolve())
    return commands


def purelib(commands: Path, folder: Path) -> Path:
    """Where an environment has its packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(run(commands / "python", "-c", code, cwd=folder).strip())


def test_what_the_wheel_does_not_declare_cannot_be_imported(
    installed: Path, tmp_path: Path
) -> None:
    code = "from importlib.util import find_spec; print([n for n in NAMES if find_spec(n)])"
    for names, found in ((["torch", "onnx", "fastapi", "umap"], True), (["pytest", "ray"], False)):
        script = code.replace("NAMES", repr(names))
        printed = run(installed / "python", "-P", "-c", script, cwd=tmp_path)
        assert printed.strip() == repr(names if found else [])


def test_the_command_is_installed(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "clocs", "--version", cwd=tmp_path).strip() == __version__


# In one process, because torch takes seconds to import: where the package lies, what a model knows,
# what it says of a file, that packages for ONNX are there, the demo with short trainings, the
# service, and, once something comes in, the explorer.
USE = """
import json, sys, threading
import clocs
from clocs.cli.main import run
from clocs.experiments import demo
from clocs.models.export import _onnx_packages
patients = sys.argv[1]
def command(*words):
    sys.argv = ["clocs", *words, "--json"]
    assert run() == 0
_onnx_packages()
print(json.dumps([clocs.__file__, *clocs.load("rhythm-chapman").card.labels]))
command("predict", "rhythm-chapman", "my.edf")
demo.PRETRAINING["epochs"] = demo.EVALUATION["epochs"] = 1
command("demo", "--patients", patients, "--out", "demo")
threading.Thread(target=command, args=("serve", "rhythm-chapman"), daemon=True).start()
input()
encoder = f"demo/encoders-{patients}/cmsc"
command("explore", "--no-browse", "--checkpoint", encoder, f"demo/store-{patients}")
"""


@dataclass(frozen=True)
class Used:
    """A folder in which the installed package has been used, and what it serves."""

    folder: Path
    package: Path
    labels: list[str]
    row: dict[str, Any]  # of the prediction
    service: dict[str, Any]  # its address and token
    explorer: dict[str, Any]


@pytest.fixture(scope="module")
def used(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    folder = tmp_path_factory.mktemp("use")
    (purelib(installed, folder) / "sitecustomize.py").write_text(OFFLINE)
    leads = [edf_files.signal(lead, rate=257.0) for lead in ("II", "V5", "aVR")]
    edf_files.write(folder, leads, name="my.edf")
    with subprocess.Popen(
        [str(installed / "python"), "-P", "-c", USE, str(PATIENTS)],
        cwd=folder,
        env=outside(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            printed = objects(process.stdout)
            (where, *labels), predicted, demo, service = islice(printed, 4)
            process.stdin.write("\n")
            process.stdin.flush()
            assert demo["patients"] == PATIENTS
            (row,) = predicted["rows"]
            yield Used(folder, Path(where), labels, row, service, next(printed))
        finally:
            process.kill()


def objects(lines: Iterable[str]) -> Iterator[Any]:
    """Those that are printed as JSON, one after the other, each as soon as it is whole."""
    text = ""
    for line in lines:
        text += line
        with suppress(json.JSONDecodeError):
            yield json.loads(text)
            text = ""


def test_models_are_loaded_and_used_from_the_wheel_alone_and_offline(
    installed: Path, used: Used
) -> None:
    assert used.package.is_relative_to(installed.parent)
    assert used.labels == ["AFIB", "GSVT", "SB", "SR"]
    answer = prediction(used)
    for label in used.labels:
        assert answer["probabilities"][label] == pytest.approx(used.row[f"p({label})"], abs=1e-4)


def prediction(used: Used) -> Any:
    """What the service answers to the file, sent as a form."""
    edge = "a-line-between-parts"
    head = (
        f'--{edge}\r\nContent-Disposition: form-data; name="files"; filename="my.edf"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + (used.folder / "my.edf").read_bytes() + f"\r\n--{edge}--\r\n".encode()
    headers = {
        "Authorization": f"Bearer {used.service['token']}",
        "Content-Type": f"multipart/form-data; boundary={edge}",
    }
    url = f"{used.service['url'].rstrip('/')}/models/rhythm-chapman/prediction"
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def test_the_demo_runs_from_the_installed_wheel(used: Used) -> None:
    assert (used.folder / "demo" / "index.html").stat().st_size > 10_000


def test_the_explorer_answers_from_the_installed_wheel(used: Used) -> None:
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with browser.open(used.explorer["url"], timeout=600) as answer:  # the token becomes a cookie
        assert answer.status == 200 and b"<title>" in answer.read()
