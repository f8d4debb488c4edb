"""Times as what they are: skewed, with outliers. Medians, intervals by order statistics, and verdicts from them.

No normal distribution is assumed: the interval of a median is that of its ranks (binomial), which holds for any
distribution (Le Boudec, "Performance Evaluation of Computer and Communication Systems", section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["FASTER", "SLOWER", "SAME", "UNSURE"]
TOLERANCE = 0.01  # a difference of a per cent is none that a person should act on
_Z = 1.96  # of 95 %
_FEWEST = 6  # below, a median has no interval at 95 %


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of sorted values, linear between two."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return quantile(sorted(values), 0.5)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95 %; everything, where there are too few values to say."""
    ordered = sorted(values)
    count = len(ordered)
    if count < _FEWEST:
        return (ordered[0], ordered[-1]) if count > 1 else (0.0, math.inf)
    half = _Z * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - half))
    high = min(count - 1, math.ceil(count / 2 + half))
    return ordered[low], ordered[high]


def relative_width(values: Sequence[float]) -> float:
    """Half the interval's width over the median: how well the median is known. Infinite where it is not."""
    if len(values) < _FEWEST:
        return math.inf
    middle = median(values)
    low, high = median_interval(values)
    return (high - low) / 2 / middle if middle > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples in a few numbers, in seconds."""

    count: int
    median: float
    low: float
    high: float
    p20: float
    p80: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Of at least one sample."""
        ordered = sorted(values)
        low, high = median_interval(ordered)
        return cls(
            len(ordered),
            quantile(ordered, 0.5),
            low,
            high if math.isfinite(high) else ordered[-1],
            quantile(ordered, 0.2),
            quantile(ordered, 0.8),
            ordered[0],
            ordered[-1],
        )

    @property
    def width(self) -> float:
        """Half the interval over the median."""
        return (self.high - self.low) / 2 / self.median if self.median > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Comparison:
    """Candidate over baseline: below 1 it is faster. ``low`` and ``high`` enclose the ratio with 95 %."""

    ratio: float
    low: float
    high: float
    verdict: Verdict


def paired(baseline: Sequence[float], candidate: Sequence[float], tolerance: float = TOLERANCE) -> Comparison:
    """Of samples that were taken in turn: what drifts meanwhile, drifts for both."""
    pairs = [after / before for before, after in zip(baseline, candidate, strict=False) if before > 0]
    if not pairs:
        return Comparison(math.nan, 0.0, math.inf, "UNSURE")
    ratio = median(pairs)
    low, high = median_interval(pairs)
    if len(pairs) < _FEWEST:
        return Comparison(ratio, low, high, "UNSURE")
    return Comparison(ratio, low, high, _verdict(low, high, tolerance))


def apart(baseline: Summary, candidate: Summary, tolerance: float = TOLERANCE) -> Comparison:
    """Of two that were taken at different times: the intervals have to be apart."""
    ratio = candidate.median / baseline.median if baseline.median > 0 else math.nan
    low = candidate.low / baseline.high if baseline.high > 0 else 0.0
    high = candidate.high / baseline.low if baseline.low > 0 else math.inf
    return Comparison(ratio, low, high, _verdict(low, high, tolerance))


def _verdict(low: float, high: float, tolerance: float) -> Verdict:
    if high < 1 - tolerance:
        return "FASTER"
    if low > 1 + tolerance:
        return "SLOWER"
    if low >= 1 - tolerance and high <= 1 + tolerance:
        return "SAME"
    return "UNSURE"


def drift(values: Sequence[float]) -> float:
    """How much slower the second half is than the first, as a share; 0 where there are too few to say."""
    half = len(values) // 2
    if half < _FEWEST:
        return 0.0
    first, second = median(values[:half]), median(values[half:])
    return second / first - 1 if first > 0 else 0.0
