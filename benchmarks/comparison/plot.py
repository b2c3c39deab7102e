"""The ratios as a plot: an SVG file, drawn by hand so that nothing has to be installed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from .peers import NO_PEERS, PEERS
from .plan import SIDE_BY_SIDE, WORKLOADS

LEFT, WIDTH, RIGHT, BAR, GAP, HEAD, TOP = 300, 420, 90, 15, 16, 22, 52
DECADES = (0.01, 0.1, 1.0, 10.0)
OURS, THEIRS, INK = "#0b6e4f", "#8a9ba8", "#222222"


def _x(value: float) -> float:
    """Where a ratio lies, on a logarithmic scale."""
    low, high = math.log10(DECADES[0]), math.log10(DECADES[-1])
    placed = (math.log10(max(value, DECADES[0])) - low) / (high - low)
    return LEFT + WIDTH * min(placed, 1.0)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'


def _bar(y: float, name: str, figures: Mapping[str, Any]) -> list[str]:
    """A peer's speed relative to drumbeat's, with the spread over the rounds."""
    parts = [_text(LEFT - 8, y + BAR - 4, PEERS[name].title, 'text-anchor="end"')]
    ratio = figures.get("against_ours")
    if not ratio:
        return [*parts, _text(LEFT + 6, y + BAR - 4, "failed")]
    low, middle, high = (_x(ratio[key]) for key in ("min", "median", "max"))
    colour = OURS if name.startswith("drumbeat") else THEIRS
    parts.append(
        f'<rect x="{LEFT}" y="{y:.1f}" width="{middle - LEFT:.1f}" height="{BAR - 3}" '
        f'fill="{colour}"/>'
    )
    centre = y + (BAR - 3) / 2
    parts.append(
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{centre:.1f}" y2="{centre:.1f}" '
        f'stroke="{INK}" stroke-width="1.5"/>'
    )
    return [*parts, _text(max(middle, high) + 6, y + BAR - 4, f"{ratio['median']:.2f}")]


def svg(groups: Mapping[str, Any]) -> str:
    """Samples a second of each peer over drumbeat's, workload by workload."""
    parts, y = [], float(TOP)
    for key in SIDE_BY_SIDE:
        peers = groups.get(key, {}).get("peers", {})
        names = [name for name in PEERS if name in peers and name not in NO_PEERS]
        if not names:
            continue
        parts.append(_text(LEFT, y + 12, WORKLOADS[key].title, 'font-weight="bold"'))
        y += HEAD
        for name in names:
            parts += _bar(y, name, peers[name])
            y += BAR
        y += GAP
    grid = [
        f'<line x1="{_x(value):.1f}" x2="{_x(value):.1f}" y1="{TOP - 8}" y2="{y - GAP:.0f}" '
        f'stroke="#cccccc"/>' + _text(_x(value), TOP - 12, f"{value:g}", 'text-anchor="middle"')
        for value in DECADES
    ]
    title = "Samples a second, in units of drumbeat's (logarithmic; line: least to greatest)"
    width = LEFT + WIDTH + RIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y:.0f}" '
            f'width="{width}" font-family="sans-serif" font-size="11" fill="{INK}">',
            f'<rect width="{width}" height="{y:.0f}" fill="white"/>',
            _text(12, 18, title, 'font-size="13" font-weight="bold"'),
            *grid,
            *parts,
            "</svg>\n",
        ]
    )
