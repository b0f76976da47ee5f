"""FrameSpec: what the encoder sees of a recording, and the filters that are applied before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from numbers import Integral, Real
from typing import Any, ClassVar

from clocs.errors import SettingError

MAINS = (50, 60)  # Hz


def _is(value: object, kind: type) -> bool:
    """Whether it is such a number; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of whole recordings, without delay (forwards and backwards); by default none.

    Attributes:
        band_pass: Lowest and highest frequency to keep, in Hz.
        notch: The frequency of the mains to take out, 50 or 60 Hz.
        baseline: Whether to take out the wandering of the baseline, below 0.5 Hz.
    """

    band_pass: tuple[float, float] | None = None
    notch: int | None = None
    baseline: bool = False

    LOWEST: ClassVar = 0.01  # Hz
    HIGHEST_LOW: ClassVar = 20.0  # Hz, below half of any sampling rate
    HIGHEST: ClassVar = 5000.0  # Hz

    def __post_init__(self) -> None:
        if self.band_pass is not None:
            ends = self.band_pass
            fits = isinstance(ends, list | tuple) and len(ends) == 2
            if not fits or not all(_is(end, Real) for end in ends):
                raise SettingError(f"`band_pass` is two frequencies, not {ends!r:.50}")
            low, high = map(float, ends)
            if not (self.LOWEST <= low <= self.HIGHEST_LOW and low < high <= self.HIGHEST):
                raise SettingError(
                    f"`band_pass` is {low:g} to {high:g} Hz; it must begin at {self.LOWEST:g} to "
                    f"{self.HIGHEST_LOW:g} Hz, and end above that, at {self.HIGHEST:g} Hz at most"
                )
            object.__setattr__(self, "band_pass", (low, high))
        if self.notch is not None and self.notch not in MAINS:
            raise SettingError(f"`notch` is {self.notch!r:.50}; the mains have 50 or 60 Hz")
        if not isinstance(self.baseline, bool):
            raise SettingError(f"`baseline` is True or False, not {self.baseline!r:.50}")

    def __bool__(self) -> bool:
        return self != Filters()

    def __str__(self) -> str:
        words = ["baseline removed"] if self.baseline else []
        if self.band_pass:
            words.append("band-pass {:g} to {:g} Hz".format(*self.band_pass))
        words += [f"notch {self.notch} Hz"] if self.notch else []
        return ", ".join(words) or "none"


@dataclass(frozen=True, slots=True)
class FrameSpec:
    """What the encoder sees of a recording: `seconds` of it, as `samples` samples.

    Attributes:
        seconds: Of a frame.
        samples: Of a frame, after resampling.
        filters: Applied to whole recordings before they are resampled and cut.
    """

    seconds: float
    samples: int = 2500
    filters: Filters = field(default_factory=Filters)

    LONGEST: ClassVar = 1e6  # seconds, eleven days
    MAX_SAMPLES: ClassVar = 10_000_000

    def __post_init__(self) -> None:
        seconds, samples = self.seconds, self.samples
        if not (_is(seconds, Real) and 0 < seconds <= self.LONGEST):
            raise SettingError(
                f"the seconds of a frame must be a number above 0 and at most {self.LONGEST:,.0f}, "
                f"not {seconds!r:.50}"
            )
        if not (_is(samples, Integral) and 1 <= samples <= self.MAX_SAMPLES):
            raise SettingError(
                "the samples of a frame must be a whole number from 1 to "
                f"{self.MAX_SAMPLES:,}, not {samples!r:.50}"
            )

    @property
    def rate(self) -> float:
        """Samples per second, in Hz, as the encoder sees them."""
        return self.samples / self.seconds

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON; without filters the two numbers alone, as in earlier versions."""
        facts = asdict(self)
        if not self.filters:
            del facts["filters"]
        return facts

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> FrameSpec:
        """What `facts` gave; TypeError or SettingError where it is something else."""
        filters = facts.get("filters")
        own = Filters() if filters is None else Filters(**filters)
        return cls(**{**facts, "filters": own})
