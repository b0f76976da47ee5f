"""What axe-core finds wrong with a page as it is now."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def violations(page: Page) -> list[str]:
    """One line per rule and element, once nothing moves: half-faded colors have no contrast."""
    # A function: an expression would be evaluated again and again, which the page's policy forbids.
    page.wait_for_function(
        "() => document.getAnimations().every(one => one.playState === 'finished')"
    )
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]
