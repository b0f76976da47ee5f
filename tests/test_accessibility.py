"""The check that all pages go through finds what is wrong with one text of many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from accessibility import violations

ROWS = "<tr><td>one</td><td><input aria-label=two value=2></td></tr>" * 20
PAGE = """<!doctype html><html lang=en><title>t</title><style>{style}</style><main><h1>Rows</h1>
<table><thead><tr><th>a<th>b</tr></thead><tbody>{rows}</tbody></table></main></html>"""
LAST = "tbody tr:last-child"


@pytest.mark.parametrize(
    "style",
    [
        f"{LAST} td {{ color: #aaa }}",
        f"{LAST} {{ background: #555 }}",
        f"{LAST} {{ opacity: 0.4 }}",
        f"{LAST} input {{ color: #aaa }}",
        "td { color: #757575 } tr:last-child td { background: #eee }",
        "",
    ],
)
def test_the_last_of_many_rows_is_looked_at(
    new_page: Callable[..., Page], tmp_path: Path, style: str
) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGE.format(style=style, rows=ROWS), encoding="utf-8")
    page = new_page()
    page.goto(file.as_uri())
    before = page.content()
    found = violations(page)
    assert {one.partition(":")[0] for one in found} == ({"color-contrast"} if style else set())
    assert page.content() == before
