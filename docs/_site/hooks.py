"""What the site has beside the Markdown in docs: pages and downloads made from other files."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from clocs.cli.main import TABLE, Command, heading, text_of
from clocs.cli.messages import in_options

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
MADE = ("commands.md", "api.md")
DOCUMENT = re.compile(r"\bdocs/([\w-]+\.md)")
LONGEST = 32  # characters of a name in code that is kept on one line
TAGS = re.compile(r"(<pre\b.*?</pre>|<code\b.*?</code>|<[^>]*>)", re.DOTALL)
SPACE = re.compile(  # before a unit, around ± and in E = 128
    r"(?<=\d)[ \n](?=(?:%|[kMGT]i?B|dB|Hz|ms|s|mV|µV|±)(?![\w-]))"
    r"|(?<=±)[ \n](?=\d)|(?<=\b[A-Z])[ \n](?== \d)|(?<=\b[A-Z] =)[ \n](?=\d)"
)
WHOLE = re.compile(r"\d[\d.]*–\d[\d.]*\d|MT-SSL|\b1e-\d+")  # intervals and names with a hyphen
# In searches, what explains comes before references, and these before pages of tables.
BOOST = {
    **dict.fromkeys(("differences.md", "reproduce.md"), 0.3),
    **dict.fromkeys(("commands.md", "api.md"), 0.2),
    **dict.fromkeys(("results/README.md", "benchmarks.md"), 0.1),
}
# The Python names by task, in the order of the work.
TASKS = {
    "Prepare and read": (
        "prepare", "preview", "from_arrays", "open_store", "read", "download", "describe",
    ),
    "Measure and check": ("measure", "check", "signal_quality"),
    "Pre-train": ("pretrain", "outside_encoder", "load"),
    "Score": ("evaluate", "evaluate_many", "evaluate_classifier", "retrieval"),
    "Train a classifier and predict": (
        "finetune", "calibrate", "predict", "explain", "export", "serve",
    ),
    "Vectors and patients": ("embed", "index", "similar", "patient_distances", "explore"),
    "Figures and the paper": ("figure", "reproduce", "report"),
    "Other libraries": ("ClocsEncoder", "torch_dataset"),
    "Classes": (
        "Store", "Recording", "Checkpoint", "Classifier", "Frames", "FrameSpec", "ClocsError",
    ),
}  # fmt: skip


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A navigation without pages that do not exist, and with the repository where it is known.

    Not by `repo_url`: the theme would ask its server for numbers whenever somebody reads a page.
    """
    config.nav = _existing(config.nav)
    if REPOSITORY:
        config.nav.append({"Repository": REPOSITORY})
    return config


def _repository() -> str:
    """$CLOCS_REPOSITORY, or where this checkout was cloned from; '' for neither."""
    if own := os.environ.get("CLOCS_REPOSITORY"):
        return own
    asked = ("git", "-C", str(ROOT), "config", "--get", "remote.origin.url")
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # no git
        return ""
    found = re.sub(r"^git@([^:]+):", r"https://\1/", found).removesuffix(".git")
    return found if found.startswith("https://") else ""


REPOSITORY = _repository()


