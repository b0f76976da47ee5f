"""ClocsEncoder behaves as scikit-learn expects of a transformer, alone and in pipelines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import clocs
from clocs import ClocsEncoder
from clocs.errors import ClocsWarning

RATE = 100.0
GROUPS = np.repeat(np.arange(20), 2)
Y = (GROUPS // 2 % 2).astype(int)


def signals(n: int = 40, leads: int = 2, samples: int = 600, seed: int = 0) -> NDArray[Any]:
    """Spikes every 50 or 80 samples, by the parity of the patient, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(0, 0.02, (n, leads, samples))
    for i in range(n):
        X[i, :, int(rng.integers(20)) :: (50, 80)[(i // 4) % 2]] += 1
    return X


def small(**more: Any) -> ClocsEncoder:
    given: dict[str, Any] = {"rate": RATE, "embedding_dim": 8, "epochs": 1, "device": "cpu"} | more
    return ClocsEncoder(**given)


@pytest.fixture(scope="module")
def fitted() -> ClocsEncoder:
    return small().fit(signals(), groups=GROUPS)


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [ClocsEncoder(rate=50, embedding_dim=4, epochs=1, device="cpu")]
)
def test_scikit_learns_checks_hold(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_embedding_is_that_of_clocs_embed(fitted: ClocsEncoder) -> None:
    X = signals()
    store = clocs.from_arrays(
        X, GROUPS, rate=RATE, leads=fitted.checkpoint_.card.leads, unit="adu", frame=3.0
    )
    expected = clocs.embed(fitted.checkpoint_, store, level="recording", device="cpu")
    assert fitted.transform(X).shape == (40, 8)
    assert np.array_equal(fitted.transform(X), expected.vectors)


def test_the_seed_alone_decides(fitted: ClocsEncoder) -> None:
    X = signals()
    again, other = small().fit(X, groups=GROUPS), small(seed=1).fit(X, groups=GROUPS)
    assert np.array_equal(again.transform(X), fitted.transform(X))
    assert not np.array_equal(other.transform(X), fitted.transform(X))


def test_groups_are_patients_and_nobody_is_held_out(fitted: ClocsEncoder) -> None:
    assert len(fitted.checkpoint_.recordings) == 40  # trained or validated on
    assert len(small().fit(signals()).checkpoint_.recordings) == 40
    with pytest.raises(ValueError, match="2 patients are too few"):
        small().fit(signals(), groups=np.arange(40) % 2)
    with pytest.raises(ValueError, match="`patients` has 3 entries"):
        small().fit(signals(), groups=[1, 2, 3])


def test_the_scale_of_the_signals_does_not_matter(fitted: ClocsEncoder) -> None:
    X = signals()
    assert np.allclose(fitted.transform(X), fitted.transform(1e-6 * X), atol=1e-3)


def test_a_checkpoint_is_used_without_training(fitted: ClocsEncoder, tmp_path: Path) -> None:
    X = signals(n=3)
    fitted.checkpoint_.save(tmp_path / "seed-0.safetensors")
    for given in (fitted.checkpoint_, tmp_path, str(tmp_path)):
        taken = small(checkpoint=given, embedding_dim=999).fit(X)
        assert np.array_equal(taken.transform(X), fitted.transform(X))


def test_nan_costs_frames_and_a_recording_without_any_becomes_nan(fitted: ClocsEncoder) -> None:
    X = signals()
    X[2, 0, :50] = np.nan  # in the first of two frames
    X[3] = np.nan
    with pytest.warns(ClocsWarning, match="1 of 40 recordings have no embedding.*number 3"):
        vectors = fitted.transform(X)
    assert np.isnan(vectors[3]).all()
    assert np.isfinite(np.delete(vectors, 3, axis=0)).all()
    assert np.array_equal(
        np.delete(vectors, (2, 3), 0), np.delete(fitted.transform(signals()), (2, 3), 0)
    )
    with pytest.warns(ClocsWarning, match="1 of 40 recordings cannot be used"):
        small().fit(X, groups=GROUPS)


def test_recordings_may_have_another_length_but_not_other_leads(fitted: ClocsEncoder) -> None:
    assert fitted.transform(signals(samples=1300)).shape == (40, 8)
    with pytest.raises(ValueError, match="expecting 2 features"):
        fitted.transform(signals(leads=3))
    with pytest.warns(ClocsWarning, match="too short"):
        assert np.isnan(fitted.transform(signals(samples=100))).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": None}, "give the sampling rate"),
        ({"rate": 3}, "sampling rate of 3 Hz"),
        ({"leads": ["I"]}, "1 `leads`"),
        ({"method": "none such"}, "none such"),
        ({"frame": 60}, "longest recording has 6 s"),
        ({"epochs": 0}, "`epochs`"),
    ],
)
def test_wrong_parameters_are_refused_in_fit_by_a_sentence(change: Any, message: str) -> None:
    estimator = small(**change)
    with pytest.raises(ValueError, match=message) as caught:
        estimator.fit(signals())
    assert isinstance(caught.value, clocs.ClocsError)


def test_not_fitted_is_an_error_of_scikit_learn() -> None:
    with pytest.raises(NotFittedError):
        small().transform(signals())


def test_output_features_have_names(fitted: ClocsEncoder) -> None:
    names = fitted.get_feature_names_out()
    assert list(names[:2]) == ["clocsencoder0", "clocsencoder1"]
    assert len(names) == 8


def test_grid_search_and_cross_validation_pass_the_patients_on() -> None:
    X = signals()
    pipeline = make_pipeline(small(), LogisticRegression())
    given = {"clocsencoder__groups": GROUPS}
    scores = cross_val_score(pipeline, X, Y, cv=GroupKFold(2), groups=GROUPS, params=given)
    assert len(scores) == 2
    with sklearn.config_context(enable_metadata_routing=True):
        routed = make_pipeline(small().set_fit_request(groups=True), LogisticRegression())
        same = cross_val_score(routed, X, Y, cv=GroupKFold(2), params={"groups": GROUPS})
        assert np.array_equal(scores, same)
        grid = {"clocsencoder__embedding_dim": [4, 8]}
        search = GridSearchCV(routed, grid, cv=GroupKFold(2)).fit(X, Y, groups=GROUPS)
    assert search.best_estimator_[0].checkpoint_.encoder.embedding_dim in (4, 8)


def test_without_scikit_learn_a_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("sklearn", "sklearn.base"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, clocs.MODULES["ClocsEncoder"])
    exec("from clocs import *", {})
    with pytest.raises(clocs.ClocsError, match=r"pip install '\.\[sklearn\]'"):
        _ = clocs.ClocsEncoder
