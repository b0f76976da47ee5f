"""Perturbations of ECG views, batched on the device: x: (members, n, samples) -> the same shape.

Random draws are functions of (key, place in the chain, element): independent for every member and
each of its n views, and the same on every device and for every number of members. No loop over
views, no shape that depends on data, no wait for the host.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from clocs.errors import SettingError
from clocs.kernels import keyed_random
from clocs.kernels.ranks import is_shared

WINDOW: Final = 256  # samples of the Hann window of SpecAugment
HOP: Final = 128
_LOW = 0xFFFFFFFF
_ANY = math.inf

Value = bool | int | float
_TRUTH = {"true": True, "false": False}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def gaussian(x: Tensor, keys: Tensor, *, sigma: float = 0.010) -> Tensor:
    """x: (members, n, samples) plus noise of standard deviation `sigma`, in x's unit (mV)."""
    return x + sigma * _noise(x, keys)


def flip_y(x: Tensor, keys: Tensor, *, always: bool = False) -> Tensor:
    """x: (members, n, samples) read backwards in time, with probability ½ per view, or always."""
    return x.flip(-1) if always else torch.where(_coins(x, keys), x.flip(-1), x)


def flip_x(x: Tensor, keys: Tensor, *, always: bool = False) -> Tensor:
    """x: (members, n, samples) negated, with probability ½ per view, or always."""
    return -x if always else torch.where(_coins(x, keys), -x, x)


def sa_t(x: Tensor, keys: Tensor, *, w: float = 0.2, r: int = 1) -> Tensor:
    """x: (members, n, samples) with SpecAugment's mask in time: `r` times a share `w` of the bins.

    The inverse transform of an unmasked column is the windowed column itself, so masking columns
    is a gain on x: the share of the windows' energy that is left at each sample. No transform.
    """
    kept = ~mask(keys, x.shape[1], stft_shape(x.shape[-1])[1], w=w, r=r)[..., None]
    energy = _hann(x).square()
    rising, falling = energy[:HOP], energy[HOP:]
    gain = (kept[:, :, 1:] * rising + kept[:, :, :-1] * falling) / (rising + falling)
    return x * gain.flatten(2)[..., : x.shape[-1]]


def sa_f(x: Tensor, keys: Tensor, *, w: float = 0.2, r: int = 1) -> Tensor:
    """x: (members, n, samples) with SpecAugment's mask in frequency: see `sa_t` and `stft`."""
    spectrum = stft(x)
    masked = mask(keys, x.shape[1], spectrum.shape[-2], w=w, r=r)[..., None]
    return istft(spectrum.masked_fill(masked, 0), x.shape[-1])


def scaling(x: Tensor, keys: Tensor, *, factor: float = 1.1) -> Tensor:
    """x: (members, n, samples) times `factor`; nothing is drawn."""
    return x * factor


def permutation(x: Tensor, keys: Tensor, *, pieces: int = 20) -> Tensor:
    """x: (members, n, samples) cut into equal pieces, put together in a random order.

    Piece p is samples ⌊p·samples/pieces⌋ up to, without, ⌊(p+1)·samples/pieces⌋: where the length
    does not divide, the remainder is spread and pieces differ by at most one sample.
    """
    members, n, samples = x.shape
    if pieces > samples:
        raise SettingError(f"{samples} samples cannot be cut into {pieces} pieces; give fewer")
    draws = keyed_random.bits(keys, n * pieces).view(members, n, pieces)
    order = draws.argsort(dim=-1, stable=True)  # order[slot]: the piece that comes there
    bounds = torch.arange(pieces + 1, device=x.device) * samples // pieces
    begin, length = bounds[:-1][order], bounds.diff()[order]
    ends = length.cumsum(dim=-1)
    time = torch.arange(samples, device=x.device).expand(x.shape).contiguous()
    slot = torch.searchsorted(ends, time, right=True)
    return x.gather(-1, time + (begin - ends + length).gather(-1, slot))


