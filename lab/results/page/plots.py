"""Plots as SVG, drawn by hand: quality against tokens read, or against length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from kvarn.evals.quality.intervals import Interval

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 40, 50
COLOURS = ("#1b6ca8", "#d1495b", "#3c8d5a", "#8a5fbf", "#b5761a", "#4a4a4a", "#2aa5a0", "#c2569c")


@dataclass(frozen=True)
class Point:
    """x: tokens read as a share, or a length; y and its interval: 0 to 1."""

    x: float
    y: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Series:
    """Points that belong together, and their name."""

    name: str
    points: Sequence[Point]


def draw(title: str, x_name: str, series: Sequence[Series], level: float | None = None) -> str:
    """An SVG picture; x is logarithmic. level: a dashed line, such as full attention's score."""
    points = [point for one in series for point in one.points]
    xs = [math.log10(point.x) for point in points]
    first, last = min(xs), max(xs)
    if last - first < 0.1:
        first, last = first - 0.5, last + 0.5
    lows = [point.interval[0] if point.interval else point.y for point in points]
    least = max(0.0, math.floor(10 * min([*lows, level if level is not None else 1.0])) / 10)

    def at_x(x: float) -> float:
        return LEFT + (math.log10(x) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        share = (min(y, 1.0) - least) / max(1 - least, 1e-9)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 22, title, size=14),
    ]
    for i in range(6):
        y = least + (1 - least) * i / 5
        parts.append(_line(LEFT, at_y(y), WIDTH - RIGHT, at_y(y), "#dddddd"))
        parts.append(_text(LEFT - 6, at_y(y) + 4, f"{100 * y:.0f}", anchor="end"))
    for x in _ticks(10**first, 10**last):
        parts.append(_line(at_x(x), TOP, at_x(x), HEIGHT - BOTTOM, "#eeeeee"))
        parts.append(_text(at_x(x), HEIGHT - BOTTOM + 18, _number(x), anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name, anchor="middle"))
    if level is not None:
        parts.append(_line(LEFT, at_y(level), WIDTH - RIGHT, at_y(level), "#888888", "5 4"))
        parts.append(_text(WIDTH - RIGHT + 6, at_y(level) + 4, "full"))
    for i, one in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        found = sorted(one.points, key=lambda point: point.x)
        path = " ".join(f"{at_x(p.x):.1f},{at_y(p.y):.1f}" for p in found)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        for p in found:
            if p.interval is not None:
                low, high = (at_y(max(least, bound)) for bound in p.interval)
                parts.append(_line(at_x(p.x), low, at_x(p.x), high, colour))
            parts.append(
                f'<circle cx="{at_x(p.x):.1f}" cy="{at_y(p.y):.1f}" r="3" fill="{colour}"/>'
            )
        y = TOP + 30 + 18 * i
        parts.append(
            f'<rect x="{WIDTH - RIGHT + 12}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        )
        parts.append(_text(WIDTH - RIGHT + 27, y, one.name))
    return "\n".join([*parts, "</svg>\n"])


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {where}>{escape(text)}</text>"


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; only the powers where these are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(decades) < 4 else (1,)
    found = [step * 10.0**decade for decade in decades for step in steps]
    return [x for x in found if low * 0.999 <= x <= high * 1.001]


def _number(x: float) -> str:
    """A length in full, a share in percent."""
    return f"{100 * x:.3g}%" if x <= 1 else f"{x:,.0f}"
