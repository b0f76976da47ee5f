"""Saved classifiers on the explorer's page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import clocs
import unhurried
from clocs import Store
from clocs.errors import CheckpointError
from clocs.explorer.open import open_session
from clocs.explorer.predictions import SavedClassifiers, ShownRecording
from clocs.explorer.session import Session
from clocs.models.classifier import Classifier
from clocs.training.checkpoint import load_checkpoint
from clocs.web.packing import unpack
from explorer.conftest import Served, serving
from explorer.test_page import settle
from some_classifier import some_classifier
from upload_files import wfdb_files

# Whether a canvas has a saturated orange and a saturated blue somewhere.
COLORS = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let warm = 0, cold = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i] - data[i + 2] > 60) warm++;
    if (data[i + 2] - data[i] > 60) cold++;
  }
  return { warm, cold };
}"""


@pytest.fixture(scope="module")
def classifier(encoder: Path) -> Classifier:
    return some_classifier(load_checkpoint(encoder))


@pytest.fixture(scope="module")
def predicting(session: Session, classifier: Classifier) -> Iterator[Served]:
    """The explorer with two classifiers, of which the second knows none of the leads."""
    cards = tuple(replace(one, leads=("V9",)) for one in classifier.card.encoders)
    encoders = tuple(replace(classifier.encoders[0], card=card) for card in cards)
    foreign = replace(
        classifier,
        card=replace(classifier.card, name="foreign", encoders=cards),
        encoders=encoders,
    )
    with serving(replace(session, models=SavedClassifiers([classifier, foreign]))) as made:
        yield made


def first(served: Served) -> tuple[str, Any]:
    """A patient's first recording."""
    code = served.session.codes[4]
    return f"{served.url}/api/patients/{code}/recordings/0", served.session.recording(code, 0)


def test_saved_classifiers_predict_recordings_in_place_of_fitted_ones(
    predicting: Served, classifier: Classifier
) -> None:
    place, recording = first(predicting)
    assert unhurried.get(f"{predicting.url}/api/session").json()["models"] == [
        "rhythm-test",
        "foreign",
    ]
    one, foreign = unhurried.get(f"{place}/predictions").json()
    expected = clocs.explain(classifier, recording).probabilities
    assert {c["label"]: c["probability"] for c in one["classes"]} == pytest.approx(expected)
    assert [c["predicted"] for c in one["classes"]] == [True, False, False]
    thresholds = {c["label"]: c["threshold"] for c in one["classes"]}
    assert tuple(thresholds[label] for label in classifier.card.labels) == (0.4, None, 0.5)
    assert one["abstained"] is None and one["problem"] is None
    assert foreign["classes"] == [] and "none of the leads V9" in foreign["problem"]
    assert recording.id in foreign["problem"]  # which is not the recording's own
    assert recording.id.endswith(predicting.session.name(4))


def test_an_abstention_is_shown_with_its_reason_and_without_a_predicted_label(
    session: Session, classifier: Classifier
) -> None:
    strict = replace(classifier, card=replace(classifier.card, limits={"1": {"ecg_share": 1.1}}))
    recording = session.recording(session.codes[4], 0)
    (one,) = SavedClassifiers([strict]).predict(ShownRecording(recording))
    assert "too noisy" in one["abstained"] and len(one["classes"]) == 3
    assert not any(c["predicted"] for c in one["classes"])


def test_an_explanation_is_sent_by_lead_and_sample(
    predicting: Served, classifier: Classifier
) -> None:
    place, recording = first(predicting)
    answer = unhurried.get(f"{place}/explanation", params={"label": "AF"}).raise_for_status()
    facts, arrays = unpack(answer.content)
    expected = clocs.explain(classifier, recording, "AF")
    assert facts["label"] == "AF" and tuple(facts["leads"]) == expected.leads
    np.testing.assert_allclose(arrays["attribution"], expected.attribution, atol=1e-6)
    for query, said in (({"label": "X"}, "knows no label"), ({"model": 7}, "no classifier 7")):
        refused = unhurried.get(f"{place}/explanation", params=query)
        assert refused.status_code == 422 and said in refused.json()["message"]


def test_without_a_classifier_there_is_nothing_to_explain(served: Served) -> None:
    place, _ = first(served)
    for name in ("predictions", "explanation"):
        refused = unhurried.get(f"{place}/{name}")
        assert refused.status_code == 422 and "no classifier is loaded" in refused.json()["message"]


def test_a_file_that_is_no_classifier_is_refused_at_the_start(
    small_store: Store, encoder: Path, tmp_path: Path
) -> None:
    file = next(encoder.rglob("*.safetensors"))
    with pytest.raises(CheckpointError, match="is an encoder, not a classifier"):
        open_session(stores=[small_store], checkpoint=encoder, models=[file], cache=tmp_path)


@pytest.fixture
def page(new_page: Callable[..., Page], predicting: Served) -> Iterator[Page]:
    page = new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"{predicting.url}/?patient={predicting.session.codes[4]}")
    page.wait_for_selector("#ecg[data-drawn=yes]")
    yield page
    assert problems == []


def test_explain_colors_the_ecg_and_again_takes_the_colors_away(page: Page) -> None:
    paper, button = page.locator("#ecg"), page.locator("#explain")
    expect(button).to_be_enabled()
    expect(page.locator("#predictions")).to_contain_text("rhythm-test")
    expect(page.locator("#predictions")).to_contain_text("Not a diagnosis")
    expect(page.locator("#predictions .notice")).to_contain_text("none of the leads V9")
    page.wait_for_selector("#ecg[data-marked]")
    settle(page)
    printed = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1, "with predictions, too"
    page.get_by_role("button", name="Marks").click()  # they have colors of their own
    settle(page)
    before = paper.evaluate(COLORS)
    button.click()
    label = page.locator("#predictions button[aria-pressed=true]").get_attribute("data-label")
    assert label
    expect(paper).to_have_attribute("data-explained", label)
    expect(page.locator("#explanation")).to_contain_text(f"speaks for {label}")
    after = paper.evaluate(COLORS)  # how much of each color is the classifier's affair
    assert sum(after.values()) > sum(before.values())
    other = page.locator("#predictions button[aria-pressed=false]").first
    name = other.get_attribute("data-label")
    other.click()
    expect(paper).to_have_attribute("data-explained", name or "")
    expect(button).to_have_attribute("aria-pressed", "true")
    page.locator(f"#predictions button[data-label='{name}']").click()
    expect(paper).to_have_attribute("data-explained", "")
    expect(page.locator("#explanation")).to_have_text("")
    assert paper.evaluate(COLORS) == before


def test_an_upload_is_predicted_and_explained(
    page: Page, small_store: Store, tmp_path: Path
) -> None:
    page.click("#open-upload")
    for name, content in wfdb_files(small_store.recording(2)).items():
        (tmp_path / name).write_bytes(content)
    page.set_input_files("#files", [str(file) for file in tmp_path.iterdir()])
    expect(page.locator("#detail .who")).to_contain_text("Your own ECG")
    expect(page.locator("#explain")).to_be_enabled()
    page.click("#explain")
    expect(page.locator("#ecg")).not_to_have_attribute("data-explained", "")
    expect(page.locator("#explanation")).to_contain_text("Not a diagnosis")
