"""The network that marks P, QRS and T in every lead.

Its trunk is the first three stages of an encoder of many leads, as it was pre-trained without
labels; they see all leads at once at 100 Hz. Its branch sees one lead at a time at 400 Hz, four
samples to a step, and is told what the trunk says about that time: steps of 10, 20 and 40 ms, and
back. Of each step come out two answers, one per 5 ms: which wave it is in, and how near the peak
of each wave is. The branch was trained on LUDB (research/delineation.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from clocs.encoders.many_leads import MultiLead
from clocs.encoders.residual import Layers
from clocs.errors import StoreError
from clocs.frames.signals import bridged
from clocs.measurements.beats import resampled_band
from clocs.measurements.waves import NONE, Waves, find_waves
from clocs.recording import STANDARD_LEADS, Recording, unnamed_lead
from clocs.sealed import ArrayFile
from clocs.training.card import SHIPPED_FOLDER, shipped_as
from clocs.training.checkpoint import load_checkpoint

TRUNK = "cmsmlc-many-leads"
TRUNK_HZ, BRANCH_HZ, MARK_HZ = 100, 400, 200
STAGES = 3
WIDTHS = (24, 40, 64)  # channels at steps of 10, 20 and 40 ms
WAVES = ("P", "QRS", "T")
OUTPUTS = 1 + 2 * len(WAVES)  # none or a wave; nearness to the peak of each
WEIGHTS = SHIPPED_FOLDER / "delineator.safetensors"
FILE = ArrayFile("a delineator", "clocs.delineator", 1, "install clocs again")
_PER_STEP, _MARKS = BRANCH_HZ // TRUNK_HZ, MARK_HZ // TRUNK_HZ
_TOGETHER = 2**STAGES  # steps of the trunk that its last stage makes one of
_WINDOW, _AROUND = 10.0, 1.28  # s that are marked at once of a long recording, and seen around them
_STILL = 1e-6  # mV; a lead that varies less is flat


class Trunk(nn.Module):
    """The first stages of an encoder of many leads."""

    def __init__(self, encoder: MultiLead, layers: Layers) -> None:
        """layers: as `MultiLead.to_module` makes them; they are taken over, not copied."""
        super().__init__()
        network = encoder.network
        pairs = [network.blocks[2 * stage : 2 * stage + 2] for stage in range(STAGES)]
        self.stages = [replace(network, blocks=blocks) for blocks in pairs]
        self.widths = [blocks[0][0].c_out for blocks in pairs]
        self.layers = layers

    def forward(self, x: Tensor) -> list[Tensor]:
        """x: (n, leads, samples), nan where missing -> of each stage (n, channels, steps)."""
        h, maps = self.layers.started(x), []
        for stage in self.stages:
            h = stage.body(h, self.layers.convolved, lambda block, h: h)
            maps.append(h.squeeze(2))
        return maps


def _conv(c_in: int, c_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(c_in, c_out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm1d(c_out)
    )


class Delineator(nn.Module):
    """Trunk and branch."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk
        fast, middle, slow = WIDTHS
        self.down = nn.ModuleList(
            [_conv(_PER_STEP, fast, 7), _conv(fast, middle, 5, 2), _conv(middle, slow, 5, 2)]
        )
        self.same = nn.ModuleList([_conv(width, width, 5) for width in WIDTHS])
        told = zip(trunk.widths, (middle, slow, slow), strict=True)
        self.read = nn.ModuleList([nn.Conv1d(c_in, c_out, 1) for c_in, c_out in told])
        self.up = nn.ModuleList([nn.Conv1d(middle, fast, 1), nn.Conv1d(slow, middle, 1)])
        self.after = nn.ModuleList([_conv(width, width, 5) for width in WIDTHS])
        self.out = nn.Conv1d(fast, _MARKS * OUTPUTS, 1)

    def forward(self, slow: Tensor, fast: Tensor, rows: Tensor) -> Tensor:
        """Logits of single leads, by what their recordings tell.

        Args:
            slow: (recordings, leads, samples) at TRUNK_HZ with variance 1, nan where missing; the
                number of samples is a multiple of 8.
            fast: (n, 4 · samples) single leads at BRANCH_HZ with variance 1.
            rows: (n,) the recording that each is of.

        Returns:
            (n, OUTPUTS, 2 · samples) at MARK_HZ.
        """
        told = [read(h) for read, h in zip(self.read, self.trunk(slow), strict=True)]
        told = [told[0][rows], (told[1] + _twice(told[2]))[rows]]
        h = fast.unflatten(1, (-1, _PER_STEP)).mT
        kept = []
        for down, same in zip(self.down, self.same, strict=True):
            h = down(h).relu()
            h = (same(h) + h).relu()
            kept.append(h)
        h = h + told[1]
        h = (self.after[2](h) + h).relu()
        h = _twice(self.up[1](h)) + kept[1] + told[0]
        h = (self.after[1](h) + h).relu()
        h = _twice(self.up[0](h)) + kept[0]
        h = (self.after[0](h) + h).relu()
        made: Tensor = self.out(h).unflatten(1, (OUTPUTS, _MARKS))
        return made.transpose(2, 3).flatten(2)

    @torch.no_grad()
    def waves(self, slow: Tensor, fast: Tensor) -> list[Waves]:
        """Of one stretch: (leads, samples) of the trunk, and (n, 4 · samples) leads to mark."""
        rows = torch.zeros(len(fast), dtype=torch.int64, device=fast.device)
        made = self(slow[None], fast, rows).double().cpu()
        chances, near = made[:, : 1 + len(WAVES)].softmax(dim=1).numpy(), made.numpy()
        return [
            find_waves(own, peaks[1 + len(WAVES) :], 1 / MARK_HZ)
            for own, peaks in zip(chances, near, strict=True)
        ]

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        """Write the branch in half precision; the trunk is that of the package."""
        arrays = {
            name: tensor.cpu().numpy().astype(np.float16)
            for name, tensor in self.state_dict().items()
            if not name.startswith("trunk.") and tensor.is_floating_point()
        }
        trunk = {"trunk": TRUNK, "trunk_sha256": load_checkpoint(TRUNK).card.weights_sha256}
        notice = {"notice": "For research; no medical device."}
        FILE.write(path, {**facts, **trunk, **notice}, arrays, mode=0o644)


