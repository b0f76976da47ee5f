"""Search, cross-filter, colors and legend on a page with two datasets and thirteen labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Page, expect

from accessibility import violations
from clocs.explorer.embed_stores import reference_distances
from clocs.explorer.patient_map import MAP, Projection, pca
from clocs.explorer.session import Session, in_order_of_pseudonyms
from clocs.patients.embeddings import Embeddings
from explorer.conftest import Served, serving

CHAPMAN = ("AFIB", "GSVT", "SB", "SR")
OTHERS = ("AF", "I-AVB", "LBBB", "Normal", "PAC", "PVC", "RBBB", "STD", "STE")
SIZES = ((1280, 800), (390, 844))
N = 390
IN_COLOR = "() => clocs.look.filter((v, i) => i % 4 === 3 && v < 8).length"
# The symbols of the map's picture, each as a string of its pixels.
SYMBOLS = """async () => {
  const { caption } = await import("/static/overlay.js");
  const [title, legend] = caption(clocs), { map } = clocs;
  const image = await createImageBitmap(await map.picture(title, legend));
  const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
  pen.drawImage(image, 0, 0);
  const left = map.scatter.width + 5;
  return legend.map((_, i) => pen.getImageData(left, 49 + 20 * i, 14, 14).data.join());
}"""


# Lowest, highest and step of what is measured; a tenth is unknown.
SPANS: dict[str, tuple[float, float, float]] = {
    "heart_rate": (40, 180, 1),
    "qtc_fridericia": (350, 520, 1),
    "qrs_axis": (-90, 150, 1),
}
SPANS |= {"sokolow_lyon": (1, 5, 0.1)}


def measured(
    generator: np.random.Generator, low: float, high: float, step: float
) -> NDArray[np.float32]:
    numbers = (generator.uniform(low, high, N) / step).round() * step
    return np.where(generator.random(N) < 0.1, np.nan, numbers).astype(np.float32)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    generator = np.random.default_rng(3)
    labels = [(*CHAPMAN, *OTHERS)[i % 13] for i in range(N)]
    rows = Embeddings.make_rows(
        {
            "dataset": ["chapman" if label in CHAPMAN else "physionet2020" for label in labels],
            "patient": [f"P{i:04d}" for i in range(N)],
            "labels": [[label] for label in labels],
            "age": generator.integers(20, 95, N).astype(float),
            "sex": generator.choice(["female", "male"], N),
        },
        N,
    )
    vectors = generator.normal(size=(N, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    embeddings, codes = in_order_of_pseudonyms(
        Embeddings(vectors, rows, "patient", "none"), b"key" * 11
    )
    cache = tmp_path_factory.mktemp("cache")
    places = generator.normal(size=(N, 2)).astype(np.float32)
    MAP.write(Projection(embeddings.vectors, cache).file, {}, {"positions": places})
    session = Session(
        embeddings=embeddings,
        codes=codes,
        projection=Projection(embeddings.vectors, cache),
        distances=reference_distances(embeddings.vectors),
        stores={},
        key=b"key" * 11,
        measured={name: measured(generator, *span) for name, span in SPANS.items()},
    )
    with serving(session) as served:
        yield served


@pytest.fixture
def opened(new_page: Callable[..., Page], many: Served) -> Iterator[Callable[..., Page]]:
    """Opens the page at a size; any error in it fails the test."""
    problems: list[str] = []

    def open_page(size: tuple[int, int] = SIZES[0], query: str = "") -> Page:
        page = new_page(viewport={"width": size[0], "height": size[1]})
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{many.url}/{query}")
        page.wait_for_selector("html[data-ready=all][data-columns=ready]")
        return page

    yield open_page
    assert problems == []


def expected(served: Served, labels: set[str], sex: str, ages: range = range(200)) -> int:
    rows = served.session.embeddings.rows.iter_rows(named=True)
    return sum(r["sex"] == sex and bool(labels & {*r["labels"]}) and r["age"] in ages for r in rows)


def test_one_box_drives_map_list_histograms_and_legend_and_is_in_the_link(
    opened: Callable[..., Page], many: Served
) -> None:
    page = opened(SIZES[1])
    # A stray "0" once stood here where there are no distances within patients.
    assert page.locator(".keys-row").inner_text().startswith("Different patients")
    page.keyboard.press("/")
    page.keyboard.type("af female")
    count = expected(many, {"AF", "AFIB"}, "female")
    expect(page.locator("#found")).to_have_text(f"{count} of {N} patients")
    expect(page.locator(".condition").first).to_contain_text("AF, AFIB")
    assert page.evaluate(IN_COLOR) == count
    legend = page.locator("#legend [data-value=AFIB] small")
    expect(legend).to_have_text(str(expected(many, {"AFIB"}, "female")))
    page.keyboard.press("ArrowDown")
    expect(page.locator("#list button").first).to_be_focused()
    expect(page.locator("#list-count")).to_contain_text(f"of {count}")
    page.click("#histograms-box summary")
    bar = page.locator("#histograms [data-field=age] [data-value='60–69']")
    bar.click()
    both = expected(many, {"AF", "AFIB"}, "female", range(60, 70))
    expect(bar).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#found")).to_have_text(f"{both} of {N} patients")
    expect(page.locator("#search")).to_have_value("af female age 60-69")
    expect(page).to_have_url(re.compile(r"find=af\+female\+age\+60-69&histograms="))
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[1][0]
    page.goto(page.url)
    page.wait_for_selector("html[data-ready=all]")
    expect(page.locator("#found")).to_have_text(f"{both} of {N} patients")
    page.locator("#histograms [data-field=age] [aria-pressed=true]").click()
    expect(page.locator("#found")).to_have_text(f"{count} of {N} patients")
    page.click("#clear-filter")
    expect(page.locator("#found")).to_have_text(f"All {N} patients")


def test_words_are_understood_as_diagnoses_ages_rates_datasets_and_names(
    opened: Callable[..., Page], many: Served
) -> None:
    page = opened()
    code = many.session.codes[5]
    rates = many.session.measured["heart_rate"]
    found = {
        "atrial": ["AF, AFIB, GSVT, PAC"],
        "atrial fib": ["AF, AFIB"],  # AFIB holds flutter, too
        "first-degree AV block": ["First-degree atrioventricular block (I-AVB)"],
        "PVC STD": ["Premature ventricular contraction (PVC)", "ST depression (STD)"],
        "women over 70": ["female", "age 71 and over"],
        "aged >70, 100-120 bpm": ["age 71 and over", "heart rate 100–120"],
        "chapman and age <30": ["chapman", "age under 30"],
        code[:7]: [f"“{code[:7]}”"],
    }
    for text, words in found.items():
        page.fill("#search", text)
        assert page.evaluate("clocs.filter.clauses.map(one => String(one.words))") == words, text
    assert page.evaluate("clocs.shownRows()") == [5]
    page.fill("#search", "heart rate 100-120")
    assert page.evaluate(IN_COLOR) == int(((rates >= 100) & (rates <= 120)).sum())
    numbers = {name: own.astype(np.float64).round(1) for name, own in many.session.measured.items()}
    qtc, axis, sokolow = (numbers[name] for name in list(SPANS)[1:])
    for text, words, rows in (
        ("qtc>480", ["QTc (Fridericia) 481 and over"], qtc > 480),
        ("qtc >= 480 ms axis -90--30", ["QTc (Fridericia) 480 and over", "QRS axis -90–-30"],
         (qtc >= 480) & (axis <= -30)),
        ("axis <-30", ["QRS axis under -30"], axis < -30),
        ("sokolow >3.5", ["Sokolow–Lyon 3.6 and over"], sokolow > 3.55),
        ("sokolow unknown", ["Sokolow–Lyon unknown"], np.isnan(sokolow)),
        ("qtc", [], np.ones(N, bool)),  # before the number is typed
    ):  # fmt: skip
        page.fill("#search", text)
        assert page.evaluate("clocs.filter.clauses.map(one => String(one.words))") == words, text
        assert page.evaluate("clocs.shownRows()") == np.flatnonzero(rows).tolist(), text
    page.fill("#search", "pr >200")
    expect(page.locator("#found")).to_contain_text("“pr >200” is not measured: run clocs measure")
    page.fill("#search", "")
    title = page.locator("#legend [data-value=AF]").get_attribute("title")
    assert title is not None and "Atrial fibrillation" in title and "same as AFIB" in title
    assert "SNOMED CT 164889003" in title
    page.focus("#search")
    page.keyboard.press("Escape")
    expect(page.locator("#found")).to_have_text(f"All {N} patients")


@pytest.mark.parametrize("size", SIZES)
def test_a_double_click_isolates_the_legend_entry_under_the_mouse(
    opened: Callable[..., Page], size: tuple[int, int]
) -> None:
    page = opened(size)
    for label in (CHAPMAN[0], OTHERS[0], OTHERS[-1]):
        page.locator(f"#legend [data-value='{label}']").dblclick()
        expect(page.locator("#legend [aria-pressed=true]")).to_have_attribute("data-value", label)
        assert page.evaluate(IN_COLOR) == N // 13  # the others are gray
        page.locator(f"#legend [data-value='{label}']").dblclick()
        expect(page.locator("#legend [aria-pressed=false]")).to_have_count(0)


def test_thirteen_diagnoses_ages_and_densities_can_be_told_apart(
    opened: Callable[..., Page],
) -> None:
    page = opened(SIZES[0])
    symbols = page.evaluate(SYMBOLS)
    assert len(symbols) == 13
    assert len(set(symbols)) == 11  # one of AF and AFIB, and one of Normal and SR
    expect(page.locator("#show-names")).to_have_attribute("aria-pressed", "true")
    assert len(page.evaluate("clocs.map.names")) == 13  # more than colors: written on the map
    page.click("#show-contours")
    shares = page.evaluate("clocs.map.contours.filter(one => one.lines.length).map(o => o.share)")
    assert shares == [0.25, 0.5, 0.75, 0.9]
    for field in ("age", "heart_rate"):
        page.click(f"#color-by [data-value={field}]")
        expect(page.locator("#legend .ramp")).to_be_visible()
        paints = page.evaluate("new Set(new Uint32Array(clocs.look.slice().buffer)).size")
        assert paints > 40  # not bands
    assert violations(page) == []
    expect(page).to_have_url(re.compile("color=heart_rate.*contours="))
    page.keyboard.press("t")
    assert violations(page) == []


def test_a_lasso_drawn_on_the_first_projection_finds_the_same_patients_on_the_second(
    opened: Callable[..., Page], many: Served
) -> None:
    places = pca(many.session.embeddings.vectors)
    middle = float(np.median(places[:, 0]))
    count = int((places[:, 0] < middle).sum())
    lasso = f"-9,-9;{middle},-9;{middle},9;-9,9"
    page = opened(query=f"?lasso={lasso}&on=pca")
    expect(page.locator("#detail h2")).to_have_text(f"{count} patients")
    assert page.evaluate(IN_COLOR) == count  # the polygon is of the other map
    page.keyboard.press("Escape")
    page.wait_for_function("() => clocs.look.filter((v, i) => i % 4 === 3 && v < 8).length === 390")


def test_a_search_that_finds_nobody_and_a_link_to_nobody_say_why(
    new_page: Callable[..., Page], served: Served
) -> None:
    page = new_page()
    page.goto(f"{served.url}/?find=SB&hide=labels:SB")
    page.wait_for_selector("html[data-ready=all]")
    expect(page.locator("#found")).to_contain_text("the legend hides")
    page.fill("#search", "xyzzy")
    expect(page.locator("#found")).to_contain_text("begins with “xyzzy”")
    for code in ("0123456789", "nonsense"):
        page.goto(f"{served.url}/?patient={code}")
        page.wait_for_selector("html[data-ready=all]")
        expect(page.locator("#detail .error")).to_contain_text(code)


def test_the_list_is_sorted_and_the_map_colored_by_a_column_of_the_store(
    new_page: Callable[..., Page], served: Served
) -> None:
    page = new_page()
    page.goto(served.url)
    page.wait_for_selector("html[data-columns=ready]")
    page.click("#list-box summary")
    page.select_option("#list-sort", "age")
    ages = (
        "list => [...list.querySelectorAll('button')]"
        ".map(one => parseInt(one.textContent.match(/(\\d+) years/)[1]))"
    )
    found = page.locator("#list").evaluate(ages)
    assert len(found) > 10 and found == sorted(found)
    page.click("#list-turn")
    assert page.locator("#list").evaluate(ages) == sorted(found, reverse=True)


def test_what_is_measured_is_in_histograms_colors_the_list_and_the_link(
    opened: Callable[..., Page], many: Served
) -> None:
    qtc = many.session.measured["qtc_fridericia"]
    page = opened(SIZES[0], "?find=qtc+%3E480&color=qtc_fridericia&histograms=")
    count = int((qtc > 480).sum())
    expect(page.locator("#found")).to_have_text(f"{count} of {N} patients")
    expect(page.locator("#color-more")).to_have_value("qtc_fridericia")
    expect(page.locator("#legend .ramp")).to_be_visible()
    page.click("#list-box summary")
    page.select_option("#list-sort", "qtc_fridericia")
    first = page.locator("#list button").first
    expect(first).to_contain_text(f"QTc (Fridericia) {qtc[qtc > 480].min():.0f} ms")
    page.click("#clear-filter")
    bar = page.locator("#histograms [data-field=qrs_axis] button").first
    bar.click()
    text = page.input_value("#search")
    assert text.startswith("axis <-")
    below = int((many.session.measured["qrs_axis"] < float(text[6:])).sum())
    expect(page.locator("#found")).to_have_text(f"{below} of {N} patients")
    assert violations(page) == []
