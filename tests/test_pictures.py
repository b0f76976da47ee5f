"""Pictures of the docs show today's pages and figures, and every one of them is shown."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from docs_scripts import load

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"


pictures = load(IMAGES / "pictures.py")


@pytest.mark.parametrize("name", pictures.GROUPS)
def test_no_picture_is_older_than_what_it_shows(name: str) -> None:
    """Make them again: python docs/images/pictures.py --stores STORES GROUP."""
    group, known = pictures.GROUPS[name], json.loads(pictures.STAMPS.read_text("utf-8"))
    now = pictures.digest(group.shows)
    assert [one for one in group.names if known[one]["shows"] != now] == []
    for one in group.names:
        made = hashlib.sha256((IMAGES / f"{one}.png").read_bytes()).hexdigest()
        assert made.startswith(known[one]["picture"]), one


def test_a_changed_source_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "page.css").write_text("a")
    before = pictures.digest(("page.*",), tmp_path)
    (tmp_path / "page.css").write_text("b")
    assert pictures.digest(("page.*",), tmp_path) != before


def test_every_picture_has_a_command_and_a_page() -> None:
    made = {f"{name}.png" for group in pictures.GROUPS.values() for name in group.names}
    assert {path.name for path in IMAGES.glob("*.png")} == made
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = "\n".join(page.read_text("utf-8") for page in pages)
    shown = {Path(one).name for one in re.findall(r"\(([^)\s]+\.png)\)", texts)}
    assert made <= shown, made - shown
