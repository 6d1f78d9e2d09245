"""Bar charts as numbers that a template draws as SVG: they need no script, print, and follow the theme."""

from collections.abc import Iterable
from dataclasses import dataclass

HEIGHT = 100.0
_GAP = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Two parts on top of each other, in units of a box of `width` times HEIGHT."""

    x: float
    width: float
    good: float
    bad: float
    title: str

    @property
    def good_y(self) -> float:
        return HEIGHT - self.good

    @property
    def bad_y(self) -> float:
        return HEIGHT - self.good - self.bad


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    bars: list[Bar]
    most: int
    unit: str
    first: str
    last: str

    @property
    def width(self) -> int:
        return len(self.bars)

    @property
    def is_empty(self) -> bool:
        return not any(bar.good or bar.bad for bar in self.bars)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    title: str
    good: int
    bad: int = 0


def chart(title: str, points: Iterable[Point], *, unit: str, first: str, last: str) -> Chart:
    known = list(points)
    most = max((point.good + point.bad for point in known), default=0)
    scale = HEIGHT / (most or 1)
    bars = [
        Bar(x=number + _GAP / 2, width=1 - _GAP, good=point.good * scale, bad=point.bad * scale, title=point.title)
        for number, point in enumerate(known)
    ]
    return Chart(title=title, bars=bars, most=most, unit=unit, first=first, last=last)
