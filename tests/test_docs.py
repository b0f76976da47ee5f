"""What the docs name exists: commands with their options, Python names, files and headings."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

import clocs
from clocs.cli.main import root_command
from clocs.datasets.download import PUBLICATIONS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(clocs [a-z][^`]*)`")
SOURCE_FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|c|js|html|csv))`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def blocks(page: Path, *kinds: str) -> list[str]:
    """The fenced blocks of a page that are of one of these languages."""
    found = FENCED.findall(page.read_text(encoding="utf-8"))
    return [text for kind, text in found if kind in kinds]


def lines(block: str, kind: str) -> Iterator[str]:
    """What a person would type."""
    for line in block.replace("\\\n", " ").splitlines():
        if kind == "sh":
            yield line
        elif line.startswith("$ "):
            yield line[2:]


def commands(program: str) -> list[Any]:
    """(page, words) of every call of a program in a fenced block."""
    found = []
    for page in PAGES:
        for kind in ("sh", "console"):
            for block in blocks(page, kind):
                for line in lines(block, kind):
                    words = shlex.split(line, comments=True)
                    while words and (words[0] in ("time", "do") or "=" in words[0]):
                        words = words[1:]
                    if words and words[0] == program:
                        found.append(pytest.param(words[1:], id=f"{page.name}: {line.strip()}"))
    return found


@cache
def made(name: str) -> click.Command:
    found = root_command().get_command(None, name)
    assert found is not None, f"no command {name!r}"
    return found


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and what is left of them."""
    return (made(words[0]), words[1:]) if words else (root_command(), [])


@pytest.mark.parametrize("words", commands("clocs"))
def test_every_command_in_the_docs_parses(words: list[str]) -> None:
    command, rest = command_of(words)
    command.make_context(command.name, [word for word in rest if word != "…"])


def test_commands_in_running_text_exist_with_their_options() -> None:
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which names earlier ones
    texts = {text for page in pages for text in INLINE.findall(page.read_text(encoding="utf-8"))}
    assert texts
    for text in texts:
        command, rest = command_of(text.split()[1:])
        each = [(*one.opts, *one.secondary_opts) for one in command.params]
        known = {name for names in each for name in names} | {"--help", "--json"}
        assert {word for word in rest if word.startswith("--")} <= known, text


@pytest.mark.parametrize("words", commands("python"))
def test_every_script_in_the_docs_exists_with_its_options(words: list[str]) -> None:
    script = words[0]
    if script == "-m":
        module = words[1].replace(".", "/")
        inside = module.startswith(("research/", "benchmarks/"))
        module = module if inside else f"src/{module}"
        script = f"{module}.py" if (ROOT / f"{module}.py").is_file() else f"{module}/__main__.py"
    source = (ROOT / script).read_text(encoding="utf-8")
    for word in words[1:]:
        assert not word.startswith("--") or f'"{word}"' in source, word


def test_source_files_named_in_the_design_exist() -> None:
    pages = [ROOT / "CONTRIBUTING.md", ROOT / "docs/design.md"]
    named = {name for page in pages for name in SOURCE_FILE.findall(page.read_text("utf-8"))}
    assert len(named) > 10
    folders = [ROOT, ROOT / "src/clocs", *(ROOT / "src/clocs").iterdir()]
    assert not {n for n in named if not any((folder / n).exists() for folder in folders)}


def test_every_promise_of_reliability_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page)
    missing = [
        f"{file}::{test}"
        for file, test in named
        if f"def {test}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert len(named) > 50 and not missing
    rows = re.findall(r"^\|(?! ---).*\|$", page, re.MULTILINE)
    promises = [row for row in rows if not row.endswith("| held by |")]
    assert not [row for row in promises if "::test_" not in row]
    assert not re.findall(r"`tests/[\w/]+(?:\.py)?`", page.replace("tests/fuzz/targets.py", ""))


def test_names_in_python_examples_exist() -> None:
    checked = 0
    for page in PAGES:
        for block in blocks(page, "python"):
            if re.search(r"^ *\.\.\.$", block, re.MULTILINE):
                continue  # an excerpt
            names: dict[str, Any] = {"clocs": clocs}
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    exec(ast.unparse(node), names)
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("clocs."):
                    function = eval(ast.unparse(node.func), names)
                    given = {word.arg: None for word in node.keywords if word.arg}
                    inspect.signature(function).bind(*node.args, **given)
                    checked += 1
    assert checked >= 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in slugs, target


def test_the_page_of_datasets_says_where_each_is_published_and_under_which_license() -> None:
    page = (ROOT / "docs/datasets.md").read_text(encoding="utf-8")
    plain = " ".join(page.replace("*", "").split())
    for one in PUBLICATIONS.values():
        rows = re.findall(rf"^\| `{one.name}` .*$", page, re.MULTILINE)
        assert any(one.page in row and one.version in row for row in rows), one.name
        assert any((one.license or "none named") in row for row in rows), one.name
        section = page.partition(f"\n## {one.name}\n")[2].partition("\n## ")[0]
        assert "**Quarantined**" in section, one.name
        assert one.citation.split(",")[0] in plain, one.name


def test_no_message_and_no_page_installs_clocs_from_an_index() -> None:
    files = [*PAGES, *(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.js")]
    named = re.compile(r"pip install ['\"]?clocs\b")
    assert not [file for file in files if named.search(file.read_text(encoding="utf-8"))]