def _existing(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {name: _existing(below) for name, below in entry.items()}
    if isinstance(entry, list):
        return [_existing(one) for one in entry if not isinstance(one, str) or _exists(one)]
    return entry


def _exists(page: str) -> bool:
    return page in MADE or any(
        (DOCS / page).with_suffix(end).is_file() for end in (".md", ".ipynb")
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is written elsewhere: in commands, docstrings and notebooks; and the downloads."""
    pages = {"commands.md": "\n".join(_commands()), "api.md": "\n".join(_api())}
    for path in sorted(DOCS.glob("notebooks/*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = notebook_page(path)
    for path in sorted((*DOCS.glob("results/*.md"), *DOCS.glob("models/*.md"))):
        if path.name != "README.md":
            pages[download_of(path.relative_to(DOCS).as_posix())] = path.read_text("utf-8")
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def download_of(name: str) -> str:
    """A table as text, which browsers show and save."""
    return name.removesuffix(".md") + ".txt"


def notebook_page(path: Path) -> str:
    """A notebook with its outputs, as Markdown."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if image := output.get("data", {}).get("image/png"):
                whole = base64.b64encode(base64.b64decode(image)).decode()
                parts.append(
                    f'<img alt="The figure of this cell" src="data:image/png;base64,{whole}">'
                )
            else:
                parts.append("```text\n{}```".format("".join(output["text"])))
    parts.append(f"The notebook is [{path.name}]({path.name}).")
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files that are not pages become downloads, links to the repository, or names."""
    here = PurePosixPath(page.file.src_uri).parent
    page.meta.setdefault("search", {"boost": BOOST.get(page.file.src_uri, 1.0)})
    if page.file.src_uri == "models.md":
        markdown += "\n".join(_cards())

    def inside(match: re.Match[str]) -> str:
        target, _, part = match[3].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = os.path.normpath(here / target)
        if path.endswith(".ipynb"):
            target, path = (one.removesuffix(".ipynb") + ".md" for one in (target, path))
            if page.file.src_uri == path:  # the notebook itself
                return match[0]
        found = files.get_file_from_path(path)
        if found is not None and found.inclusion is InclusionLevel.EXCLUDED:
            found = None
        if found is None and files.get_file_from_path(download_of(path)):
            return f"[{match[2]}]({download_of(target)})"
        if found is None:
            name = _in_root(path)
            link = f"[{match[2]}]({REPOSITORY}/blob/HEAD/{name})"
            own = f"`{name}`" if name.endswith(match[2]) else f"{match[2]} (`{name}`)"
            return link if REPOSITORY else own
        if match[2].endswith(".md"):  # a page is called by its title, not by its file
            return f"[{_title(found.content_string)}]({match[3]})"
        return f"{match[1]}[{match[2]}]({target}{'#' if part else ''}{part})"

    return LINK.sub(inside, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Names in code are not broken into lines, nor parted from what stands around them.

    Very long ones are broken between their parts. Numbers stay with their units, and intervals
    whole. Made pages link to the pages that help texts name by their files.
    """

    def whole(match: re.Match[str]) -> str:
        before, words, after = match.groups()
        code = f"<code>{' '.join(map(kept, words.split()))}</code>"
        if not before + after or len(words.split()) > 1 or len(words) > LONGEST:
            return before + code + after
        return f'<span class="name">{before}{code}{after}</span>'

    def kept(word: str) -> str:
        if len(word) > LONGEST:
            return re.sub(r"(?<=[/_:])(?=[^/_:])", "<wbr>", word)
        return f'<span class="name">{word}</span>'

    def to_page(match: re.Match[str]) -> str:
        found = files.get_file_from_path(match[1])
        if found is None or found.inclusion is InclusionLevel.EXCLUDED:
            return match[0]
        return f'<a href="{found.url}">{_title(found.content_string)}</a>'

    if page.file.src_uri == "api.md":  # several parameters that share one description
        html = re.sub(
            r"(<code>[^<]*, [^<]*</code>(?:(?!</tr>).)*)<em>required</em>", r"\1", html, flags=re.S
        )
    # code of blocks ends with a line
    html = re.sub(r"(\(?)<code>([^<]*[^\n<])</code>([),.;:]*)", whole, html)
    parts = TAGS.split(html)
    for place in range(0, len(parts), 2):  # text between tags
        text = SPACE.sub("\N{NO-BREAK SPACE}", parts[place])
        text = WHOLE.sub(r'<span class="name">\g<0></span>', text)
        parts[place] = DOCUMENT.sub(to_page, text) if page.file.src_uri in MADE else text
    return "".join(parts)


def on_post_build(config: MkDocsConfig) -> None:
    """The search index as a script, too: pages opened from a folder cannot fetch JSON."""
    index = Path(config.site_dir, "search", "search_index.json")
    index.with_suffix(".js").write_text(f"var __index = {index.read_text('utf-8')}", "utf-8")


def _cards() -> Iterator[str]:
    """The cards of the shipped models, each folded."""
    yield "\n\n## Cards\n\nWhat `clocs info NAME --verbose` prints.\n"
    for path in sorted(DOCS.glob("models/*.md")):
        text = re.sub(r"^#+ (.*)$", r"**\1**", path.read_text("utf-8"), flags=re.MULTILINE)
        lines = [f"    {line}" if line else "" for line in text.splitlines()[1:]]
        yield "\n".join((f'??? note "{path.stem}"', *lines, ""))


def _title(text: str) -> str:
    return next((line[2:] for line in text.splitlines() if line.startswith("# ")), "this page")


def _in_root(path: str) -> str:
    return path.removeprefix("../") if path.startswith("../") else f"docs/{path}"


def _commands() -> Iterator[str]:
    """The reference of commands, as `--help` has it."""
    yield "# Commands\n\nWhich commands and options are there? All of them, by task, as"
    yield "`--help-all` prints them. `--json` prints results for programs.\n"
    for panel, rows in groupby(TABLE.values(), lambda row: row.panel):
        yield f"\n## {panel}\n"
        for row in rows:
            yield from _command(Command(row))


def _command(command: Command) -> Iterator[str]:
    yield f"\n### clocs {command.name}\n\n{command.help}\n"
    usage = " ".join(filter(None, ("clocs", command.name, command.row.arguments, "[OPTIONS]")))
    yield f"```sh\n{usage}\n```\n"
    yield "| | |\n| --- | --- |"
    for one in command.params:
        name = _cell(heading(one)).replace("|", "<wbr>&#124;")  # a table splits at a plain one
        text = _options(_cell(in_options(text_of(one), command))).replace("|", "\\|")
        kept = ' class="name"' if len(name) <= 20 else ""  # phones
        yield f"| <code{kept}>{name}</code> | {text} |"
    if command.epilog:
        yield f"\n{command.epilog.replace('Example: ', 'Example: `', 1)}`\n"


def _options(text: str) -> str:
    """Options in a sentence as code, but for those in code already."""
    text = re.sub(r"&lt;!--.*?-->", r"<code>\g<0></code>", text)
    parts = re.split(r"(`[^`]*`|<code>.*?</code>)", text)
    parts[::2] = [re.sub(r"(?<![\w-])--?[a-z][\w-]*", r"`\g<0>`", part) for part in parts[::2]]
    return "".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def _api() -> Iterator[str]:
    """All public names of the package by task, from their docstrings."""
    import clocs

    yield "# Python names\n\nWhich function does what? All public names of `clocs`, by task;"
    yield "[python.md](python.md) shows them at work.\n"
    listed = [name for names in TASKS.values() for name in names]
    left = sorted(set(clocs.__all__) - {"__version__"} - set(listed), key=str.lower)
    for task, names in (TASKS | ({"More": tuple(left)} if left else {})).items():
        known = [name for name in names if hasattr(clocs, name)]
        yield f"\n## {task}\n"
        for name in known:
            module = getattr(getattr(clocs, name), "__module__", "clocs")
            yield f"::: {module}.{name}\n"