def time_warp(x: Tensor, keys: Tensor, *, pieces: int = 9, factor: float = 1.05) -> Tensor:
    """x: (members, n, samples) with each of its pieces stretched by `factor` or by 1/`factor`.

    Time 0…samples−1 is cut into equal pieces; each is stretched by one or the other with
    probability ½; all together are scaled back to the same length, first and last sample in place.
    The value at a sample is x at the time that came to lie there, linear between its neighbors.
    """
    members, n, samples = x.shape
    coins = keyed_random.uniform(keys, n * pieces).view(members, n, pieces) < 0.5
    knots = warp_knots(coins, samples=samples, factor=factor)
    time = torch.arange(samples, device=x.device, dtype=knots.dtype).expand(x.shape).contiguous()
    piece = torch.searchsorted(knots[..., 1:-1].contiguous(), time, right=True)
    left, right = knots.gather(-1, piece), knots.gather(-1, piece + 1)
    return at_times(x, (piece + (time - left) / (right - left)) * ((samples - 1) / pieces))


def stretch(x: Tensor, keys: Tensor, *, factor: float = 1.2) -> Tensor:
    """A random part of x: (members, n, samples), stretched to its length by 1 to `factor`.

    How much is drawn for each view, its logarithm uniformly, and so is where the part begins. The
    heart beats slower, and everything else does, too.
    """
    members, n, samples = x.shape
    how, where = keyed_random.uniform(keys, n * 2).view(members, n, 2).split(1, dim=-1)
    share = torch.exp(-math.log(factor) * how)
    begin = where * (1 - share) * (samples - 1)
    time = torch.arange(samples, device=x.device, dtype=share.dtype)
    return at_times(x, begin + time * share)


def at_times(x: Tensor, times: Tensor) -> Tensor:
    """(…, samples) both -> x at these times, counted in samples, linear between its samples."""
    before = times.floor().clamp(0, x.shape[-1] - 2)
    low = before.to(torch.int64)
    return x.gather(-1, low).lerp(x.gather(-1, low + 1), (times - before).to(x.dtype))


def noise_snr(x: Tensor, keys: Tensor, *, db: float = 15.0) -> Tensor:
    """x: (members, n, samples) plus Gaussian noise at that ratio to x's power around its mean."""
    power = x.var(dim=-1, correction=0, keepdim=True) * 10 ** (-db / 10)
    return x + power.sqrt() * _noise(x, keys)


def normals(draws: Tensor, dtype: torch.dtype) -> Tensor:
    """draws: (members, count) random bits -> (members, 2·count) standard normal, by Box–Muller.

    The high half of a draw gives the radius (at most 6.7), the low half the angle.
    """
    high, low = (draws >> 32) & _LOW, draws & _LOW
    radius = ((high + 1).to(dtype) * 2.0**-32).log().mul(-2).clamp(min=0).sqrt()
    angle = low.to(dtype) * (2 * math.pi * 2.0**-32)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1).flatten(1)


def mask_starts(draws: Tensor, *, bins: int, width: int) -> Tensor:
    """draws: (…) uniform in [0, 1) -> (…) first masked bin, uniform in 0…bins−width."""
    return (draws * (bins - width + 1)).to(torch.int64)


def mask(keys: Tensor, n: int, bins: int, *, w: float, r: int) -> Tensor:
    """keys: (members,) -> (members, n, bins): True where masked, `r` runs of round(w·bins) bins."""
    width = round(w * bins)
    draws = keyed_random.uniform(keys, n * r).view(len(keys), n, r, 1)
    starts = mask_starts(draws, bins=bins, width=width)
    place = torch.arange(bins, device=keys.device)
    return ((place >= starts) & (place < starts + width)).any(dim=2)


