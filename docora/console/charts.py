"""Bar charts as numbers that a template draws as SVG: they need no script, print, and follow the theme."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from docora.console.display import number

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
    most: str
    first: str
    last: str
    ticks: tuple[str, str, str]
    legend: tuple[str, ...]

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


def chart(
    title: str,
    points: Iterable[Point],
    *,
    unit: str,
    first: str,
    last: str,
    legend: tuple[str, ...] = (),
    shown: Callable[[int], str] = number,
    most: str = "",
) -> Chart:
    """`legend` names the good part of a bar and, where there is one, the bad part. `most` says what the highest
    bar stands for, if that is not its height."""
    known = list(points)
    highest = max((point.good + point.bad for point in known), default=0)
    top = _round_up(highest)
    scale = HEIGHT / top
    bars = [
        Bar(x=number + _GAP / 2, width=1 - _GAP, good=point.good * scale, bad=point.bad * scale, title=point.title)
        for number, point in enumerate(known)
    ]
    return Chart(
        title=title,
        bars=bars,
        most=most or f"up to {shown(highest)} {unit}".rstrip(),
        first=first,
        last=last,
        ticks=(shown(top), shown(top // 2), shown(0)),
        legend=legend,
    )


def _round_up(most: int) -> int:
    """The end of the axis: 2, 4, 10, 20, 40, 100 …, so that its half is a whole number."""
    tens = 1
    while True:
        for step in (2, 4, 10):
            if most <= step * tens:
                return step * tens
        tens *= 10
