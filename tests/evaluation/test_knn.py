from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from clocs.errors import SettingError
from clocs.evaluation.protocols.frozen import votes
from evaluation_parts import labeled


def test_nearest_neighbors_agree_with_scikit_learn() -> None:
    known, asked = labeled(0, 80, False), labeled(1, 30, False)
    reference = KNeighborsClassifier(n_neighbors=5, metric="cosine")
    reference.fit(known.features[0].numpy(), known.targets.argmax(1).numpy())
    expected = reference.predict_proba(asked.features[0].numpy())
    found = votes(asked.features[0], known.features[0], known.targets, 5).numpy()
    assert np.allclose(found, expected, atol=1e-6)


def test_a_zero_embedding_gets_the_frequency_of_each_class() -> None:
    known = labeled(0, 80, True)
    found = votes(torch.zeros(1, 6), known.features[0], known.targets, 5)
    assert torch.allclose(found[0], known.targets.float().mean(dim=0))
    with pytest.raises(SettingError, match="80 rows are labeled"):
        votes(known.features[0], known.features[0], known.targets, 81)
