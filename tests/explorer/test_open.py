from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clocs.errors import CheckpointError, ClocsError, SettingError
from clocs.explorer.open import find_report, open_session
from clocs.explorer.session import Session


def test_a_session_without_patients_is_refused_with_a_sentence(
    session: Session, tmp_path: Path
) -> None:
    file, none = tmp_path / "p.parquet", np.zeros(len(session.embeddings), bool)
    session.embeddings.where(none).save(file)
    for expected, weights in (
        ("nothing to show", None),
        ("nowhere does not exist", tmp_path / "nowhere"),
    ):
        with pytest.raises(ClocsError, match=expected):
            open_session(embeddings=file, checkpoint=weights, cache=tmp_path)


def test_embeddings_of_another_encoder_are_refused(
    session: Session, encoder: Path, tmp_path: Path
) -> None:
    made = tmp_path / "patients.parquet"
    for name, wrong in (("e" * 64, True), (session.embeddings.encoder, False)):
        replace(session.embeddings, encoder=name).save(made)
        with pytest.raises(CheckpointError, match="different encoder") if wrong else nullcontext():
            open_session(embeddings=made, checkpoint=encoder, cache=tmp_path)


def test_a_runs_folder_without_a_report_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="clocs reproduce report"):
        find_report(tmp_path)