def warp_knots(coins: Tensor, *, samples: int, factor: float) -> Tensor:
    """coins: (…, pieces), True = stretched -> (…, pieces+1) where the pieces' ends come to lie."""
    stretch = torch.full_like(coins, factor, dtype=torch.float64).where(coins, 1 / factor)
    ends = functional.pad(stretch.cumsum(dim=-1), (1, 0))
    return ends * ((samples - 1) / ends[..., -1:])


def stft_shape(samples: int) -> tuple[int, int]:
    """(frequency bins, time bins) of `stft`."""
    return WINDOW // 2 + 1, 1 + -(-samples // HOP)


def stft(x: Tensor) -> Tensor:
    """x: (…, samples) -> (…, frequency, time) complex: Hann 256, hop 128, centered, reflected.

    As `torch.stft(center=True)`, but reflected at the end up to a whole hop, so that every sample
    is in two windows: with one alone, the inverse would divide a mask's traces by almost nothing.
    """
    samples = x.shape[-1]
    if samples <= WINDOW:
        raise SettingError(f"SpecAugment needs more than {WINDOW} samples, not {samples}")
    flat = functional.pad(x.reshape(1, -1, samples), (HOP, HOP + -samples % HOP), mode="reflect")
    columns = flat.view(*x.shape[:-1], -1).unfold(-1, WINDOW, HOP)
    spectrum: Tensor = torch.fft.rfft(columns * _hann(x))
    return spectrum.transpose(-1, -2)


def istft(spectrum: Tensor, samples: int) -> Tensor:
    """spectrum: (…, frequency, time) complex -> (…, samples), the least-squares inverse of `stft`.

    The hop is half a window: each stretch of a hop is the end of one column and the beginning of
    the next, and their summed squared windows are the same in all stretches.
    """
    columns: Tensor = torch.fft.irfft(spectrum.transpose(-1, -2), n=WINDOW)
    window = _hann(columns)
    columns = columns * window
    energy = window[:HOP].square() + window[HOP:].square()
    sums = (columns[..., 1:, :HOP] + columns[..., :-1, HOP:]) / energy
    return sums.flatten(-2)[..., :samples]


def _hann(like: Tensor) -> Tensor:
    return torch.hann_window(WINDOW, dtype=like.dtype, device=like.device)


def _coins(x: Tensor, keys: Tensor) -> Tensor:
    """(members, n, 1) bool, True with probability ½."""
    return keyed_random.uniform(keys, x.shape[1])[..., None] < 0.5


