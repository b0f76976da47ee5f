"""What the site has beside the Markdown in docs: pages made from the README and from the code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from clocs.cli.main import TABLE, Command, heading, text_of
from clocs.cli.messages import in_options

ROOT = Path(__file__).resolve().parents[2]
# Pages of the repository's root, by their names in the site.
FROM_ROOT = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the model cards and the results, whichever there are, in the navigation."""
    places = {"Model cards": "models", "Results": "results"}

    def filled(entry: Any) -> Any:
        if isinstance(entry, list):
            return [filled(one) for one in entry]
        if not isinstance(entry, dict):
            return entry
        return {
            name: below + _pages(places[name], below) if name in places else filled(below)
            for name, below in entry.items()
        }

    config.nav = filled(config.nav)
    return config


def _pages(folder: str, but: list[str]) -> list[str]:
    found = sorted(path for path in (ROOT / "docs" / folder).rglob("*.md"))
    names = [path.relative_to(ROOT / "docs").as_posix() for path in found]
    return [name for name in names if name not in but]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is written elsewhere: in the root, in the commands, in the docstrings."""
    pages = {
        name: _from_root((ROOT / source).read_text("utf-8")) for name, source in FROM_ROOT.items()
    }
    pages |= {"commands.md": "\n".join(_commands()), "api.md": "\n".join(_api())}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def _from_root(text: str) -> str:
    """A page of the root as if it were in docs."""

    def moved(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        renamed = {source: name for name, source in FROM_ROOT.items()}.get(target, target)
        words = words.removeprefix("docs/") if words == target else words
        return f"{mark}[{words}]({renamed.removeprefix('docs/')})"

    return LINK.sub(moved, text)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files that are not in the site become the names of these files."""
    here = PurePosixPath(page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        target = match[3].partition("#")[0]
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = os.path.normpath(here / target)
        found = files.get_file_from_path(path)
        if found is None:
            return f"{match[2]} (`{_in_root(path)}`)"
        if match[2].endswith(".md"):  # a page is called by its title, not by its file
            return f"[{_title(found.content_string)}]({match[3]})"
        return match[0]

    return LINK.sub(inside, markdown)


def _title(text: str) -> str:
    return next((line[2:] for line in text.splitlines() if line.startswith("# ")), "this page")


def _in_root(path: str) -> str:
    return path.removeprefix("../") if path.startswith("../") else f"docs/{path}"


def _commands() -> Iterator[str]:
    """The reference of commands, as `--help` has it."""
    yield "# Commands\n\nAs `--help-all` prints them; `--json` prints results for programs.\n"
    for panel, rows in groupby(TABLE.values(), lambda row: row.panel):
        yield f"\n## {panel}\n"
        for row in rows:
            yield from _command(Command(row))


def _command(command: Command) -> Iterator[str]:
    yield f"\n### clocs {command.name}\n\n{command.help}\n"
    yield f"```sh\nclocs {command.name} {command.row.arguments} [OPTIONS]\n```\n"
    yield "| | |\n| --- | --- |"
    for one in command.params:
        yield f"| `{_cell(heading(one), code=True)}` | {_cell(in_options(text_of(one), command))} |"
    if command.epilog:
        yield f"\n{command.epilog.replace('Example: ', 'Example: `', 1)}`\n"


def _cell(text: str, *, code: bool = False) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if code else text.replace("<", "&lt;")


def _api() -> Iterator[str]:
    """All public names of the package, from their docstrings."""
    import clocs

    yield "# Python\n\nEvery public name of `clocs`; [python.md](python.md) shows them at work.\n"
    for name in sorted(set(clocs.__all__) - {"__version__"}, key=str.lower):
        made = getattr(clocs, name)
        module = getattr(made, "__module__", "clocs")
        yield f"::: {module}.{name}\n"
