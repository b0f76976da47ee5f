"""What axe-core finds wrong with a page as it is now."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

# Four fifths of axe's time is contrast, of one text after the other. It depends on colors, sizes
# and what is behind, so it is looked at in the first texts that have these in common.
_MARK = """most => {
  const behind = new Map([[null, ""]]), seen = new Map();
  for (const one of document.querySelectorAll("*")) {
    const style = getComputedStyle(one), drawn = [
      one.getAttribute("class"), style.backgroundColor, style.backgroundImage, style.opacity,
      style.position === "static" ? "" : style.position + style.zIndex,
    ].join();
    behind.set(one, behind.get(one.parentElement) + one.tagName + drawn);
    const kind = [behind.get(one), style.color, style.fontSize, style.fontWeight].join();
    const asks = one.matches("input, select, textarea");
    if (!asks && ![...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
      continue;
    seen.set(kind, (seen.get(kind) ?? 0) + 1);
    if (asks || seen.get(kind) <= most) one.setAttribute("data-contrast", "");
  }
}"""
_RUN = """() => {
  axe.configure({rules: [{id: "color-contrast", selector: "[data-contrast]"}]});
  return axe.run({resultTypes: ["violations"]}).then(found => {
    document.querySelectorAll("[data-contrast]").forEach(
      one => one.removeAttribute("data-contrast"));
    return found.violations;
  });
}"""


def violations(page: Page) -> list[str]:
    """One line per rule and element, once nothing moves: half-faded colors have no contrast."""
    # A function: an expression would be evaluated again and again, which the page's policy forbids.
    page.wait_for_function(
        "() => document.getAnimations().every(one => one.playState === 'finished')"
    )
    page.evaluate(Axe().axe_script)
    page.evaluate(_MARK, 2)
    found = page.evaluate(_RUN)
    return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]