def _noise(x: Tensor, keys: Tensor) -> Tensor:
    size = x.shape[1] * x.shape[2]
    if is_shared():
        draws, second = keyed_random.bits_in_groups(keys, size, 2)
        both = normals(draws, x.dtype).view(len(keys), size, 2)
        return both.gather(2, second.expand(len(keys), -1)[..., None]).view(x.shape)
    draws = keyed_random.bits(keys, (size + 1) // 2)
    return normals(draws, x.dtype)[:, :size].view(x.shape)


@dataclass(frozen=True)
class Perturbation:
    """A row of the table; its options are the keyword arguments of `run`."""

    run: Callable[..., Tensor]  # (x, keys, **options) -> x perturbed
    limits: dict[str, tuple[float, float]]  # least and greatest value of options that are numbers
    moves: bool = False  # whether it moves samples in time
    # what it does to a view, where `kernels.windows_triton` has it: changes each sample by itself,
    # moves samples, or changes them by what the whole view is
    fused: Literal["values", "places", "view"] | None = None

    @property
    def options(self) -> dict[str, Value]:
        """Names and defaults."""
        return dict(self.run.__kwdefaults__ or {})


_SHARE = {"w": (0.0, 1.0), "r": (1, _ANY)}

PERTURBATIONS: Final = {
    "gaussian": Perturbation(gaussian, {"sigma": (0.0, _ANY)}, fused="values"),
    "flip_y": Perturbation(flip_y, {}, moves=True, fused="places"),
    "flip_x": Perturbation(flip_x, {}, fused="values"),
    "sa_t": Perturbation(sa_t, _SHARE, fused="values"),
    "sa_f": Perturbation(sa_f, _SHARE),
    "scaling": Perturbation(scaling, {"factor": (-_ANY, _ANY)}, fused="values"),
    "permutation": Perturbation(permutation, {"pieces": (1, _ANY)}, moves=True, fused="places"),
    "time_warp": Perturbation(
        time_warp, {"pieces": (1, _ANY), "factor": (1.0, 10.0)}, moves=True, fused="places"
    ),
    "stretch": Perturbation(stretch, {"factor": (1.0, 10.0)}, moves=True),
    "noise_snr": Perturbation(noise_snr, {"db": (-200.0, 200.0)}, fused="view"),
}


@dataclass(frozen=True)
class Step:
    """One perturbation with its options, all of them spelled out."""

    name: str
    options: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        defaults = PERTURBATIONS[self.name].options
        given = [f"{k}={str(v).lower()}" for k, v in self.options if v != defaults[k]]
        return f"{self.name}({', '.join(given)})" if given else self.name


@dataclass(frozen=True)
class Chain:
    """Perturbations one after the other; made by `parse`, written as `parse` reads it."""

    steps: tuple[Step, ...]

    def __call__(self, x: Tensor, keys: Tensor) -> Tensor:
        """x: (members, n, samples), keys: (members,) int64 -> x perturbed, of the same shape.

        Of many leads at once, x is (members, n, leads, samples): each lead is changed by random
        numbers of its own, but all leads of a view are moved in time together.
        """
        for place, step in enumerate(self.steps):
            row, key = PERTURBATIONS[step.name], self.keys_at(place, keys)
            if x.ndim == 3:
                x = row.run(x, key, **dict(step.options))
            elif row.moves:
                time = torch.arange(x.shape[-1], dtype=torch.float32, device=x.device)
                moved = row.run(time.expand(*x.shape[:2], -1), key, **dict(step.options))
                x = at_times(x, moved.unsqueeze(2).expand_as(x))
            else:
                x = row.run(x.flatten(1, 2), key, **dict(step.options)).view(x.shape)
        return x

    def keys_at(self, place: int, keys: Tensor) -> Tensor:
        """keys: (members,) of the chain -> (members,) of the step at that place."""
        return keyed_random.fold(keys, keyed_random.stream(self.steps[place].name), place)

    def __str__(self) -> str:
        return ">".join(map(str, self.steps))


def parse(text: str) -> Chain:
    """A chain from words: 'gaussian>sa_t', 'gaussian(sigma=0.02)>flip_y(always=true)'."""
    return Chain(tuple(_parse_step(part.strip()) for part in text.split(">")))


def _parse_step(text: str) -> Step:
    match = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?", text)
    if not match or match[1] not in PERTURBATIONS:
        rows = (f"{name}({', '.join(row.options)})" for name, row in PERTURBATIONS.items())
        raise SettingError(
            f"there is no perturbation {text!r}; choose from {', '.join(rows)}, joined by '>'"
        )
    row = PERTURBATIONS[match[1]]
    options = row.options
    for part in filter(None, (part.strip() for part in (match[2] or "").split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in options:
            own = ", ".join(f"{k}={str(v).lower()}" for k, v in row.options.items())
            raise SettingError(f"{match[1]} has no option {name!r}; its options are {own}")
        kind, (low, high) = type(options[name]), row.limits.get(name, (False, True))
        try:
            known = _TRUTH[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            known = math.nan
        if not low <= known <= high or not math.isfinite(known):
            limits = "" if kind is bool else f" from {low:g} to {high:g}"
            raise SettingError(f"{match[1]}({part}): {name} should be {_KINDS[kind]}{limits}")
        options[name] = known
    return Step(match[1], tuple(options.items()))
