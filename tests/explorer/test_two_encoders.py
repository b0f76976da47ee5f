"""The same patients under two encoders, side by side and linked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import clocs
from accessibility import violations
from clocs import Store
from clocs.errors import SettingError
from clocs.explorer.open import open_session, other_map
from clocs.explorer.patient_map import MAP
from clocs.explorer.session import Session
from clocs.web.packing import unpack
from explorer.conftest import Served, serving


@pytest.fixture(scope="module")
def two(
    small_store: Store, encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder, cache = tmp_path_factory.mktemp("another"), tmp_path_factory.mktemp("cache")
    clocs.pretrain(small_store, method="random", out=folder / "other", seeds=[7])

    def opened() -> Session:
        others = [folder / "other"]
        return open_session(
            stores=[small_store.path], checkpoint=encoder, others=others, cache=cache
        )

    first = opened()
    generator = np.random.default_rng(2)
    for one in (first.projection, first.others[0].projection):
        places = generator.normal(size=(len(one.vectors), 2)).astype(np.float32)
        MAP.write(one.file, {}, {"positions": places})
    with serving(opened()) as served:
        yield served


def test_the_second_map_has_the_places_of_the_second_encoder_in_the_order_of_the_first(
    two: Served, tmp_path: Path
) -> None:
    own = two.session
    assert own.to_dict()["encoders"][1] == "other"
    assert not np.allclose(own.others[0].projection.vectors, own.projection.vectors)
    order = np.arange(len(own.codes))[::-1][:7]  # another one
    vectors, rows = own.embeddings.vectors[order], own.embeddings.rows[order]
    some = replace(own.embeddings, vectors=vectors, rows=rows)
    made = other_map("some", some, own.embeddings, tmp_path)
    assert made.rows.tolist() == list(range(len(own.codes) - 7, len(own.codes)))
    np.testing.assert_array_equal(made.projection.vectors, own.embeddings.vectors[made.rows])
    places = unpack(own.positions(encoder=1))[1]["positions"]
    np.testing.assert_array_equal(places, own.others[0].projection.now[0])
    with pytest.raises(SettingError, match="needs `stores`"):
        open_session(embeddings=tmp_path / "e", others=[tmp_path], cache=tmp_path)


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_who_is_pointed_at_selected_or_lassoed_in_one_map_is_marked_in_both(
    new_page: Callable[..., Page], two: Served, size: tuple[int, int]
) -> None:
    page = new_page(viewport={"width": size[0], "height": size[1]})
    page.goto(two.url)
    page.wait_for_selector("html[data-ready=all]")
    page.select_option("#beside", "1")
    page.wait_for_selector("html[data-second=umap]")
    expect(page.locator("#second-name")).to_have_text("other")
    at = page.evaluate(
        "() => { const { scatter } = clocs.second.map, r = 3;"
        " return scatter.toScreen(scatter.places[2 * r], scatter.places[2 * r + 1]); }"
    )
    page.locator("#second").scroll_into_view_if_needed()
    page.locator("#second").hover(position={"x": at[0], "y": at[1]})
    row = page.evaluate("clocs.second.map.hovered")
    assert row >= 0 and page.evaluate("clocs.map.hovered") == row
    page.locator("#second").click(position={"x": at[0], "y": at[1]})
    page.wait_for_selector("#neighbors li")
    chosen = page.evaluate("[clocs.map.selected, clocs.second.map.selected]")
    assert chosen == [row, row]
    assert page.evaluate("clocs.map.near") == page.evaluate("clocs.second.map.near")
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert violations(page) == []
    places = two.session.others[0].projection.now[0]
    middle = float(np.median(places[:, 0]))
    page.goto(f"{two.url}/?beside=1&on=e1&lasso=-9,-9;{middle},-9;{middle},9;-9,9")
    count = int((places[:, 0] < middle).sum())
    expect(page.locator("#detail h2")).to_have_text(f"{count} patients")
    in_color = "() => clocs.look.filter((v, i) => i % 4 === 3 && v < 8).length"
    assert page.evaluate(in_color) == count