def _twice(h: Tensor) -> Tensor:
    return h.repeat_interleave(2, dim=2)


def network_inputs(
    signal: NDArray[np.float64], rate: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(leads, samples) -> the same at TRUNK_HZ and BRANCH_HZ with variance 1, padded by zeros."""
    made, seconds = [], signal.shape[1] / rate
    steps = -(-math.ceil(seconds * TRUNK_HZ) // _TOGETHER) * _TOGETHER  # of both: each is rounded
    for hertz, high in ((TRUNK_HZ, 45.0), (BRANCH_HZ, 150.0)):
        x = resampled_band(signal, rate, (0.5, high), hertz)
        x = x / np.maximum(x.std(axis=1, keepdims=True), _STILL)
        x = np.pad(x, ((0, 0), (0, steps * hertz // TRUNK_HZ - x.shape[1])))
        made.append(x.astype(np.float32))
    return made[0], made[1]


def delineate(recording: Recording) -> dict[str, Waves]:
    """The waves of every lead of a recording; none in leads that are flat, and none in gaps."""
    network = shipped_delineator()
    digital = bridged(recording.digital, recording.leads, recording.gaps)
    signal = (digital - recording.baseline[:, None]) / recording.gain[:, None]
    alive = np.flatnonzero(np.ptp(signal, axis=1) > _STILL).tolist()
    found: dict[str, list[Waves]] = {lead: [] for lead in recording.leads}
    for first, last, begin, end in _windows(recording.samples, recording.rate) if alive else ():
        slow, fast = network_inputs(signal[alive, first:last], recording.rate)
        seen = torch.full((len(STANDARD_LEADS), slow.shape[1]), torch.nan)
        for lead, row in _seen_as([recording.leads[place] for place in alive]).items():
            seen[STANDARD_LEADS.index(lead)] = torch.from_numpy(slow[row])
        offset = first / recording.rate
        for place, own in zip(alive, network.waves(seen, torch.from_numpy(fast)), strict=True):
            lead = recording.leads[place]
            found[lead].append(_within(own, offset, begin, end, _gaps(recording, lead)))
    return {
        lead: Waves(*(np.concatenate([getattr(one, n) for one in own]) for n in ("p", "qrs", "t")))
        if own
        else NONE
        for lead, own in found.items()
    }


def _windows(samples: int, rate: float) -> Iterator[tuple[int, int, float, float]]:
    """First and last + 1 sample that are seen; seconds from which and to which waves count."""
    seconds = samples / rate
    count = max(1, round(seconds / _WINDOW))
    ends = np.linspace(0, seconds, count + 1)
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        first, last = round((begin - _AROUND) * rate), round((end + _AROUND) * rate)
        yield max(0, first), min(samples, last), begin, end if end < seconds else np.inf


def _seen_as(leads: list[str]) -> dict[str, int]:
    """Rows by the standard leads that the trunk takes them for."""
    known = {lead: row for row, lead in enumerate(leads) if lead in STANDARD_LEADS}
    return known or {unnamed_lead(): 0}


def _gaps(recording: Recording, lead: str) -> NDArray[np.float64]:
    own = [(gap.start, gap.stop) for gap in recording.gaps if gap.lead == lead]
    return np.array(own, np.float64).reshape(-1, 2) / recording.rate


def _within(
    waves: Waves, offset: float, begin: float, end: float, gaps: NDArray[np.float64]
) -> Waves:
    """Waves of a window that starts at `offset`: those with a peak in it and outside of gaps."""

    def kept(own: NDArray[np.float64]) -> NDArray[np.float64]:
        own = own + offset
        touched = ((own[:, None, 0] < gaps[:, 1]) & (own[:, None, 2] > gaps[:, 0])).any(axis=1)
        return np.asarray(own[(own[:, 1] >= begin) & (own[:, 1] < end) & ~touched])

    return Waves(kept(waves.p), kept(waves.qrs), kept(waves.t))


def new_delineator(*, pretrained: bool = True, seed: int = 0) -> Delineator:
    """An untrained branch on the shipped encoder, or on one with weights that are drawn."""
    shipped = load_checkpoint(TRUNK)
    encoder, weights, buffers = shipped.encoder, shipped.weights, shipped.buffers
    assert isinstance(encoder, MultiLead)
    if not pretrained:
        weights, buffers = encoder.parameters(torch.tensor([seed])), encoder.buffers(1)
    return Delineator(Trunk(encoder, encoder.to_module(weights, buffers).float()))


@cache
def shipped_delineator() -> Delineator:
    """The network of the package, its batch norms folded into its convolutions."""
    facts, arrays = FILE.read(WEIGHTS)
    if shipped_as(facts["trunk_sha256"]) != TRUNK:
        raise StoreError(f"{WEIGHTS.name} was trained on another {TRUNK}; {FILE.remedy}")
    network = new_delineator().eval().requires_grad_(False)
    branch = {name: torch.from_numpy(array).float() for name, array in arrays.items()}
    missing = network.load_state_dict(branch, strict=False).missing_keys
    assert all(name.startswith("trunk.") for name in missing)
    for name, module in [*network.named_modules()]:
        if isinstance(module, nn.Sequential):
            conv, norm = module
            assert isinstance(conv, nn.Conv1d) and isinstance(norm, nn.BatchNorm1d)
            module[0], module[1] = fuse_conv_bn_eval(conv, norm), nn.Identity()
        elif name.startswith("trunk.layers.convs.") and name.count(".") == 3 and "stem" not in name:
            assert isinstance(module, nn.ModuleDict)
            conv, norm = module["conv"], module["norm"]
            assert isinstance(conv, nn.Conv1d) and isinstance(norm, nn.BatchNorm1d)
            module["conv"] = fuse_conv_bn_eval(conv, norm)
            module["norm"] = nn.Identity()
    return network
