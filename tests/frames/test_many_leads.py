"""Frames and instances for encoders that see many leads at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from clocs.errors import SettingError
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.views import Views, instances
from clocs.training.signals import Signals, standardize


@pytest.fixture
def two_leads(small_frames: Frames) -> Frames:
    return small_frames.with_leads(("II", "V2"))


def test_leads_that_frames_lack_are_absent_and_the_order_is_the_encoders(two_leads: Frames) -> None:
    wide = two_leads.for_leads(("V2", "I", "II"))
    assert wide.leads == ("V2", "I", "II")
    assert (wide.starts[:, 1] == ABSENT).all() and np.isnan(wide.scale[:, 1]).all()
    assert np.array_equal(wide.starts[:, [2, 0]], two_leads.starts)


def test_frames_without_any_lead_of_an_encoder_are_refused(two_leads: Frames) -> None:
    with pytest.raises(SettingError, match="none of them"):
        two_leads.with_leads(("II",)).for_leads(("I", "V6"))


def test_a_view_of_many_leads_needs_one_lead_only(two_leads: Frames) -> None:
    starts = two_leads.starts.copy()
    starts[0, 0] = starts[1] = ABSENT
    frames = replace(two_leads, starts=starts)
    made = instances(frames, of="lead", views=Views(), leads_at_once=True)
    assert made.leads_at_once == 2 and made.windows.shape == (len(frames) - 1, 2)
    assert made.frame[0] == 0 and made.windows[0, 0] == ABSENT
    assert np.array_equal(made.in_view(), made.windows)


def test_segments_of_many_leads_are_next_to_one_another(two_leads: Frames) -> None:
    made = instances(two_leads, of="lead", views=Views(segments=2), leads_at_once=True)
    assert np.array_equal(made.in_view(1), two_leads.starts[made.frame + 1])
    assert np.array_equal(made.scale_in_view(1), two_leads.scale[made.frame + 1])


@pytest.mark.parametrize("stream", [False, True])
def test_standardized_windows_have_mean_0_and_variance_1_and_absent_ones_are_nan(
    two_leads: Frames, stream: bool
) -> None:
    signals = Signals.from_frames(two_leads, torch.device("cpu"), windows=6, stream=stream)
    starts = torch.from_numpy(two_leads.starts[:3].copy())
    starts[1, 0] = ABSENT
    (places,) = signals.staged([starts])
    x = signals.standardized(places)
    assert x.shape == (3, 2, two_leads.spec.samples)
    assert x[1, 0].isnan().all() and int(x.isnan().any(dim=-1).sum()) == 1
    there = ~x[..., 0].isnan()
    assert torch.allclose(x[there].mean(dim=-1), torch.zeros(5), atol=1e-5)
    assert torch.allclose(x[there].var(dim=-1, correction=0), torch.ones(5), atol=1e-4)
    expected = standardize(torch.from_numpy(two_leads.windows(np.array([2]), 1)))
    assert torch.allclose(x[2, 1], expected[0], atol=1e-4)


def test_a_flat_lead_is_zero_not_nan() -> None:
    assert torch.equal(standardize(torch.full((1, 4), 3.0)), torch.zeros(1, 4))


@pytest.mark.parametrize(("dataset", "place"), [("physionet2017", 0), ("cardiology", 1)])
def test_a_single_lead_without_a_name_takes_the_place_of_a_named_one(
    two_leads: Frames, dataset: str, place: int
) -> None:
    one = replace(two_leads.with_leads(("V2",)), leads=("ECG",), dataset=dataset)
    wide = one.for_leads(("I", "II", "V2"))
    assert np.array_equal(wide.starts[:, [place]], one.starts)
    assert (wide.present.sum(axis=1) == 1).all()
    assert one.for_leads(("ECG", "I")).present[:, 0].all()
